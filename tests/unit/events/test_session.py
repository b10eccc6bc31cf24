"""One session's queue, and what it remembers of what its client has from history."""

from __future__ import annotations

from uuid import UUID

import pytest

from stretto.domain import UserId
from stretto.events import session as session_module
from stretto.events.close_codes import CloseCode
from stretto.events.event import CommittedEvent
from stretto.events.outgoing import OutgoingEvent
from stretto.events.positions import Origin, Position
from stretto.events.session import Session

EVENTS_MAX = 2


def event(number: int) -> OutgoingEvent:
    """Return an event of alice's."""
    committed = CommittedEvent(UUID(int=number), ("alice",), b"{}", Position(number))
    return OutgoingEvent(committed, Origin("0a1b2c3d"))


@pytest.fixture
def session() -> Session:
    """A session that replays."""
    return Session(UserId("alice"), 1e12, EVENTS_MAX)


def test_an_event_that_comes_twice_takes_no_second_place_in_a_full_queue(session: Session) -> None:
    """The bus may hand it over again at any time: its client is not too slow for that."""
    assert session.go_live()
    for number in range(EVENTS_MAX):
        session.offer(event(number))
    session.offer(event(0))
    assert (None, EVENTS_MAX) == (session.close_code, len(session))
    session.offer(event(EVENTS_MAX))
    assert CloseCode.TOO_SLOW is session.close_code


@pytest.mark.parametrize("is_under_way", [True, False])
def test_only_what_may_still_come_live_is_remembered(
    session: Session, *, is_under_way: bool
) -> None:
    """What was handed over before is not expected, and takes no room."""
    session.note_sent(event(1), is_under_way=is_under_way)
    session.offer(event(1))
    assert int(not is_under_way) == len(session)


def test_what_had_come_live_already_is_not_expected_again(session: Session) -> None:
    """It is told once; if the bus hands it over again, that is the bus's second time."""
    session.offer(event(1))
    session.note_sent(event(1), is_under_way=True)
    assert 0 == len(session)
    session.offer(event(1))
    assert 1 == len(session)


def test_what_is_remembered_is_bounded_and_ends_with_the_session(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a long outage of the bus; what is beyond may come twice."""
    monkeypatch.setattr(session_module, "SENT_IDS_MAX", 2)
    for number in range(3):
        session.note_sent(event(number), is_under_way=True)
    assert 2 == len(session._sent)
    session.offer(event(2))
    assert 1 == len(session)
    session.close(CloseCode.GOING_AWAY)
    assert (0, 0) == (len(session._sent), len(session))
