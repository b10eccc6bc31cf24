"""The outbox as history: events in the order of their positions, for sessions that resume."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from stretto.events.event import CommittedEvent
from stretto.events.history import HistoryBounds, HistoryPage, PastEvent
from stretto.events.positions import Cursor, Origin, Position
from stretto.postgres.connections import Lane
from stretto.postgres.outbox import envelope
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.domain import UserId
    from stretto.postgres.connections import Database

# A statement of a few milliseconds, whatever the filter: rows are counted before it.
PAGE_EVENTS: Final = 500
# Most events are for one of more users than this: comparing would cost more than sending.
FILTERED_USERS_MAX: Final = 64
_ORIGIN_CHARACTERS: Final = 8


class PostgresHistoryStore:
    """Reads of the outbox; each raises `Unreachable` where the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self) -> None:
        """Begin history here if its start is another server's: else no session could resume."""
        async with self._database.upkeep() as connection:
            # A read comes first: a server that takes no writes now does not prevent the start.
            if await connection.fetchval(QUERIES["is_history_foreign"]):
                await connection.execute(QUERIES["open_history"])

    async def origin(self) -> Origin:
        """Return what distinguishes this database's positions from those of another."""
        async with self._database.connection(Lane.HISTORY) as connection:
            identity = await connection.fetchval(QUERIES["history_origin"])
        return Origin(hashlib.sha256(identity.encode()).hexdigest()[:_ORIGIN_CHARACTERS])

    async def bounds(self) -> HistoryBounds:
        """Return the bounds of history now."""
        async with self._database.connection(Lane.HISTORY) as connection:
            row = await connection.fetchrow(QUERIES["history_bounds"])
        assert row is not None
        return HistoryBounds(**row)

    async def page(self, after: Cursor, users: Sequence[UserId]) -> HistoryPage:
        """Return events behind the cursor; those of other users may be left out."""
        wanted = users if len(users) <= FILTERED_USERS_MAX else None
        async with self._database.connection(Lane.HISTORY) as connection:
            rows = await connection.fetch(
                QUERIES["history_page"], after.position, after.event_id, wanted, PAGE_EVENTS
            )
            # After the rows, so that it covers whatever was swept before they were read.
            start = await connection.fetchval(QUERIES["history_start"])
        events = [
            PastEvent(
                CommittedEvent(
                    row["event_id"],
                    tuple(row["recipients"]),
                    envelope(row),
                    Position(row["position"]),
                ),
                is_under_way=row["is_under_way"],
            )
            for row in rows
        ]
        is_full = bool(rows) and rows[-1]["number"] == PAGE_EVENTS
        return HistoryPage(events, events[-1].cursor if is_full else None, Position(start))
