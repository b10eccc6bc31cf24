"""What is read of the past, with a log of the test's own: batches, pages, races."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from types import NoneType
from typing import TYPE_CHECKING

import pytest

from stretto.domain import UserId
from stretto.errors import InternalError
from stretto.events import history_reader, scan
from stretto.events.catch_up import OPENING_SENDS, CatchUp
from stretto.events.history_reader import HistoryReader
from stretto.events.hub import SessionHub
from stretto.events.log import LogPage
from stretto.events.place import RUNNING_MAX, History, Place, PositionLost
from stretto.events.scan import Ask, Stretch, Waiting
from stretto.events.session import Session
from stretto.events.session_turns import SENDS_PER_TURN
from stretto.events.settings import HubSettings
from stretto.observations import ActorCrashed, UpkeepFailed
from stretto.runtime.backoff import Backoff
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Run
from stretto.store_errors import ReadCancelled, Unreachable
from support import log_events
from support.log_events import deliver, logged, place, present
from support.loop_turns import counted_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.events.log import LoggedEvent
    from stretto.observations import Observation

ALICE, BOB = UserId("alice"), UserId("bob")
PAGE_EVENTS = 4


class ScriptedLog:
    """Events and pages in memory; tests may do something in between."""

    def __init__(self) -> None:
        self.events: list[LoggedEvent] = []
        self.running: tuple[int, ...] = ()
        self.start = 0
        self.scans: list[tuple[Place, Sequence[UserId] | None]] = []
        self.after_page: Callable[[], object] = lambda: None
        self.after_last_page: Callable[[], object] = lambda: None
        self.errors: list[Exception] = []

    async def present(self) -> Place:
        raise AssertionError

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        self.scans.append((begin, users))
        if self.errors:
            raise self.errors.pop(0)
        events = sorted(self.events, key=lambda each: each.position)
        now = present(events[-1].position + 1 if events else 0, *self.running, start=self.start)
        rows = [each for each in events if not begin.covers(1, each.position)][:events_max]
        is_full = len(rows) == events_max
        after = now.place
        if is_full:
            after = now.after(begin, rows[-1].history, rows[-1].position)
        page = LogPage(begin, rows, after, now, is_full)
        self.after_page()
        if not is_full:
            self.after_last_page()
        return page


class World:
    """A hub and a reader on a scripted log; the log is followed from its beginning."""

    def __init__(self) -> None:
        self.observed: list[Observation] = []
        self.log = ScriptedLog()
        self.hub = SessionHub(HubSettings(), self.observed.append)
        self.hub.move(place(0))
        self.mailbox: Mailbox[Ask, Stretch] = Mailbox(100)
        self.reader = HistoryReader(
            self.mailbox, self.log, self.observed.append, self.hub.turns.catching_up
        )
        self.reading: asyncio.Task[None] | None = None

    def catch_up(self, session: Session, where: Place | None) -> CatchUp:
        """Return a session's catch-up."""
        return CatchUp(self.mailbox, session, self.hub, where)

    async def all_of(self, *catch_ups: CatchUp) -> list[list[int]]:
        """Read all of them to the end, at the same pace; return the numbers of their events."""
        if self.reading is None:
            self.reading = asyncio.create_task(Run(self.reader, self.observed.append).turns())
        return list(await asyncio.gather(*map(numbers, catch_ups)))


async def numbers(catch_up: CatchUp) -> list[int]:
    """Return the numbers of all that was missed."""
    await catch_up.begin()
    found: list[int] = []
    while (missed := await catch_up.next()) is not None:
        found += log_events.numbers(missed)
    return found


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A world of its own, with small pages."""
    monkeypatch.setattr(history_reader, "PAGE_EVENTS", PAGE_EVENTS)
    return World()


async def test_a_user_gets_what_was_missed_in_order(world: World) -> None:
    """Page by page, from the position on, and of no other user's."""
    world.log.events = [logged(n, ALICE if n % 2 else BOB) for n in range(20, 0, -1)]
    with world.hub.session(ALICE, 1e12) as session:
        catch_up = world.catch_up(session, place(4))
        assert [[5, 7, 9, 11, 13, 15, 17, 19]] == await world.all_of(catch_up)
    assert str(place(21)) == catch_up.position


async def test_a_session_holds_no_more_of_a_page_than_it_may(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event at least; the others it asks for, and gets each once."""
    monkeypatch.setattr(history_reader, "PAGE_EVENTS", 100)
    monkeypatch.setattr(history_reader, "STRETCH_BYTES_MAX", 2 * len(b"{}"))
    world.log.events = [logged(n, ALICE if n % 2 else BOB) for n in range(1, 8)]
    with world.hub.session(ALICE, 1e12) as session:
        catch_up = world.catch_up(session, place(1))
        world.reading = asyncio.create_task(Run(world.reader, world.observed.append).turns())
        await catch_up.begin()
        stretches: list[list[int]] = []
        while (missed := await catch_up.next()) is not None:
            stretches.append(log_events.numbers(missed))
    assert [[1, 3], [5, 7]] == [each for each in stretches if each]
    monkeypatch.setattr(history_reader, "STRETCH_BYTES_MAX", 0)
    with world.hub.session(ALICE, 1e12) as session:
        assert [[3, 5, 7]] == await world.all_of(world.catch_up(session, place(2)))


async def test_who_waits_at_the_same_moment_shares_one_scan(world: World) -> None:
    """Whatever position each of them has left at; who has none reads nothing."""
    world.log.events = [logged(n, ALICE, BOB) for n in range(1, 4)]
    with world.hub.session(ALICE, 1e12) as first, world.hub.session(BOB, 1e12) as second:
        found = await world.all_of(
            *(world.catch_up(first, place(1)) for _ in range(20)),
            *(world.catch_up(second, place(3)) for _ in range(20)),
            world.catch_up(second, None),
        )
    assert [[1, 2, 3]] * 20 + [[3]] * 20 + [[]] == found
    assert [(place(1), [ALICE, BOB])] == world.log.scans


async def test_no_session_gets_again_what_another_one_needs_of_the_scan(world: World) -> None:
    """Each has had other transactions; what ran for one had ended for another."""
    world.log.events = [logged(n) for n in range(1, 6)]
    with world.hub.session(ALICE, 1e12) as session:
        found = await world.all_of(
            *(world.catch_up(session, where) for where in (place(5, 2), place(3), place(4, 1)))
        )
    assert [[2, 5], [3, 4, 5], [1, 4, 5]] == found
    assert place(3, 1, 2) == world.log.scans[0][0]


@pytest.mark.parametrize("other", ["00000000", "ffffffff"])
async def test_a_position_of_another_database_hides_nothing_from_others(
    other: str, world: World
) -> None:
    """A copy may number its histories alike, and a client may send any position."""
    world.log.events = [logged(n, ALICE, BOB) for n in range(1, 4)]
    foreign = place(1000, history=History(1, other))
    with world.hub.session(ALICE, 1e12) as first, world.hub.session(BOB, 1e12) as second:
        catch_ups = world.catch_up(first, foreign), world.catch_up(second, place(2))
        asking = asyncio.gather(*(each.begin() for each in catch_ups), return_exceptions=True)
        await asyncio.sleep(0)
        assert 2 == await world.reader.run_once()
        assert [PositionLost, NoneType] == [type(answer) for answer in await asking]
        assert [2, 3] == log_events.numbers(await catch_ups[1].next() or ())


async def test_who_is_far_ahead_waits_for_a_page_further_on(world: World) -> None:
    """And gets nothing twice."""
    world.log.events = [logged(n, ALICE, BOB) for n in range(1, 12)]
    with world.hub.session(ALICE, 1e12) as first, world.hub.session(BOB, 1e12) as second:
        assert [list(range(1, 12)), [9, 10, 11]] == await world.all_of(
            world.catch_up(first, place(0)), world.catch_up(second, place(9))
        )


async def test_no_position_is_beyond_a_transaction_that_still_ran(world: World) -> None:
    """Its event comes later, and stands before what was sent."""
    world.log.events = [logged(n) for n in range(1, 10) if n != 5]
    world.log.running = (5,)
    with world.hub.session(ALICE, 1e12) as session:
        catch_up = world.catch_up(session, place(1))
        assert [[1, 2, 3, 4, 6, 7, 8, 9]] == await world.all_of(catch_up)
        last = Place.parse(catch_up.position)
        world.log.events.append(logged(5))
        assert [[5]] == await world.all_of(world.catch_up(session, last))


async def test_a_transaction_that_commits_between_two_pages_is_not_passed_over(
    world: World,
) -> None:
    """It stands on a page that was read already."""
    world.log.events = [logged(n) for n in range(1, 10) if n != 2]
    world.log.running = (2,)

    def commit() -> None:
        world.log.running = ()
        world.log.events.append(logged(2))
        world.log.after_page = lambda: None

    world.log.after_page = commit
    with world.hub.session(ALICE, 1e12) as session:
        found = await world.all_of(world.catch_up(session, place(1)))
    assert [[1, 3, 4, 5, 2, 6, 7, 8, 9]] == found


@pytest.mark.parametrize("joins_first", [True, False])
async def test_an_event_between_history_and_live_is_not_lost(
    world: World, joins_first: bool
) -> None:
    """It commits after the page was read: who has joined gets it, who comes later does not."""
    world.log.events = [logged(1)]
    world.log.after_page = lambda: deliver(world.hub, logged(2))
    with world.hub.session(ALICE, 1e12) as session:
        if joins_first:
            assert [[1]] == await world.all_of(world.catch_up(session, place(1)))
            assert [2] == log_events.numbers(await session.take())
            return
    # The twin: history first, then the hub.
    with World().hub.session(ALICE, 1e12) as elsewhere:
        assert [[1]] == await world.all_of(world.catch_up(elsewhere, place(1)))
    with world.hub.session(ALICE, 1e12) as late:
        assert len(late) == 0


async def test_an_event_in_both_history_and_live_comes_once(world: World) -> None:
    """Delivered before the page was read, and after it."""
    world.log.events = [logged(1), logged(2), logged(3)]
    world.log.after_page = lambda: deliver(world.hub, logged(2))
    with world.hub.session(ALICE, 1e12) as session:
        deliver(world.hub, logged(1))
        assert [[1, 2, 3]] == await world.all_of(world.catch_up(session, place(1)))
        deliver(world.hub, logged(3))
        assert len(session) == 0
        deliver(world.hub, logged(4))
        assert len(session) == 1


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_what_comes_live_in_bulk_meanwhile_is_read_from_history(
    world: World, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """More than the session can hold, round after round, each event once; without that, some never."""
    if not is_guarded:
        real = Session.go_live

        def at_once(self: Session, where: Place) -> bool:
            return real(self, where) or real(self, where)

        monkeypatch.setattr(Session, "go_live", at_once)
    monkeypatch.setattr(world.hub, "_settings", HubSettings(session_events_max=PAGE_EVENTS))
    world.log.events = [logged(n) for n in range(1, 20)]
    bursts = iter(range(20, 60, 10))

    def burst() -> None:
        # The last round is a quiet one.
        if (first := next(bursts, None)) is None:
            return
        for number in range(first, first + 10):
            world.log.events.append(logged(number))
            deliver(world.hub, logged(number))

    world.log.after_last_page = burst
    with world.hub.session(ALICE, 1e12) as session:
        (found,) = await world.all_of(world.catch_up(session, place(1)))
        live = log_events.numbers(await session.take()) if len(session) else []
        assert session.close_code is None
    assert is_guarded == (list(range(1, 60)) == found + live)


async def test_who_has_no_position_goes_live_where_the_log_is_followed(world: World) -> None:
    """Nothing is read; what was on its way to others is behind its position."""
    world.hub.move(place(5, 3))
    with world.hub.session(ALICE, 1e12) as session:
        catch_up = world.catch_up(session, None)
        assert [[]] == await world.all_of(catch_up)
        assert str(place(5, 3)) == catch_up.position
        for number in (2, 3, 4, 5):
            deliver(world.hub, logged(number))
        assert [3, 5] == log_events.numbers(await session.take())
    assert [] == world.log.scans


@pytest.mark.parametrize("where", [place(5, history=History(1, "ffffffff")), place(1001)])
async def test_a_place_that_is_not_ours_is_lost_for_its_session_alone(
    world: World, where: Place
) -> None:
    """Of another database, or ahead of this one; others of the same scan are served."""
    world.log.events = [logged(n) for n in range(1, 10)]
    with world.hub.session(ALICE, 1e12) as session:
        foreign, ours = world.catch_up(session, where), world.catch_up(session, place(8))
        reading = asyncio.create_task(Run(world.reader, world.observed.append).turns())
        lost, found = await asyncio.gather(numbers(foreign), numbers(ours), return_exceptions=True)
        reading.cancel()
    assert isinstance(lost, PositionLost)
    assert found == [8, 9]


async def test_a_place_that_was_swept_is_lost_for_its_session_alone(world: World) -> None:
    """Others in the same batch are served; so is the one that left just where the log begins."""
    world.log.events = [logged(5)]
    world.log.start = 5
    with world.hub.session(ALICE, 1e12) as session:
        old, kept = world.catch_up(session, place(4)), world.catch_up(session, place(5))
        reading = asyncio.create_task(Run(world.reader, world.observed.append).turns())
        lost, found = await asyncio.gather(numbers(old), numbers(kept), return_exceptions=True)
        reading.cancel()
    assert isinstance(lost, PositionLost)
    assert found == [5]


async def test_a_sweep_between_two_pages_is_noticed(world: World) -> None:
    """What it took would be missing from the second one."""
    world.log.events = [logged(n) for n in range(1, 10)]
    with world.hub.session(ALICE, 1e12) as session:
        catch_up = world.catch_up(session, place(1))
        world.log.after_page = lambda: setattr(world.log, "start", 9)
        with pytest.raises(PositionLost):
            await world.all_of(catch_up)


@pytest.mark.parametrize("is_patient", [True, False])
async def test_a_page_that_fails_is_read_again_and_closes_no_session(
    world: World, monkeypatch: pytest.MonkeyPatch, is_patient: bool
) -> None:
    """Clients wait for a while; with a reader that gives up at once, all of them get an error."""
    if not is_patient:
        monkeypatch.setattr(history_reader, "RETRY_SECONDS_MAX", 0.0)
    monkeypatch.setattr(history_reader, "BACKOFF", Backoff(1e-6, 1e-6))
    world.log.events = [logged(n, ALICE, BOB) for n in range(1, 12)]
    world.log.errors = [Unreachable("cut"), ReadCancelled("slow")]
    with world.hub.session(ALICE, 1e12) as first, world.hub.session(BOB, 1e12) as second:
        reading = asyncio.create_task(Run(world.reader, world.observed.append).turns())
        found = await asyncio.gather(
            numbers(world.catch_up(first, place(0))),
            numbers(world.catch_up(second, place(9))),
            return_exceptions=True,
        )
        reading.cancel()
    if is_patient:
        assert [list(range(1, 12)), [9, 10, 11]] == list(found)
        assert ["cut", "slow"] == [
            str(e.error) for e in world.observed if isinstance(e, UpkeepFailed)
        ]
    else:
        assert [Unreachable, Unreachable] == [type(each) for each in found]


async def test_every_session_that_waits_learns_that_history_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one is served, after a failure outside as after a bug."""
    monkeypatch.setattr(history_reader, "RETRY_SECONDS_MAX", 0.0)
    monkeypatch.setattr(history_reader, "BACKOFF", Backoff(1e-6, 1e-6))
    with world.hub.session(ALICE, 1e12) as session:
        for error, raised in ((Unreachable("away"), Unreachable), (KeyError(), InternalError)):
            world.log.errors = [error]
            with pytest.raises(raised):
                await world.all_of(world.catch_up(session, place(0)))
        assert [[]] == await world.all_of(world.catch_up(session, place(0)))
    assert [ActorCrashed] == [
        type(each) for each in world.observed if isinstance(each, ActorCrashed)
    ]


@pytest.mark.parametrize("is_kept", [True, False])
async def test_sessions_at_any_places_cost_about_one_scan_of_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """While the log has no events for them; if each was answered page by page, they cost far more."""
    monkeypatch.setattr(history_reader, "ANSWER_SECONDS_MAX", 60.0 if is_kept else 0.0)
    if not is_kept:
        monkeypatch.setattr(CatchUp, "_ask", _slow_ask)
    pages, sessions = 60, 20
    world.log.events = [logged(n, BOB) for n in range(1, pages * PAGE_EVENTS)]
    with world.hub.session(ALICE, 1e12) as session:
        places = [place(1 + n * pages * PAGE_EVENTS // sessions) for n in range(sessions)]
        found = await world.all_of(*(world.catch_up(session, each) for each in places))
    assert [[]] * sessions == found
    is_shared = len(world.log.scans) <= pages * 4 // 3 + 2
    assert is_kept == is_shared, len(world.log.scans)


async def _slow_ask(catch_up: CatchUp, where: Place) -> Stretch:
    """Ask as a client does that needs a moment to write what it was answered."""
    for _ in range(5):
        await asyncio.sleep(0)
    return await catch_up._mailbox.ask(Ask(catch_up._session.user, where))


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_who_resumes_near_the_present_does_not_wait_for_a_scan_of_the_log(
    world: World, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """One user's sessions scan all of it; if every page was the scan's, others would wait."""
    if not is_guarded:
        monkeypatch.setattr(scan, "OWN_PAGE_EVERY", 10**6)
    world.log.events = [logged(n, BOB) for n in range(1, 100 * PAGE_EVENTS)]
    with world.hub.session(ALICE, 1e12) as old, world.hub.session(BOB, 1e12) as recent:
        near = world.catch_up(recent, place(100 * PAGE_EVENTS - 2))
        catch_ups = [world.catch_up(old, place(1 + n)) for n in range(0, 300, 10)]

        began = asyncio.Event()
        world.log.after_page = began.set

        async def pages_of_near() -> int:
            await began.wait()
            before = len(world.log.scans)
            await near.begin()
            return len(world.log.scans) - before

        _, pages = await asyncio.gather(world.all_of(*catch_ups), pages_of_near())
    assert is_guarded == (pages <= 2 * 4), pages


async def test_newcomers_at_the_beginning_of_the_log_hold_back_no_other(world: World) -> None:
    """However many come, the scan goes on to those that wait further on."""
    world.log.events = [logged(n, BOB) for n in range(1, 20 * PAGE_EVENTS)]
    with world.hub.session(ALICE, 1e12) as old:
        newcomers: list[asyncio.Future[Stretch]] = []
        world.log.after_page = lambda: newcomers.append(world.mailbox.ask(Ask(ALICE, place(1))))
        reading = asyncio.create_task(Run(world.reader, world.observed.append).turns())
        async with asyncio.timeout(10):
            await world.catch_up(old, place(1)).begin()
        assert len(world.log.scans) <= 20 * 4 // 3 + 2
        world.reader.stop()
        reading.cancel()
        await asyncio.gather(*newcomers, reading, return_exceptions=True)


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("number", [0, 2])
async def test_positions_that_are_none_of_this_log_hold_back_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, is_guarded: bool
) -> None:
    """Any client may send them, again and again; a page that begins there is of no use to others."""
    if not is_guarded:
        monkeypatch.setattr(
            HistoryReader,
            "_waiting",
            lambda _, ask, page, at: Waiting(ask, ask.message.place, page, at, is_known=True),
        )
    monkeypatch.setattr(history_reader, "ANSWER_SECONDS_MAX", 60.0)
    world.log.events = [logged(n, BOB) for n in range(1, 20 * PAGE_EVENTS)]
    foreign = Ask(BOB, place(1, history=History(number, "00000000")))
    newcomers = [world.mailbox.ask(foreign)]
    world.log.after_page = lambda: newcomers.append(world.mailbox.ask(foreign))
    with world.hub.session(ALICE, 1e12) as old:
        reading = asyncio.create_task(Run(world.reader, world.observed.append).turns())
        async with asyncio.timeout(10):
            await world.catch_up(old, place(1)).begin()
        pages = len(world.log.scans)
        world.reader.stop()
        reading.cancel()
    lost = await asyncio.gather(*newcomers, return_exceptions=True)
    assert any(isinstance(each, PositionLost) for each in lost)
    assert is_guarded == (pages <= 20 + 2), pages


async def test_a_position_that_was_ahead_of_the_last_page_is_read_from(world: World) -> None:
    """The log has grown since: it is known with the next page, wherever that begins."""
    world.log.events = [logged(n, BOB) for n in range(1, PAGE_EVENTS)]
    with world.hub.session(ALICE, 1e12) as old, world.hub.session(BOB, 1e12) as recent:
        assert [[]] == await world.all_of(world.catch_up(old, place(1)))
        world.log.events = [logged(n, BOB) for n in range(1, 100 * PAGE_EVENTS)]
        near = world.catch_up(recent, place(100 * PAGE_EVENTS - 2))

        async def pages_of_near() -> int:
            before = len(world.log.scans)
            await near.begin()
            return len(world.log.scans) - before

        _, pages = await asyncio.gather(
            world.all_of(world.catch_up(old, place(1))), pages_of_near()
        )
    assert pages <= 2 * 4, pages


async def test_sessions_that_name_many_transactions_share_pages_that_name_few(
    world: World,
) -> None:
    """Clients choose what they name; each gets exactly what it lacks nevertheless."""
    world.log.events = [logged(n) for n in range(1, 61)]
    named = range(1, RUNNING_MAX + 10)
    with world.hub.session(ALICE, 1e12) as session:
        found = await world.all_of(*(world.catch_up(session, place(50, n)) for n in named))
    assert [[n, *range(50, 61)] for n in named] == found
    assert RUNNING_MAX >= max(len(begin.running) for begin, _ in world.log.scans)


async def test_more_transactions_than_a_place_names_make_no_page_be_read_twice(
    world: World,
) -> None:
    """The scan knows how far it has come, also where that takes more names than a client's position."""
    first, pages = RUNNING_MAX + 10, 30
    world.log.running = tuple(range(1, first))
    world.log.events = [logged(n, BOB) for n in range(first, first + pages * PAGE_EVENTS)]
    with world.hub.session(ALICE, 1e12) as session:
        assert [[]] == await world.all_of(world.catch_up(session, place(1)))
    # A third more: of four pages, one is the session's own.
    assert len(world.log.scans) <= 4 * pages / 3 + 2


async def test_waits_for_one_page_end_some_in_each_turn_of_the_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand sessions may wait; each has the same events, whichever turn it gets."""
    monkeypatch.setattr(history_reader, "ANSWERS_PER_TURN", 5)
    world.log.events = [logged(1), logged(2)]
    answered: list[int] = []
    with counted_turns() as turn:
        asks = [world.mailbox.ask(Ask(ALICE, place(1 + n % 2))) for n in range(40)]
        for ask in asks:
            ask.add_done_callback(lambda _: answered.append(turn()))
        await world.reader.run_once()
        stretches = await asyncio.gather(*asks)
    assert 5 == max(answered.count(number) for number in answered)
    assert [[1, 2], [2]] * 20 == [log_events.numbers(each.events) for each in stretches]


async def test_sessions_that_begin_at_once_begin_in_turns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may wait until the log is followed; those whose wait fails are as many."""
    began: list[int] = []
    world.hub.move(None)
    with ExitStack() as stack, counted_turns() as turn:

        async def begin(session: Session) -> None:
            with suppress(Unreachable):
                await world.catch_up(session, None).begin()
            began.append(turn())

        for is_followed in (True, False):
            began.clear()
            world.hub.move(None)
            users = (UserId(f"user-{is_followed}-{number}") for number in range(100))
            sessions = [stack.enter_context(world.hub.session(user, 1e12)) for user in users]
            tasks = [asyncio.create_task(begin(session)) for session in sessions]
            await asyncio.sleep(0)
            if is_followed:
                world.hub.move(place(1))
            else:
                # As a stop has it: all wake, and the log is not followed.
                world.hub._placed.set()
            await asyncio.gather(*tasks)
            most = max(began.count(number) for number in began)
            assert most <= 2 * SENDS_PER_TURN / OPENING_SENDS


async def test_the_scan_waits_for_sessions_that_send_but_not_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next page is then for all of them; one who has missed less has a page at once."""
    monkeypatch.setattr(scan, "GATHER_SECONDS_MAX", 1000.0)
    world.log.events = [logged(n, ALICE, BOB) for n in range(1, 20)]
    await asyncio.gather(world.mailbox.ask(Ask(ALICE, place(1))), world.reader.run_once())
    turns = world.hub.turns.catching_up
    for _ in range(100 * SENDS_PER_TURN):
        turns.call(ALICE, lambda: 1)
    behind = world.mailbox.ask(Ask(ALICE, place(5)))
    reading = asyncio.create_task(world.reader.run_once())
    await asyncio.sleep(0)
    ahead = world.mailbox.ask(Ask(BOB, place(18)))
    assert [18, 19] == log_events.numbers((await ahead).events)
    assert (False, True) == (behind.done(), turns.is_behind)
    assert [place(1), place(18)] == [begin for begin, _ in world.log.scans]
    world.reader._scan._due_at = 0.0
    assert [5, 6, 7, 8] == log_events.numbers((await behind).events)
    assert turns.is_behind
    await reading


async def test_the_scan_goes_on_once_all_have_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sessions that ask meanwhile share its page."""
    monkeypatch.setattr(scan, "GATHER_SECONDS_MAX", 1000.0)
    world.log.events = [logged(n) for n in range(1, 7)]
    await asyncio.gather(world.mailbox.ask(Ask(ALICE, place(1))), world.reader.run_once())
    for _ in range(10 * SENDS_PER_TURN):
        world.hub.turns.catching_up.call(ALICE, lambda: 1)
    reading = asyncio.create_task(world.reader.run_once())
    asks: list[asyncio.Future[Stretch]] = []
    for _ in range(5):
        asks.append(world.mailbox.ask(Ask(ALICE, place(5))))
        await asyncio.sleep(0)
    assert world.hub.turns.catching_up.is_behind
    stretches = await asyncio.gather(*asks)
    assert [[5, 6]] * len(asks) == [log_events.numbers(each.events) for each in stretches]
    assert [place(1), place(5)] == [begin for begin, _ in world.log.scans]
    await reading
