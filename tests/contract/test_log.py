"""The log in memory reads as PostgreSQL's does: what is explored and drawn by chance rests on it."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stretto.events.place import Place
from stretto.postgres.connections import Database
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from support.database import commit_event, connect
from support.memory_log import MemoryLog, MemoryLogStore

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.events.log import LogPage, LogStore
    from support.database import Connection

STEPS = 60
RUNNING_MAX = 3


@dataclass(slots=True)
class BothLogs:
    """The same transactions in both; PostgreSQL gives them other ids, in the same order."""

    url: str
    stack: AsyncExitStack
    # In a database that no service has written to, there is one history.
    memory: MemoryLog = field(default_factory=lambda: MemoryLog(timeline=0))
    running: dict[int, Connection] = field(default_factory=dict)
    positions: dict[UUID, tuple[int, int]] = field(default_factory=dict)
    """Of each event, its position in memory and in PostgreSQL."""

    async def begin(self) -> None:
        """Begin a transaction that has an id."""
        connection = await connect(self.url)
        self.stack.callback(connection.terminate)
        await connection.execute("BEGIN")
        self.running[self.memory.begin()] = connection
        await connection.fetchval("SELECT pg_current_xact_id()")

    async def write(self, position: int) -> None:
        """Insert an event."""
        event = self.memory.write(position, "alice")
        connection = self.running[position]
        await commit_event(connection, ("alice",), event_id=event.event_id)
        own: int = await connection.fetchval("SELECT pg_current_xact_id()::text::bigint")
        self.positions[event.event_id] = position, own

    async def end(self, position: int, *, is_committed: bool) -> None:
        """Commit, or roll back."""
        connection = self.running.pop(position)
        await connection.execute("COMMIT" if is_committed else "ROLLBACK")
        (self.memory.commit if is_committed else self.memory.roll_back)(position)
        await connection.close()

    def alike(self, one: LogPage, other: LogPage) -> None:
        """Require that two pages say the same of every event, also of those that are to come."""
        assert ids(one) == ids(other)
        assert one.is_full == other.is_full
        self.alike_places(one.place, other.place)
        ways = zip(one.numbered(), other.numbered(), strict=True)
        for (_, first), (_, second) in ways:
            self.alike_places(Place.parse(first), Place.parse(second))

    def alike_places(self, one: Place, other: Place) -> None:
        """Require that two places cover the same events."""
        for event, (first, second) in self.positions.items():
            assert one.covers(0, first) == other.covers(0, second), event


def ids(page: LogPage) -> list[UUID]:
    """Return the ids of a page's events."""
    return [event.event.event_id for event in page.events]


@pytest.mark.parametrize("seed", range(5))
async def test_both_logs_are_read_alike(seed: int, database_url: str) -> None:
    """Page by page, from places of any age, with transactions that end in any order."""
    choices = random.Random(seed)
    async with Database(database_url) as database, AsyncExitStack() as stack:
        both = BothLogs(database_url, stack)
        stores: tuple[LogStore, LogStore] = (
            MemoryLogStore(both.memory),
            PostgresLogStore(partial(database.connection, Lane.HISTORY)),
        )
        places = [(await stores[0].present(), await stores[1].present())]
        for _ in range(STEPS):
            running = sorted(both.running)
            match choices.choice(
                ["begin", "write", "write", "commit", "roll back", "read", "read"]
            ):
                case "begin" if len(running) < RUNNING_MAX:
                    await both.begin()
                case "write" if running:
                    await both.write(choices.choice(running))
                case ("commit" | "roll back") as how if running:
                    await both.end(choices.choice(running), is_committed=how == "commit")
                case "read":
                    events_max, begin = choices.randint(1, 4), choices.choice(places)
                    pages = [
                        await store.page(place, events_max)
                        for store, place in zip(stores, begin, strict=True)
                    ]
                    both.alike(*pages)
                    places.append((pages[0].place, pages[1].place))
        assert both.positions


@pytest.mark.parametrize("users", [["alice"], ["bob"], ["alice", "bob"]])
async def test_events_of_other_users_move_the_place_as_well(
    users: list[str], database_url: str, connection: Connection
) -> None:
    """They may be left out; whatever is read of them is behind the reader."""
    memory = MemoryLog(timeline=0)
    async with Database(database_url) as database:
        store = PostgresLogStore(partial(database.connection, Lane.HISTORY))
        begin = memory.look().place, await store.present()
        for user in ("alice", "bob", "bob", "alice"):
            position = memory.begin()
            event = memory.write(position, user)
            memory.commit(position)
            await commit_event(connection, (user,), event_id=event.event_id)
        pages = (
            await MemoryLogStore(memory).page(begin[0], 3, users),  # type: ignore[arg-type]
            await store.page(begin[1], 3, users),  # type: ignore[arg-type]
        )
        left = (
            await MemoryLogStore(memory).page(pages[0].place, 3),
            await store.page(pages[1].place, 3),
        )
    wanted = [event for event in ids(pages[1]) if event in ids(pages[0])]
    assert ids(pages[0]) == wanted
    assert ids(left[0]) == ids(left[1])
    assert [len(each.events) for each in left] == [1, 1]
