"""The bus's place in the log, and the events that it has refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.postgres.deliveries import PostgresDeliveryStore
from stretto.postgres.log import PostgresLogStore, event_columns, reader_place, reader_row
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from uuid import UUID

    from stretto.events.log import LoggedEvent
    from stretto.events.place import Place
    from stretto.postgres.connections import Database

READER: Final = "bus"
# Between the first refusal of an event and its second try.
REFUSED_SECONDS: Final = 1.0


class PostgresBusStore(PostgresLogStore, PostgresDeliveryStore):
    """A `BusStore`."""

    def __init__(
        self, database: Database, now: Callable[[], datetime | None] = lambda: None
    ) -> None:
        PostgresLogStore.__init__(self, database.upkeep)
        PostgresDeliveryStore.__init__(self, database, READER, now)

    async def open(self) -> None:
        """Have the bus's reader begin at the present, unless it has begun before."""
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["open_reader"], READER)

    async def lease(self, token: UUID, seconds: float) -> Place | None:
        """Take or renew the lease; None while another process has it."""
        async with self._database.upkeep() as connection:
            row = await connection.fetchrow(QUERIES["lease_bus"], token, seconds, self._now())
        return None if row is None else reader_place(row)

    async def advance(self, token: UUID, place: Place) -> bool:
        """Move to a place; False where the lease is another's by now, and nothing was moved."""
        async with self._database.upkeep() as connection:
            return bool(
                await connection.fetchval(QUERIES["advance_bus"], token, *reader_row(place))
            )

    async def give_back(self, token: UUID) -> None:
        """End the lease, if it is ours."""
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["give_back_bus"], token)

    async def refuse(self, reasons: Mapping[LoggedEvent, str]) -> None:
        """Make deliveries of events that the bus has refused once; before `advance`."""
        async with self._database.upkeep() as connection:
            await connection.execute(
                QUERIES["refuse_events"],
                *event_columns(reasons),
                REFUSED_SECONDS,
                self._now(),
            )
