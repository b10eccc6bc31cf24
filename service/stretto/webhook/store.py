"""The webhook's position in the outbox, and the deliveries that are still due."""

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
    """A sender's statements. They commit without a flush: what a crash undoes is done again."""

    def __init__(
        self, database: Database, now: Callable[[], datetime | None] = lambda: None
    ) -> None:
        self._database = database
        self._now = now

    async def open(self, url_digest: bytes) -> None:
        """Begin with the next commit, unless a process has begun before.

        Another URL than before ends a pause, enables the webhook, and makes waiting events due.
        """
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["open_webhook"], url_digest, self._now())

    async def enrol(self, events_max: int) -> int:
        """Create deliveries for the next events, whole transactions only; return how many."""
        async with self._database.upkeep() as connection:
            count = await connection.fetchval(QUERIES["enrol"], events_max, self._now())
        return count or 0

    async def take(self, deliveries_max: int, lease_seconds: float) -> list[Delivery]:
        """Lease due deliveries; none while the endpoint is paused or disabled."""
        async with self._database.upkeep() as connection:
            rows = await connection.fetch(
                QUERIES["take_deliveries"], deliveries_max, lease_seconds, self._now()
            )
        return [Delivery(row["event_id"], envelope(row), row["tries"]) for row in rows]

    async def oldest_seconds(self) -> float | None:
        """Return the age of the oldest event that is not delivered yet, if there is one."""
        async with self._database.upkeep() as connection:
            age: float | None = await connection.fetchval(
                QUERIES["oldest_undelivered"], self._now()
            )
        return age

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> None:
        """Delete the deliveries that were sent; put off the others."""
        async with self._database.upkeep() as connection:
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
        """Send nothing for `seconds`, from any replica."""
        async with self._database.upkeep() as connection:
            await connection.execute(QUERIES["pause_webhook"], seconds, self._now())

    async def disable(self) -> bool:
        """Send nothing from any replica until enabled again; return whether it was enabled."""
        async with self._database.upkeep() as connection:
            return bool(await connection.fetchval(QUERIES["disable_webhook"]))


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
