"""One session's queue, and what it leaves out because its client has had it."""

from __future__ import annotations

import asyncio

import pytest

from stretto.domain import UserId
from stretto.events.close_codes import CloseCode
from stretto.events.outgoing import OutgoingEvent
from stretto.events.session import Session
from support.log_events import logged, numbers, place

EVENTS_MAX = 2
DEADLINE_SECONDS = 60


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


async def test_a_silence_ends_a_wait_for_events(session: Session) -> None:
    """With nothing; the next wait begins anew, and an event ends it."""
    assert [] == await session.take(0.01)
    taking = asyncio.create_task(session.take(DEADLINE_SECONDS))
    await asyncio.sleep(0)
    session.offer(event(1))
    assert [1] == numbers(await taking)
    assert [] == await session.take(0.01)


async def test_a_silent_clients_position_covers_what_it_was_sent_and_what_was_delivered(
    session: Session,
) -> None:
    """Nothing while it catches up, or while an event waits that the place would cover."""
    delivered = place(9, 6)
    assert session.position(delivered) is None
    assert session.go_live(place(7, 5))
    assert str(place(9)) == session.position(delivered)
    assert str(place(7, 5)) == session.position(place(3))
    assert session.position(None) is None
    session.offer(event(8))
    assert session.position(delivered) is None
    await session.take()
    assert str(place(9)) == session.position(delivered)


async def test_a_session_that_was_closed_before_is_not_awaited(session: Session) -> None:
    """Its stream only begins now: it ends at once."""
    session.close(CloseCode.TOO_SLOW)
    async with asyncio.timeout(DEADLINE_SECONDS), session.until_closed():
        await asyncio.Event().wait()
