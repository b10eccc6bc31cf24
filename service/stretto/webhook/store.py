"""The webhook's place in the outbox, and the deliveries that are still to be made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.postgres.outbox import envelope
from stretto.postgres.queries import QUERIES
from stretto.webhook.rules import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime
    from uuid import UUID

    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection
    from stretto.webhook.rules import PutOff


class PostgresWebhookStore:
    """A sender's statements. They wait for no disk: what a crash undoes is done again."""

    def __init__(
        self, database: Database, now: Callable[[], datetime | None] = lambda: None
    ) -> None:
        self._database = database
        self._now = now

    async def open(self) -> None:
        """Begin here, where no process has begun before."""
        async with self._database.tending() as connection:
            await connection.execute(QUERIES["open_webhook"])

    async def enrol(self, events_max: int) -> int:
        """Make deliveries of the next events; return how many. All of a transaction, or none."""
        async with self._database.tending() as connection:
            count = await connection.fetchval(QUERIES["enrol"], events_max, self._now())
        return count or 0

    async def take(self, deliveries_max: int, lease_seconds: float) -> list[Delivery]:
        """Lease due deliveries; none while the endpoint is paused or disabled."""
        async with self._database.tending() as connection:
            rows = await connection.fetch(
                QUERIES["take_deliveries"], deliveries_max, lease_seconds, self._now()
            )
        return [Delivery(row["event_id"], envelope(row), row["tries"]) for row in rows]

    async def oldest_seconds(self) -> float | None:
        """Return the age of the oldest event that the endpoint still has to get, if there is one."""
        async with self._database.tending() as connection:
            age: float | None = await connection.fetchval(
                QUERIES["oldest_undelivered"], self._now()
            )
        return age

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> None:
        """Forget deliveries that came about, put off the others."""
        async with self._database.tending() as connection:
            await connection.execute(
                QUERIES["settle_deliveries"],
                list(sent),
                [each.event_id for each in put_off],
                [each.seconds for each in put_off],
                [each.is_try for each in put_off],
                [each.dead_reason for each in put_off],
                self._now(),
            )

    async def pause(self, seconds: float) -> None:
        """Send nothing for so long, from any replica."""
        async with self._database.tending() as connection:
            await connection.execute(QUERIES["pause_webhook"], seconds, self._now())

    async def disable(self) -> bool:
        """Send nothing until somebody enables it, from any replica; return whether that is news."""
        async with self._database.tending() as connection:
            return bool(await connection.fetchval(QUERIES["disable_webhook"]))


async def disabled_at(connection: Connection) -> datetime | None:
    """Return since when the webhook is disabled, if it is."""
    at: datetime | None = await connection.fetchval(QUERIES["webhook_disabled_at"])
    return at


async def paused_until(connection: Connection) -> datetime | None:
    """Return until when the endpoint has asked for a pause, if it has."""
    until: datetime | None = await connection.fetchval(QUERIES["webhook_paused_until"])
    return until


async def enable(connection: Connection) -> bool:
    """Have events sent again, at once; return whether they were not, or were paused."""
    return bool(await connection.fetchval(QUERIES["enable_webhook"]))
