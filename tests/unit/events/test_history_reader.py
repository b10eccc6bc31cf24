"""What is told of the past, with a history of the test's own: batches, pages, races."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.domain import UserId
from stretto.errors import InternalError, ReadCancelled, Unreachable
from stretto.events import history_reader
from stretto.events.catch_up import CatchUp
from stretto.events.event import CommittedEvent
from stretto.events.history import HistoryBounds, HistoryPage, PastEvent
from stretto.events.history_reader import Ask, HistoryReader, Stretch
from stretto.events.hub import HubSettings, SessionHub
from stretto.events.positions import ClientPosition, Cursor, Origin, Position, PositionLost
from stretto.events.session import Session
from stretto.observations import ActorCrashed, UpkeepTrouble
from stretto.runtime.backoff import Backoff
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.observations import Observation

ALICE, BOB = UserId("alice"), UserId("bob")
ORIGIN = Origin("0a1b2c3d")
PAGE_EVENTS = 4


def event(number: int, *recipients: str) -> CommittedEvent:
    """Return an event at a position of the same number."""
    return CommittedEvent(UUID(int=number), recipients or (ALICE,), b"{}", Position(number))


def bookmark(number: int) -> ClientPosition:
    """Return what a client was told."""
    return ClientPosition(Position(number), ORIGIN)


class ScriptedHistory:
    """Commits and pages in memory; tests may do something in between."""

    def __init__(self) -> None:
        self.events: list[CommittedEvent] = []
        self.under_way: set[UUID] = set()
        self.settled = Position(1000)
        self.start = Position(0)
        self.pages: list[Sequence[UserId]] = []
        self.after_bounds: Callable[[], object] = lambda: None
        self.after_page: Callable[[], object] = lambda: None
        self.after_last_page: Callable[[], object] = lambda: None
        self.error: Exception | None = None
        self.page_errors: list[Exception] = []

    async def bounds(self) -> HistoryBounds:
        if self.error is not None:
            raise self.error
        bounds = HistoryBounds(self.settled, self.settled, Position(1000))
        self.after_bounds()
        return bounds

    async def page(self, after: Cursor, users: Sequence[UserId]) -> HistoryPage:
        self.pages.append(users)
        if self.page_errors:
            raise self.page_errors.pop(0)
        past = [PastEvent(each, each.event_id in self.under_way) for each in self.events]
        rows = sorted((p for p in past if p.cursor > after), key=lambda each: each.cursor)
        rows = rows[:PAGE_EVENTS]
        end = rows[-1].cursor if len(rows) == PAGE_EVENTS else None
        page = HistoryPage(rows, end, self.start)
        self.after_page()
        if end is None:
            self.after_last_page()
        return page


class World:
    """A hub and a reader on a scripted history."""

    def __init__(self) -> None:
        self.told: list[Observation] = []
        self.store = ScriptedHistory()
        self.hub = SessionHub(ORIGIN, HubSettings(), self.told.append)
        self.mailbox: Mailbox[Ask, Stretch] = Mailbox(100)
        self.reader = HistoryReader(self.mailbox, self.store, ORIGIN, self.told.append)

    def replay(self, session: Session, since: ClientPosition | None) -> CatchUp:
        """Return a session's replay."""
        return CatchUp(self.mailbox, session, ORIGIN, since)

    async def all_of(self, *replays: CatchUp) -> list[list[int]]:
        """Read all of them to the end, at the same pace; return the numbers of their events."""
        reading = asyncio.create_task(Run(self.reader, self.told.append).turns())
        try:
            return list(await asyncio.gather(*map(numbers, replays)))
        finally:
            reading.cancel()


async def numbers(replay: CatchUp) -> list[int]:
    """Return the numbers of all that was missed."""
    await replay.begin()
    found: list[int] = []
    while (missed := await replay.next()) is not None:
        found += [each.event_id.int for each in missed]
    return found


@pytest.fixture
def world() -> World:
    """A world of its own."""
    return World()


async def test_a_user_is_told_what_he_has_missed_in_order(world: World) -> None:
    """Page by page, from the position on, and of nobody else's."""
    world.store.events = [event(n, ALICE if n % 2 else BOB) for n in range(20, 0, -1)]
    with world.hub.session(ALICE, 1e12) as session:
        assert [[5, 7, 9, 11, 13, 15, 17, 19]] == await world.all_of(
            world.replay(session, bookmark(4))
        )


async def test_who_waits_at_the_same_moment_shares_one_scan(world: World) -> None:
    """Whatever position each of them has left at."""
    world.store.events = [event(n, ALICE, BOB) for n in range(1, 4)]
    with world.hub.session(ALICE, 1e12) as first, world.hub.session(BOB, 1e12) as second:
        found = await world.all_of(
            *(world.replay(first, bookmark(1)) for _ in range(20)),
            *(world.replay(second, bookmark(3)) for _ in range(20)),
            world.replay(second, None),
        )
    assert [[1, 2, 3]] * 20 + [[3]] * 20 + [[]] == found
    assert [[ALICE, BOB]] == world.store.pages


async def test_who_is_far_ahead_waits_for_a_page_of_his_own(world: World) -> None:
    """And is told nothing twice."""
    world.store.events = [event(n, ALICE, BOB) for n in range(1, 12)]
    with world.hub.session(ALICE, 1e12) as first, world.hub.session(BOB, 1e12) as second:
        assert [list(range(1, 12)), [9, 10, 11]] == await world.all_of(
            world.replay(first, bookmark(0)), world.replay(second, bookmark(9))
        )


async def test_no_told_place_is_behind_a_transaction_that_still_ran(world: World) -> None:
    """Its event may come later and stand before what was told."""
    world.store.events = [event(n) for n in range(1, 10)]
    world.store.settled = Position(5)
    with world.hub.session(ALICE, 1e12) as session:
        replay = world.replay(session, bookmark(1))
        # It ends between two pages: the first page's moment is the one that counts.
        world.store.after_page = lambda: setattr(world.store, "settled", Position(1000))
        reading = asyncio.create_task(Run(world.reader, world.told.append).turns())
        assert "1.0a1b2c3d" == await replay.begin()
        told = []
        while (missed := await replay.next()) is not None:
            told += [each.position for each in missed]
        reading.cancel()
    assert [f"{min(n, 5)}.0a1b2c3d" for n in range(1, 10)] == told
    assert "5.0a1b2c3d" == replay.present


@pytest.mark.parametrize("takes_part_first", [True, False])
async def test_an_event_between_history_and_live_is_not_lost(
    world: World, takes_part_first: bool
) -> None:
    """It commits after the page was read: who takes part has it, whoever came later does not."""
    world.store.events = [event(1)]
    world.store.after_page = lambda: world.hub.deliver(event(2))
    with world.hub.session(ALICE, 1e12) as session:
        if takes_part_first:
            assert [[1]] == await world.all_of(world.replay(session, bookmark(1)))
            (live,) = await session.take()
            assert live.event_id.int == 2
            return
    # The twin: history first, then the hub.
    with World().hub.session(ALICE, 1e12) as elsewhere:
        assert [[1]] == await world.all_of(world.replay(elsewhere, bookmark(1)))
    with world.hub.session(ALICE, 1e12) as late:
        assert len(late) == 0


async def test_an_event_in_both_history_and_live_is_told_once(world: World) -> None:
    """Delivered before the page was read, and after it."""
    world.store.events = [event(1), event(2), event(3)]
    world.store.under_way = {UUID(int=2), UUID(int=3)}
    world.store.after_bounds = lambda: world.hub.deliver(event(1))
    world.store.after_page = lambda: world.hub.deliver(event(2))
    with world.hub.session(ALICE, 1e12) as session:
        assert [[1, 2, 3]] == await world.all_of(world.replay(session, bookmark(1)))
        world.hub.deliver(event(3))
        assert len(session) == 0
        world.hub.deliver(event(4))
        assert len(session) == 1


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_what_comes_live_in_bulk_meanwhile_is_told_from_history(
    world: World, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """More than the session can hold, round after round, each event once; without that, some never."""
    if not is_guarded:
        monkeypatch.setattr(Session, "go_live", lambda _: True)
    monkeypatch.setattr(world.hub, "_settings", HubSettings(session_events_max=PAGE_EVENTS))
    world.store.events = [event(n) for n in range(1, 20)]
    bursts = iter(range(20, 60, 10))

    def burst() -> None:
        # The last round is a quiet one.
        if (first := next(bursts, None)) is None:
            return
        for number in range(first, first + 10):
            world.store.events.append(event(number))
            world.hub.deliver(event(number))
        # Others still run: each round finds again what the one before has told.
        world.store.settled = Position(first - 5)

    world.store.settled = Position(15)
    world.store.after_last_page = burst
    with world.hub.session(ALICE, 1e12) as session:
        (found,) = await world.all_of(world.replay(session, bookmark(1)))
        live = [each.event_id.int for each in await session.take()] if len(session) else []
        assert session.close_code is None
    assert is_guarded == (list(range(1, 60)) == found + live)


@pytest.mark.parametrize("since", [ClientPosition(Position(5), Origin("ffffffff")), bookmark(1001)])
async def test_a_place_that_is_not_ours_is_lost(world: World, since: ClientPosition) -> None:
    """Of another database, or ahead of this one."""
    with world.hub.session(ALICE, 1e12) as session:
        with pytest.raises(PositionLost):
            await world.all_of(world.replay(session, since))
        assert [[]] == await world.all_of(world.replay(session, bookmark(1000)))


async def test_a_place_that_was_swept_is_lost_for_him_alone(world: World) -> None:
    """Others in the same batch are served; so is he who left just where history begins."""
    world.store.events = [event(5)]
    world.store.start = Position(5)
    with world.hub.session(ALICE, 1e12) as session:
        old, kept = world.replay(session, bookmark(4)), world.replay(session, bookmark(5))
        reading = asyncio.create_task(Run(world.reader, world.told.append).turns())
        lost, found = await asyncio.gather(numbers(old), numbers(kept), return_exceptions=True)
        reading.cancel()
    assert isinstance(lost, PositionLost)
    assert found == [5]


async def test_a_sweep_between_two_pages_is_told(world: World) -> None:
    """What it took would be missing from the second one."""
    world.store.events = [event(n) for n in range(1, 10)]
    with world.hub.session(ALICE, 1e12) as session:
        replay = world.replay(session, bookmark(1))
        world.store.after_page = lambda: setattr(world.store, "start", Position(9))
        with pytest.raises(PositionLost):
            await world.all_of(replay)


@pytest.mark.parametrize("is_patient", [True, False])
async def test_a_page_that_fails_is_read_again_and_closes_no_session(
    world: World, monkeypatch: pytest.MonkeyPatch, is_patient: bool
) -> None:
    """Clients wait for a while; with a reader that gives up at once, the farthest behind end them all."""
    if not is_patient:
        monkeypatch.setattr(history_reader, "RETRY_SECONDS_MAX", 0.0)
    monkeypatch.setattr(history_reader, "BACKOFF", Backoff(1e-6, 1e-6))
    world.store.events = [event(n, ALICE, BOB) for n in range(1, 12)]
    world.store.page_errors = [Unreachable("cut"), ReadCancelled("slow")]
    with world.hub.session(ALICE, 1e12) as first, world.hub.session(BOB, 1e12) as second:
        reading = asyncio.create_task(Run(world.reader, world.told.append).turns())
        found = await asyncio.gather(
            numbers(world.replay(first, bookmark(0))),
            numbers(world.replay(second, bookmark(9))),
            return_exceptions=True,
        )
        reading.cancel()
    if is_patient:
        assert [list(range(1, 12)), [9, 10, 11]] == list(found)
        assert ["cut", "slow"] == [str(e.error) for e in world.told if isinstance(e, UpkeepTrouble)]
    else:
        assert [Unreachable, Unreachable] == [type(each) for each in found]


async def test_everybody_who_waits_is_told_that_history_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one is served, whether the world or the program was at fault."""
    monkeypatch.setattr(history_reader, "RETRY_SECONDS_MAX", 0.0)
    monkeypatch.setattr(history_reader, "BACKOFF", Backoff(1e-6, 1e-6))
    with world.hub.session(ALICE, 1e12) as session:
        for error, raised in ((Unreachable("away"), Unreachable), (KeyError(), InternalError)):
            world.store.error = error
            with pytest.raises(raised):
                await world.all_of(world.replay(session, bookmark(1)))
        world.store.error = None
        assert [[]] == await world.all_of(world.replay(session, bookmark(1)))
    assert [ActorCrashed] == [type(each) for each in world.told if isinstance(each, ActorCrashed)]


@pytest.mark.parametrize("text", ["", "7", "7.", ".0a1b2c3d", "7.0A1B2C3D", "7.0a1b2c3", "7.0a1b2c3d4", "-7.0a1b2c3d", "\u0667.0a1b2c3d", f"{2**64}.0a1b2c3d", "7.0a1b2c3d\n"])  # fmt: skip
def test_what_was_never_told_is_no_bookmark(text: str) -> None:
    """It is a fault of the client's program, not of time."""
    with pytest.raises(ValueError, match=r"^"):
        ClientPosition.parse(text)


def test_a_bookmark_survives_the_way_to_a_client_and_back() -> None:
    """As text."""
    assert bookmark(2**64 - 1) == ClientPosition.parse(str(bookmark(2**64 - 1)))
