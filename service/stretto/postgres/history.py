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

# A statement of a few milliseconds, whoever the events are for: rows are counted before the filter.
PAGE_EVENTS: Final = 500
# With more users than this most events are for one of them, and comparing costs more than sending.
FILTERED_USERS_MAX: Final = 64
_ORIGIN_CHARACTERS: Final = 8


class PostgresHistoryStore:
    """Reads of the outbox; each raises `Unreachable` where the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def open(self) -> None:
        """Have history begin here where its start is another server's: nobody could resume else."""
        async with self._database.tending() as connection:
            # First ask: a server that takes no writes now is no reason not to start.
            if await connection.fetchval(QUERIES["is_history_foreign"]):
                await connection.execute(QUERIES["open_history"])

    async def origin(self) -> Origin:
        """Return what tells this database's positions from another one's."""
        async with self._database.reading(Lane.HISTORY) as connection:
            identity = await connection.fetchval(QUERIES["history_origin"])
        return Origin(hashlib.sha256(identity.encode()).hexdigest()[:_ORIGIN_CHARACTERS])

    async def bounds(self) -> HistoryBounds:
        """Return where history stands now."""
        async with self._database.reading(Lane.HISTORY) as connection:
            row = await connection.fetchrow(QUERIES["history_bounds"])
        assert row is not None
        return HistoryBounds(**row)

    async def page(self, after: Cursor, users: Sequence[UserId]) -> HistoryPage:
        """Return a stretch of what is behind the cursor; others than the users' may be left out."""
        wanted = users if len(users) <= FILTERED_USERS_MAX else None
        async with self._database.reading(Lane.HISTORY) as connection:
            rows = await connection.fetch(
                QUERIES["history_page"], after.position, after.event_id, wanted, PAGE_EVENTS
            )
            # After the rows, so that whatever was swept before they were read is known by now.
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
