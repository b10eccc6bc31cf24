"""Which requests have spans, and how the spans of one trace hang together."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from stretto.telemetry.tracing import Trace, Tracing, batch_span, span_of, step_of_batch
from support.traces import (
    PARENT_ID,
    RAISING_PLACES,
    SAMPLED,
    TRACE_ID,
    UNSAMPLED,
    Spans,
    raising_spans,
)


@pytest.fixture(params=[False, True], ids=["a host's", "the process's"])
def spans(request: pytest.FixtureRequest) -> Spans:
    """What has ended."""
    return Spans(is_lean=request.param)


@pytest.fixture
def tracing(spans: Spans) -> Tracing:
    """Of a component whose sampler takes what its parent takes."""
    return Tracing(spans.provider)


def begun(tracing: Tracing, traceparent: str = SAMPLED) -> Trace:
    """Return the span of a sampled request."""
    trace = tracing.begin("request", traceparent, "")
    assert trace is not None
    return trace


def test_a_request_goes_on_with_the_trace_of_its_client(spans: Spans, tracing: Tracing) -> None:
    """And hands it on, with what a vendor has put beside it."""
    trace = tracing.begin("request", SAMPLED, "vendor=1")
    assert trace is not None
    trace.end({"http.response.status_code": 503}, error="503")
    (span,) = spans.ended
    assert (TRACE_ID, PARENT_ID, "SERVER") == (span.trace_id, span.parent_id, span.kind)
    assert {"http.response.status_code": 503, "error.type": "503"} == span.attributes
    assert f"00-{TRACE_ID}-{span.id}-01 vendor=1" == trace.context


@pytest.mark.parametrize("parent", ["", "no parent"])
def test_without_a_parent_the_sampler_decides(parent: str) -> None:
    """As OpenTelemetry is told to sample."""
    assert Tracing(Spans().provider).begin("request", parent, "") is None
    spans = Spans(ParentBased(ALWAYS_ON))
    trace = Tracing(spans.provider).begin("request", parent, "")
    assert trace is not None
    trace.end()
    assert [""] == [each.parent_id for each in spans.ended]


def test_a_parent_that_is_not_sampled_decides() -> None:
    """Whatever the sampler: it is not even asked."""
    spans = Spans(ALWAYS_ON)
    assert Tracing(spans.provider).begin("request", UNSAMPLED, "") is None
    assert Tracing(spans.provider).resume("push", UNSAMPLED) is None


@pytest.mark.parametrize("context", [None, "", "no parent"])
def test_an_event_without_a_trace_begins_none(context: str | None) -> None:
    """Even where everything is sampled."""
    assert Tracing(Spans(ALWAYS_ON).provider).resume("push", context) is None


def test_what_is_done_for_an_event_is_a_part_of_its_requests_trace(
    spans: Spans, tracing: Tracing
) -> None:
    """In another process as well: the event has the context."""
    request = begun(tracing)
    pushed = tracing.resume("push", request.context)
    called = tracing.resume("webhook", request.context, is_client=True)
    assert pushed is not None
    assert called is not None
    for each in (pushed, called, request):
        each.end()
    push, webhook, root = spans.ended
    assert {TRACE_ID} == {each.trace_id for each in spans.ended}
    assert root.id == push.parent_id == webhook.parent_id
    assert ["PRODUCER", "CLIENT"] == [push.kind, webhook.kind]


async def test_a_batch_links_its_requests(spans: Spans, tracing: Tracing) -> None:
    """It is a part of one trace, and the waits of the others lead to it."""
    first, second = begun(tracing), begun(tracing)
    for each in (first, second):
        each.queued()
    with batch_span([first, second], 3):
        with step_of_batch("stretto.claim"):
            await asyncio.sleep(0)
        with pytest.raises(ZeroDivisionError), step_of_batch("stretto.lead"):
            raise ZeroDivisionError
    with step_of_batch("stretto.later"):
        pass
    second.end()
    first.end()
    (batch,) = spans.named("stretto.batch")
    two, one = spans.named("request")
    assert (one.id, (one.id, two.id), {"stretto.writes": 3}) == (
        batch.parent_id,
        batch.links,
        batch.attributes,
    )
    waits = spans.named("stretto.mailbox")
    assert [(one.id, (batch.id,)), (two.id, (batch.id,))] == [
        (each.parent_id, each.links) for each in waits
    ]
    steps = spans.named("stretto.claim") + spans.named("stretto.lead")
    assert [(batch.id, None), (batch.id, "ZeroDivisionError")] == [
        (each.parent_id, each.attributes.get("error.type")) for each in steps
    ]
    assert [] == spans.named("stretto.later")


def test_a_write_that_is_put_back_has_waited_once(spans: Spans, tracing: Tracing) -> None:
    """What it waits for then is a batch, not the mailbox."""
    trace = begun(tracing)
    trace.queued()
    for _ in range(2):
        with batch_span([trace], 1):
            pass
    assert 1 == len(spans.named("stretto.mailbox"))
    assert 2 == len(spans.named("stretto.batch"))


def test_what_is_not_sampled_costs_no_span(spans: Spans) -> None:
    """Nothing is recorded where there is no trace."""
    with batch_span([], 1), step_of_batch("stretto.claim"), span_of(None, "stretto.follow"):
        pass
    assert [] == spans.ended


def work_traced(tracing: Tracing, trace: Trace | None) -> list[str]:
    """Do what a request and its event do with spans; return the steps that were worked on."""
    worked: list[str] = []
    traces = [] if trace is None else [trace]
    for each in traces:
        each.queued()
    with batch_span(traces, 1), step_of_batch("stretto.claim"):
        worked.append("batch")
    with span_of(trace, "stretto.follow"):
        worked.append("follow")
    push = tracing.resume("stretto.push", SAMPLED)
    for each in traces if push is None else [*traces, push]:
        each.end({"stretto.sessions": 1}, error="refused")
    return worked


class Fault(BaseException):
    """No `Exception`, and none that ends a process."""


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError, Fault])
@pytest.mark.parametrize("place", RAISING_PLACES)
def test_what_a_hosts_code_raises_ends_no_work(place: str, error: type[BaseException]) -> None:
    """The work goes on; each failure is reported."""
    reports: list[BaseException] = []
    tracing = Tracing(raising_spans(place, error()).provider, reports.append)
    trace = tracing.begin("request", SAMPLED, "")
    assert (trace is not None) == (place == "on_end")
    assert ["batch", "follow"] == work_traced(tracing, trace)
    assert {error} == {type(each) for each in reports}


@pytest.mark.parametrize("place", RAISING_PLACES)
def test_what_a_hosts_code_raises_below_a_request_ends_no_work(place: str) -> None:
    """The request's own span had begun."""
    trace = begun(Tracing(Spans().provider))
    tracing = trace._tracing
    tracing.tracer = raising_spans(place, ZeroDivisionError()).provider.get_tracer("raising")
    assert ["batch", "follow"] == work_traced(tracing, trace)


@pytest.mark.parametrize("method", ["set_attributes", "set_status", "end"])
def test_a_span_that_cannot_be_described_ends(
    method: str, spans: Spans, tracing: Tracing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of a host's span may raise."""
    trace = begun(tracing)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(trace._span), method, fail)
    trace.end({"stretto.writes": 1}, error="refused")
    assert (method != "end") == bool(spans.ended)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", RAISING_PLACES)
def test_the_guard_lets_an_interruption_pass(place: str, error: type[BaseException]) -> None:
    """It is meant for the process."""
    tracing = Tracing(raising_spans(place, error()).provider)
    with pytest.raises(error):
        work_traced(tracing, tracing.begin("request", SAMPLED, ""))
