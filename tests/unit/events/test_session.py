"""One session's queue, and what it leaves out because its client has had it."""

from __future__ import annotations

import pytest

from stretto.domain import UserId
from stretto.events.close_codes import CloseCode
from stretto.events.outgoing import OutgoingEvent
from stretto.events.session import Session
from support.log_events import logged, numbers, place

EVENTS_MAX = 2


def event(number: int) -> OutgoingEvent:
    """Return an event of alice's."""
    return OutgoingEvent(logged(number), str(place(number + 1)))


@pytest.fixture
def session() -> Session:
    """A session that catches up."""
    return Session(UserId("alice"), 1e12, EVENTS_MAX)


async def test_what_the_client_has_had_is_left_out_whether_it_waits_or_comes(
    session: Session,
) -> None:
    """And nothing else: not what a transaction brings that ran then."""
    session.offer(event(4))
    session.offer(event(5))
    assert session.go_live(place(7, 5))
    session.offer(event(6))
    session.offer(event(7))
    assert [5, 7] == numbers(await session.take())


async def test_a_session_that_catches_up_takes_everything(session: Session) -> None:
    """The twin: it cannot know yet what the log will bring."""
    session.offer(event(4))
    session.offer(event(5))
    assert [4, 5] == numbers(await session.take())


def test_what_the_client_has_had_takes_no_room_in_a_full_queue(session: Session) -> None:
    """Its client is not too slow for that."""
    assert session.go_live(place(5))
    for number in (5, 6, 4):
        session.offer(event(number))
    assert (None, EVENTS_MAX) == (session.close_code, len(session))
    session.offer(event(7))
    assert CloseCode.TOO_SLOW is session.close_code


async def test_what_a_full_queue_has_dropped_is_read_before_the_session_goes_live(
    session: Session,
) -> None:
    """The next read finds it; until then the session is not live."""
    for number in range(1, EVENTS_MAX + 2):
        session.offer(event(number))
    assert (None, 1) == (session.close_code, len(session))
    assert not session.go_live(place(1))
    assert session.go_live(place(3))
    assert [3] == numbers(await session.take())
