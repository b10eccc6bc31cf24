"""The process's own spans are those of OpenTelemetry's SDK, at less cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, Status, StatusCode

from stretto.telemetry.tracing import Tracing, batch_span, step_of_batch
from support.traces import SAMPLED, Spans

if TYPE_CHECKING:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

PARENTS = {
    "none": "",
    "one that samples": SAMPLED,
    "one with more flags": SAMPLED[:-2] + "ff",
    "one whose trace id is random": SAMPLED[:-2] + "03",
}


def exported(spans: Spans, parent: str) -> list[WireSpan]:
    """Return what a collector gets of a creation, without what differs each time."""
    request = Tracing(spans.provider).begin("POST /v1/groups", parent, "vendor=1")
    assert request is not None
    request.queued()
    with batch_span([request], 3):
        with step_of_batch("stretto.claim"):
            pass
        with pytest.raises(ZeroDivisionError), step_of_batch("stretto.lead"):
            raise ZeroDivisionError
    request.end({"http.route": "/v1/groups", "http.response.status_code": 503}, error="503")
    (of_resource,) = encode_spans(spans.exporter.get_finished_spans()).resource_spans
    (of_scope,) = of_resource.scope_spans
    assert "stretto" == of_scope.scope.name
    ids = {each.span_id: b"%d" % number for number, each in enumerate(of_scope.spans)}
    for each in of_scope.spans:
        assert 0 < each.start_time_unix_nano <= each.end_time_unix_nano
        each.ClearField("start_time_unix_nano")
        each.ClearField("end_time_unix_nano")
        each.span_id = ids[each.span_id]
        each.parent_span_id = ids.get(each.parent_span_id, each.parent_span_id)
        for link in each.links:
            link.span_id = ids[link.span_id]
            if not parent:
                link.ClearField("trace_id")
        if not parent:
            each.ClearField("trace_id")
    return [*of_scope.spans]


def flags(spans: Spans) -> set[int]:
    """Return the flags that `traceparent` has: what is exported has none."""
    found = [each.get_span_context() for each in spans.exporter.get_finished_spans()]
    return {each.trace_flags for each in found if each is not None}


@pytest.mark.parametrize("parent", PARENTS.values(), ids=PARENTS)
def test_what_is_exported_is_what_the_sdk_exports(parent: str) -> None:
    """Names, kinds, parents, links, attributes, states, flags, and how it failed."""
    sampler = ParentBased(ALWAYS_ON)
    expected, actual = (Spans(sampler, is_lean=is_lean) for is_lean in (False, True))
    assert exported(expected, parent) == exported(actual, parent)
    assert flags(expected) == flags(actual)


def test_a_span_ends_once() -> None:
    """A second end changes nothing."""
    spans = Spans(ALWAYS_ON, is_lean=True)
    span = spans.provider.get_tracer("a test").start_span("once", start_time=1)
    assert span.is_recording()
    span.end(2)
    span.end(3)
    assert not span.is_recording()
    (ended,) = spans.exporter.get_finished_spans()
    assert (1, 2) == (ended.start_time, ended.end_time)


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)])
def test_the_sampler_decides(sampler: ParentBased) -> None:
    """What it leaves out is not exported, and has an id that can be handed on."""
    spans = Spans(sampler, is_lean=True)
    span = spans.provider.get_tracer("a test").start_span("left out")
    assert not span.is_recording()
    assert span.get_span_context().is_valid
    assert not span.get_span_context().trace_flags.sampled
    span.end()
    assert () == spans.exporter.get_finished_spans()


def test_attributes_and_status_may_come_with_it_or_later() -> None:
    """But for the text of an error."""
    spans = Spans(ALWAYS_ON, is_lean=True)
    tracer = spans.provider.get_tracer("a test")
    with tracer.start_as_current_span("failed", None, SpanKind.CLIENT, {"one": 1}) as span:
        span.set_attribute("two", 2)
        span.set_attributes({"three": 3})
        span.set_status(Status(StatusCode.ERROR, "a text"))
        span.set_status(StatusCode.ERROR, "a text")
    (ended,) = spans.exporter.get_finished_spans()
    assert {"one": 1, "two": 2, "three": 3} == dict(ended.attributes or {})
    assert (StatusCode.ERROR, None) == (ended.status.status_code, ended.status.description)
