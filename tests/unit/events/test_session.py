"""One session's queue, and what it leaves out because its client has had it."""

from __future__ import annotations

import asyncio
from itertools import count

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
    """It is not behind for that."""
    assert session.go_live(place(5))
    for number in (5, 6, 4):
        session.offer(event(number))
    assert (False, EVENTS_MAX) == (session.is_behind, len(session))
    session.offer(event(7))
    assert session.is_behind


async def test_a_live_session_whose_queue_overflows_catches_up_again(session: Session) -> None:
    """What it has dropped must be read: it gives out nothing that comes after that."""
    assert session.go_live(place(1))
    taking = asyncio.create_task(session.take(DEADLINE_SECONDS))
    await asyncio.sleep(0)
    for number in range(1, EVENTS_MAX + 2):
        session.offer(event(number))
    assert (None, True, 1) == (session.close_code, session.is_behind, len(session))
    assert [] == [*await taking]
    assert session.position(place(9)) is None
    session.fall_back()
    assert not session.is_behind
    assert session.go_live(place(3))
    session.offer(event(4))
    assert [3, 4] == numbers(await session.take())


async def test_what_overflows_while_a_session_falls_back_is_read_in_another_round(
    session: Session,
) -> None:
    """As in its first catch-up; what overflowed before is found by the first read."""
    assert session.go_live(place(1))
    for number in range(1, 2 * EVENTS_MAX + 2):
        session.offer(event(number))
    session.fall_back()
    session.offer(event(6))
    session.offer(event(7))
    assert [False, True] == [session.go_live(place(5)), session.go_live(place(7))]


def overflow(session: Session, first: int) -> None:
    """Offer as many events as have room, and one more."""
    for number in count(first):
        waiting = len(session)
        session.offer(event(number))
        if len(session) <= waiting:
            return


async def begin_to_send(session: Session) -> None:
    """Have the session live, with a first event that is on its way to the client."""
    assert session.go_live(place(0))
    session.offer(event(1))
    assert [1] == numbers(await session.take())


async def test_a_client_that_takes_no_event_while_the_queue_overflows_twice_is_too_slow(
    session: Session,
) -> None:
    """Once may be our own delay: the queue was nearly full when its turn came."""
    await begin_to_send(session)
    assert session.may_send()
    overflow(session, 2)
    assert (None, True) == (session.close_code, session.is_behind)
    overflow(session, 10)
    assert (CloseCode.TOO_SLOW, 0) == (session.close_code, len(session))


async def test_a_client_that_takes_an_event_in_between_is_not_too_slow(session: Session) -> None:
    """It reads, however slowly, and will catch up."""
    assert session.go_live(place(0))
    for number in (1, 2):
        session.offer(event(number))
    assert [1, 2] == numbers(await session.take())
    assert session.may_send()
    overflow(session, 3)
    assert session.may_send()
    overflow(session, 10)
    assert session.close_code is None
    overflow(session, 20)
    assert CloseCode.TOO_SLOW is session.close_code


async def test_a_client_that_catches_up_again_is_never_too_slow_for_its_queue(
    session: Session,
) -> None:
    """It has a time for each event instead, and so much to read."""
    await begin_to_send(session)
    overflow(session, 2)
    session.fall_back()
    for first in (10, 20, 30):
        overflow(session, first)
    assert session.close_code is None


async def test_a_session_that_waits_for_its_turn_is_not_too_slow(session: Session) -> None:
    """Its client could take no event; in its turn, that begins anew."""
    await begin_to_send(session)
    overflow(session, 2)
    session._live._per_turn = 0
    waiting = asyncio.create_task(session.turn())
    await asyncio.sleep(0)
    for first in (10, 20, 30):
        overflow(session, first)
    assert session.close_code is None
    session._live._granted, session._live._per_turn = 0, 1
    session._live._grant_next()
    await waiting
    overflow(session, 40)
    assert session.close_code is None
    overflow(session, 50)
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
