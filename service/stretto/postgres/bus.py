"""The bus's place in the log, and the events that it has refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.events.place import PositionLost
from stretto.postgres.deliveries import PostgresDeliveryStore
from stretto.postgres.log import PostgresLogStore, event_columns, reader_place, reader_row
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from uuid import UUID

    from stretto.events.log import LoggedEvent
    from stretto.events.place import Place
    from stretto.observations import Observer
    from stretto.postgres.connections import Database

READER: Final = "bus"
# Between the first refusal of an event and its second try.
REFUSED_SECONDS: Final = 1.0


class PostgresBusStore(PostgresLogStore, PostgresDeliveryStore):
    """A `BusStore`."""

    def __init__(
        self,
        database: Database,
        now: Callable[[], datetime | None] = lambda: None,
        observe: Observer = lambda _: None,
    ) -> None:
        PostgresLogStore.__init__(self, database.upkeep)
        PostgresDeliveryStore.__init__(self, database, READER, now, observe=observe)
        self._last: Place | None = None
        """The last place of the reader's that this process has seen."""

    async def open(self) -> None:
        """Have the bus's reader begin at the present, unless it has begun before."""
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["open_reader"], READER)
        self._last = await self.kept_place(READER)

    async def lease(self, token: UUID, seconds: float) -> Place | None:
        """Take or renew the lease; None while another process has it.

        Raises `PositionLost` once the reader, whose row was lost, has begun again.
        """
        async with self._database.upkeep() as connection:
            row = await connection.fetchrow(QUERIES["lease_bus"], token, seconds, self._now())
        if row is None:
            await self.begin_again(READER, self._last)
            raise PositionLost
        self._last = reader_place(row)
        return self._last if row["is_leased"] else None

    async def advance(self, token: UUID, place: Place) -> bool:
        """Move to a place; False, and nothing is moved, where it is none here or the lease another's."""
        async with self._database.upkeep() as connection:
            is_moved = await connection.fetchval(
                QUERIES["advance_bus"], token, *reader_row(place), place.history.id
            )
        if is_moved:
            self._last = place
        return bool(is_moved)

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
