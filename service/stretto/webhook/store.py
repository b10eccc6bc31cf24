"""The webhook's place in the log, and the state of its endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.events.place import PositionLost
from stretto.postgres.deliveries import PostgresDeliveryStore
from stretto.postgres.log import PostgresLogStore, event_columns, reader_place, reader_row
from stretto.postgres.queries import QUERIES
from stretto.targets.delivery import Move

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from stretto.events.place import Place
    from stretto.observations import Observer
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection
    from stretto.targets.delivery import ReaderTarget

READER: Final = "webhook"


class PostgresWebhookStore(PostgresLogStore, PostgresDeliveryStore):
    """The statements of a sender to one URL, whose SHA-256 it takes.

    They commit without a flush: what a crash undoes is done again.
    """

    def __init__(
        self,
        database: Database,
        url_digest: bytes,
        now: Callable[[], datetime | None] = lambda: None,
        observe: Observer = lambda _: None,
    ) -> None:
        PostgresLogStore.__init__(self, database.upkeep)
        PostgresDeliveryStore.__init__(self, database, READER, now, url_digest, observe)
        self._last: Place | None = None
        """The last place of the reader's that this process has seen."""
        self.move: Move | None = None
        """The last one that this store has made."""

    async def open(self) -> None:
        """Make our URL the target; begin at the present, unless a process has begun before.

        Another URL than before ends a pause, enables the webhook, and makes waiting events due and
        untried.
        """
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["open_webhook"], self._target_digest)
        self._last = await self.kept_place(READER)
        await self._move_target(None, None, None)

    async def enrol(self, events_max: int) -> int:
        """Create deliveries for the next events, up to so many; return how many.

        Raises `PositionLost` once it has moved the webhook's place, which was lost, or has begun again
        at one that this process had known, because the reader's row was lost.
        """
        async with self._database.upkeep() as connection:
            row = await connection.fetchrow(QUERIES["webhook_place"], self._target_digest)
        if row is None:
            await self.begin_again(READER, self._last, self._target_digest)
            raise PositionLost
        self._last = reader_place(row)
        if not row["is_ours"]:
            return 0
        page = await self.page(self._last, events_max)
        kept = (row["history"], row["seen"], row["parts"])
        try:
            page.present.require(page.begin)
        except PositionLost:
            if await self._move(kept, page.present.first):
                raise
            # Another process has moved it meanwhile, and reports it.
            return 0
        async with self._database.upkeep() as connection:
            count: int | None = await connection.fetchval(
                QUERIES["enrol"],
                *event_columns(page.events),
                *kept,
                *reader_row(page.place),
                self._now(),
                self._target_digest,
                page.place.history.id,
            )
        return count or 0

    async def _move(self, kept: tuple[int, str, str], place: Place) -> bool:
        """Move the place from the one that is kept; return whether it was still the one."""
        async with self._database.upkeep() as connection:
            is_moved = await connection.fetchval(
                QUERIES["move_webhook"],
                *kept,
                *reader_row(place),
                self._target_digest,
                place.history.id,
            )
        return bool(is_moved)

    async def serve(self, seen: ReaderTarget) -> None:
        """Say that our target is served, unless that was said since it was seen so.

        If the database's clock has gone back, what is put off and a pause go back with it.
        """
        async with self._database.upkeep() as connection:
            await connection.execute(
                QUERIES["serve_webhook"], self._target_digest, seen.served_at, self._now()
            )

    async def take_over(self, seen: ReaderTarget) -> None:
        """Make our URL the target, as `open` does, if the target is still as it was seen."""
        await self._move_target(seen.served_at, seen.digest, seen.moved_at)

    async def move_again(self, lost: Move, seen: ReaderTarget) -> None:
        """Make our URL the target by a move that was lost, if the target is still the one seen.

        Also where that one's senders have said since that they serve it.
        """
        await self._move_target(None, seen.digest, seen.moved_at, lost)

    async def _move_target(
        self,
        served_at: str | None,
        digest: bytes | None,
        moved_at: int | None,
        lost: Move | None = None,
    ) -> None:
        ours = self._target_digest
        async with self._database.upkeep() as connection, connection.transaction():
            after: int | None = await connection.fetchval(
                QUERIES["lock_target"], ours, served_at, digest, moved_at
            )
            if after is None:
                return
            at: int = await connection.fetchval(
                QUERIES["move_target"], ours, self._now(), lost and lost.at
            )
        self.move = lost or Move(at, after)

    async def pause(self, seconds: float) -> None:
        """Send nothing for `seconds`, from any replica."""
        async with self._database.upkeep() as connection:
            await connection.execute(
                QUERIES["pause_webhook"], seconds, self._now(), self._target_digest
            )

    async def disable(self) -> bool:
        """Send nothing from any replica until it is enabled; return whether that is news."""
        async with self._database.upkeep() as connection:
            return bool(await connection.fetchval(QUERIES["disable_webhook"], self._target_digest))


async def disabled_at(connection: Connection) -> datetime | None:
    """Return the time at which the webhook was disabled, if it is disabled."""
    at: datetime | None = await connection.fetchval(QUERIES["webhook_disabled_at"])
    return at


async def paused_until(connection: Connection) -> datetime | None:
    """Return the end of the pause that the endpoint has asked for, if there is one."""
    until: datetime | None = await connection.fetchval(QUERIES["webhook_paused_until"])
    return until


async def enable(connection: Connection) -> bool:
    """Send again at once; return whether the webhook was disabled or paused."""
    return bool(await connection.fetchval(QUERIES["enable_webhook"]))
