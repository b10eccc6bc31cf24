"""The span of a push: from the event's delivery to its last session's transport."""

from __future__ import annotations

import math

import pytest

from stretto.domain import UserId
from stretto.events.close_codes import CloseCode
from stretto.events.hub import SessionHub
from stretto.events.settings import HubSettings
from stretto.telemetry.tracing import Tracing
from support.log_events import deliver, logged, place
from support.traces import SAMPLED, UNSAMPLED, Spans

ALICE, BOB = UserId("alice"), UserId("bob")
EVENTS_MAX = 2


@pytest.fixture
def spans() -> Spans:
    """What has ended."""
    return Spans()


@pytest.fixture
def hub(spans: Spans) -> SessionHub:
    """A hub that traces."""
    settings = HubSettings(session_events_max=EVENTS_MAX)
    return SessionHub(settings, lambda _: None, tracing=Tracing(spans.provider))


def pushes(spans: Spans) -> list[int]:
    """Return of each push that has ended how many sessions it had."""
    return [each.attributes["stretto.sessions"] for each in spans.named("stretto.push")]


async def test_a_push_ends_when_the_last_session_has_sent_the_event(
    hub: SessionHub, spans: Spans
) -> None:
    """Each shows that by taking the next."""
    with hub.session(ALICE, math.inf) as first, hub.session(BOB, math.inf) as second:
        for session in (first, second):
            session.go_live(place(1))
        deliver(hub, logged(1, ALICE, BOB, trace_context=SAMPLED))
        for session in (first, second):
            assert 1 == len(await session.take())
        assert 0 == len(await first.take(0.001))
        assert [] == pushes(spans)
        deliver(hub, logged(2, BOB))
        assert 1 == len(await second.take())
        assert [2] == pushes(spans)
    assert [2] == pushes(spans)


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_session_that_ends_holds_no_push_open(
    is_taken: bool, hub: SessionHub, spans: Spans
) -> None:
    """Its client will never have the event, or nobody knows."""
    with hub.session(ALICE, math.inf) as session:
        session.go_live(place(1))
        deliver(hub, logged(1, ALICE, trace_context=SAMPLED))
        if is_taken:
            await session.take()
        assert [] == pushes(spans)
        session.close(CloseCode.GOING_AWAY)
        assert [1] == pushes(spans)
        deliver(hub, logged(2, ALICE, trace_context=SAMPLED))
    assert [1, 0] == pushes(spans)


@pytest.mark.parametrize("overflows", [False, True])
def test_what_a_catch_up_brings_is_pushed_with_it(
    overflows: bool, hub: SessionHub, spans: Spans
) -> None:
    """Not later: a queue that is dropped and filled again holds no spans without an end."""
    with hub.session(ALICE, math.inf) as session:
        for number in range(EVENTS_MAX + overflows):
            deliver(hub, logged(number, ALICE, trace_context=SAMPLED))
        assert [1] * EVENTS_MAX * overflows == pushes(spans)
        assert overflows != session.go_live(place(9))
        assert [1] * EVENTS_MAX == pushes(spans)


@pytest.mark.parametrize("trace_context", [None, UNSAMPLED])
async def test_an_event_that_is_not_traced_has_no_push(
    trace_context: str | None, hub: SessionHub, spans: Spans
) -> None:
    """Whatever becomes of it."""
    with hub.session(ALICE, math.inf) as session:
        session.go_live(place(1))
        deliver(hub, logged(1, ALICE, trace_context=trace_context))
        (event,) = await session.take()
        assert event.push is None
    assert [] == spans.ended
