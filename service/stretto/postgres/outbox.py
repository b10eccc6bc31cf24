"""The outbox: where events wait for the relay, and the document that is published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from stretto.events.event import CommittedEvent
from stretto.events.outbox import PAUSE_SECONDS_MAX
from stretto.events.positions import Position
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    import asyncpg

    from stretto.events.outbox import RefusalLimits
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection

SOURCE: Final = "urn:stretto"


def envelope(row: asyncpg.Record) -> bytes:
    """Return a row as a CloudEvents 1.0 document in JSON: the same bytes on every way out."""
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": str(row["event_id"]),
            "source": SOURCE,
            "type": row["event_type"],
            "subject": str(row["subject"]),
            "time": row["created_at"].isoformat(),
            "datacontenttype": "application/json",
            "data": orjson.Fragment(row["payload"]),
        }
    )


class PostgresOutboxStore:
    """A relay's statements. They do not wait for the disk: what a crash undoes is done again."""

    def __init__(
        self, database: Database, now: Callable[[], datetime | None] = lambda: None
    ) -> None:
        self._database = database
        self._now = now

    async def take(self, events_max: int, lease_seconds: float) -> list[CommittedEvent]:
        """Lease due events, the oldest first."""
        async with self._database.upkeep() as connection:
            rows = await connection.fetch(
                QUERIES["take"], events_max, lease_seconds, self._now(), PAUSE_SECONDS_MAX
            )
        rows.sort(key=lambda row: (row["position"], row["event_id"]))
        return [_event(row) for row in rows]

    async def oldest_seconds(self) -> float | None:
        """Return the age of the oldest event that is not published yet, if there is one."""
        async with self._database.upkeep() as connection:
            age: float | None = await connection.fetchval(
                QUERIES["oldest_unpublished"], self._now()
            )
        return age

    async def mark(self, event_ids: Collection[UUID]) -> None:
        """Record that these events were published."""
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["mark"], list(event_ids), self._now())

    async def release(self, event_ids: Collection[UUID]) -> None:
        """End the lease of events that were not published."""
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["release"], list(event_ids), self._now())

    async def refuse(self, reasons: Mapping[UUID, str], limits: RefusalLimits) -> set[UUID]:
        """Postpone events that the bus refused; return those that are now dead letters."""
        async with self._database.upkeep() as connection:
            rows = await connection.fetch(
                QUERIES["refuse"],
                list(reasons),
                [_storable(reason) for reason in reasons.values()],
                limits.tries_max,
                limits.pause_seconds_first,
                limits.pause_seconds_max,
                self._now(),
            )
        return {row["event_id"] for row in rows}


async def dead_letters(connection: Connection, limit: int) -> list[asyncpg.Record]:
    """Return the dead letters, the oldest first."""
    return await connection.fetch(QUERIES["dead_letters"], limit)


async def retry_dead_letters(connection: Connection, event_ids: Sequence[UUID] | None) -> int:
    """Have dead letters tried again, all of them if no id is given; return how many there were."""
    return len(await connection.fetch(QUERIES["retry_dead_letters"], event_ids))


def _event(row: asyncpg.Record) -> CommittedEvent:
    return CommittedEvent(
        row["event_id"], tuple(row["recipients"]), envelope(row), Position(row["resume_position"])
    )


def _storable(reason: str) -> str:
    """Return the reason that a bus gave as text that the database takes."""
    printable = reason.encode(errors="replace").decode().replace("\0", "")
    return printable or "refused without a reason"
