"""Every order in which writers, tail, history reader, clients and relays can go: no event is missed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from races.log_explorer import LogAnomaly, explore_log
from races.log_world import LogScenario, LogWorld
from races.relay_world import RelayWorld
from stretto.events import history_reader
from stretto.events.catch_up import CatchUp
from stretto.events.hub import SessionHub
from stretto.events.session import Session
from stretto.events.tail import LogTail
from stretto.targets.relay import OutboxRelay
from support.memory_log import MemoryLog

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.events.log import LogPage
    from stretto.events.place import Place

NEW: Final = False
HAS_MISSED: Final = True

SCENARIOS: Final = {
    "a new client beside two writers": LogScenario(),
    "a client that resumes beside two writers": LogScenario(clients=(HAS_MISSED,)),
    "two clients beside two writers": LogScenario(clients=(NEW, HAS_MISSED)),
    "a transaction with two events": LogScenario(transactions=(2, 1), clients=(HAS_MISSED,)),
    "a crash that forgets a transaction id": LogScenario(
        transactions=(1, 0), clients=(NEW,), crashes=1, after_crash=(1,)
    ),
    "heartbeats between the events of others": LogScenario(
        transactions=(1, 1, 1), others=2, clients=(NEW, HAS_MISSED), beats=True
    ),
    "a live session whose queue overflows": LogScenario(
        transactions=(1, 1, 1), clients=(NEW,), slow=True
    ),
    "a queue that overflows beside a transaction with two events": LogScenario(
        transactions=(2, 1), clients=(NEW,), slow=True
    ),
    "a queue that overflows beside heartbeats": LogScenario(
        transactions=(1, 1, 1), others=1, clients=(NEW,), slow=True, beats=True
    ),
    "heartbeats and a crash": LogScenario(
        transactions=(1, 1, 0), others=1, crashes=1, after_crash=(1, 1), beats=True
    ),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_client_misses_an_event_in_any_order(name: str, record_property: Any) -> None:
    """Nor gets one twice in a session, nor could miss one by resuming anywhere."""
    found = explore_log(lambda: LogWorld(SCENARIOS[name]))
    record_property("explored", f"{name}: {found.states} states, {found.ends} ends")


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_client_misses_an_event_that_gets_one_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where each event is as large as all that a session may hold of a page."""
    monkeypatch.setattr(history_reader, "STRETCH_BYTES_MAX", 0)
    explore_log(lambda: LogWorld(SCENARIOS[name]))


RELAYS: Final = {
    "two relays beside a writer": partial(RelayWorld, to_come=1),
    "a relay that is stopped for longer than its lease": partial(RelayWorld, expiries=1),
    "a relay that is killed": partial(RelayWorld, to_come=1, kills=1),
    "a database that crashes": partial(RelayWorld, to_come=1, crashes=1),
}


@pytest.mark.parametrize("name", RELAYS)
def test_no_event_is_passed_over_by_the_relays_in_any_order(
    name: str, record_property: Any
) -> None:
    """It may be published twice."""
    found = explore_log(RELAYS[name])
    record_property("explored", f"{name}: {found.states} states, {found.ends} ends")


def move_on_before_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that dies in between has published nothing."""

    async def hasty(relay: OutboxRelay, page: LogPage) -> bool:
        await relay._store.advance(relay._token, page.place)
        relay._place = page.place
        await relay._publish([logged.event for logged in page.events])
        return True

    monkeypatch.setattr(OutboxRelay, "_publish_page", hasty)


def take_over_at_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the last one has left is passed over."""
    lease = OutboxRelay._lease

    async def forgetful(relay: OutboxRelay) -> None:
        had_none = relay._place is None
        await lease(relay)
        if had_none and relay._place is not None:
            relay._place = (await relay._store.page(relay._place, 100)).place

    monkeypatch.setattr(OutboxRelay, "_lease", forgetful)


@pytest.mark.parametrize(
    ("forget", "name"),
    [
        (move_on_before_publishing, "a relay that is killed"),
        (take_over_at_the_present, "a relay that is killed"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_without_its_guard_an_order_is_found_that_passes_over_an_event(
    forget: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each guard is one that the explorer misses."""
    forget(monkeypatch)
    with pytest.raises(LogAnomaly):
        explore_log(RELAYS[name])


def read_before_the_tail_has_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What commits between the catch-up and the tail's first look comes neither way."""

    async def begin(catch_up: CatchUp) -> None:
        assert catch_up._place is not None
        catch_up._stretch = await catch_up._ask(catch_up._place)

    monkeypatch.setattr(CatchUp, "begin", begin)


def send_what_both_ways_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event of the catch-up that waits in the queue comes twice."""

    def go_live(session: Session, place: Place) -> bool:
        session._live_from = place
        return True

    monkeypatch.setattr(Session, "go_live", go_live)


def forget_an_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the queue has dropped is not read again."""
    go_live = Session.go_live

    def blind(session: Session, place: Place) -> bool:
        session._has_overflowed = False
        return go_live(session, place)

    monkeypatch.setattr(Session, "go_live", blind)


def go_on_with_a_queue_that_has_overflowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has dropped never comes."""
    monkeypatch.setattr(Session, "is_behind", False)


def catch_up_from_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is behind reads only what has come since it was found to be."""
    fall_back, begin = SessionHub.fall_back, CatchUp.begin
    behind: list[Session] = []

    def note(hub: SessionHub, session: Session) -> None:
        behind.append(session)
        fall_back(hub, session)

    async def forgetful(catch_up: CatchUp) -> None:
        if catch_up._session in behind:
            catch_up._place = catch_up._hub.place
        await begin(catch_up)

    monkeypatch.setattr(SessionHub, "fall_back", note)
    monkeypatch.setattr(CatchUp, "begin", forgetful)


def follow_from_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tail that begins anew with every turn loses what lies between."""
    run_once = LogTail.run_once

    async def forgetful(tail: LogTail) -> int:
        tail._hub.move(None)
        await run_once(tail)
        return await run_once(tail)

    monkeypatch.setattr(LogTail, "run_once", forgetful)


def join_after_the_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that gets no live events while it catches up."""
    deliver = SessionHub.deliver

    def unless_catching_up(hub: SessionHub, *event: Any) -> None:
        waiting = {
            user: {s: None for s in sessions if s._live_from is not None}
            for user, sessions in hub._sessions.items()
        }
        sessions, hub._sessions = hub._sessions, waiting
        deliver(hub, *event)
        hub._sessions = sessions

    monkeypatch.setattr(SessionHub, "deliver", unless_catching_up)


def rest_on_the_newest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be that of an asynchronous commit, which a crash forgets."""
    look = MemoryLog.look
    monkeypatch.setattr(MemoryLog, "look", lambda log: replace(look(log), end=log.next_id))


def beat_ahead_of_the_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that comes back at the position of a heartbeat is never sent what lies below it."""

    def ahead(hub: SessionHub) -> Place | None:
        delivered = hub._delivered
        return delivered and replace(delivered, xmax=delivered.xmax + 1)

    monkeypatch.setattr(SessionHub, "delivered", property(ahead))


@pytest.mark.parametrize(
    ("forget", "name"),
    [
        (read_before_the_tail_has_its_place, "a client that resumes beside two writers"),
        (send_what_both_ways_brought, "a client that resumes beside two writers"),
        (forget_an_overflow, "a client that resumes beside two writers"),
        (go_on_with_a_queue_that_has_overflowed, "a live session whose queue overflows"),
        (catch_up_from_the_present, "a live session whose queue overflows"),
        (follow_from_the_present, "a new client beside two writers"),
        (join_after_the_read, "a client that resumes beside two writers"),
        (rest_on_the_newest_id, "a crash that forgets a transaction id"),
        (beat_ahead_of_the_delivery, "heartbeats between the events of others"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_without_its_guard_an_order_is_found_that_goes_wrong(
    forget: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each guard is one that the explorer misses."""
    forget(monkeypatch)
    with pytest.raises(LogAnomaly):
        explore_log(lambda: LogWorld(SCENARIOS[name]))
