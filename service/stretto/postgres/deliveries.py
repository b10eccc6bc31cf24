"""What waits for a reader's target event by event, and dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from stretto.observations import EventDeadLettered
from stretto.postgres.log import MEMBER_IDS_MAX, committed_event
from stretto.postgres.queries import QUERIES
from stretto.targets.delivery import UNREADABLE, Delivery, PutOff, ReaderTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime

    import asyncpg

    from stretto.observations import Observer
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection

# Deliveries in a transaction of a command, which may go through millions: some 50 ms. Senders wait for
# the rows for less than their lock time-out, and a role's time-out behind a pooler ends no page.
PAGE_MAX: Final = 1000


class PostgresDeliveryStore:
    """A `DeliveryStore`. Commits without a flush: what a crash undoes is done again."""

    def __init__(
        self,
        database: Database,
        reader: str,
        now: Callable[[], datetime | None],
        target_digest: bytes | None = None,
        observe: Observer = lambda _: None,
    ) -> None:
        """Take the digest of the target that is called; None for the bus, which has no address."""
        self._database = database
        self._reader = reader
        self._now = now
        self._target_digest = target_digest
        self._observe = observe
        self.is_disabled = False
        """Whether the target was disabled when the oldest event was last asked for."""
        self.has_marked = False
        """Whether the last `take` has met wrong marks: others may be due behind those deliveries."""
        self.target: ReaderTarget | None = None
        """The target when the oldest event was last asked for; None if the reader has no row."""
        self._last_owner = ""
        """The owner whose turn it was last: the next one's is next."""

    async def take(
        self,
        deliveries_max: int,
        lease_seconds: float,
        under_way: Mapping[str, int] | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> list[Delivery]:
        """Lease due deliveries; none while the target is paused, disabled, or another one.

        A row of which no event can be made becomes a dead letter.
        """
        async with self._database.upkeep() as connection:
            rows = await connection.fetch(
                QUERIES["take_deliveries"],
                self._reader,
                deliveries_max,
                lease_seconds,
                self._now(),
                MEMBER_IDS_MAX,
                self._target_digest,
                self._last_owner,
                None if under_way is None else list(under_way),
                None if under_way is None else list(under_way.values()),
                None if only is None else list(only),
                list(without),
            )
        self.has_marked = bool(rows) and rows[0]["has_marked"]
        if rows:
            self._last_owner = rows[0]["last_owner"]
        deliveries, unreadable = [], []
        for row in rows:
            if row["event_id"] is None:
                continue
            event = committed_event(row)
            if event is None:
                unreadable.append(PutOff(row["event_id"], dead_reason=UNREADABLE))
            else:
                deliveries.append(Delivery(event, row["tries"], row["delivery_owner"]))
        if unreadable:
            reader = "" if self._target_digest is None else f"{self._reader}: "
            for event_id in await self.settle((), unreadable):
                self._observe(EventDeadLettered(event_id, f"{reader}{UNREADABLE}"))
        return deliveries

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> frozenset[UUID]:
        """Delete the deliveries that were sent; put off the others. Return the new dead letters.

        If the reader has another target by now, the others stay as they are.
        """
        async with self._database.upkeep() as connection:
            rows = await connection.fetch(
                QUERIES["settle_deliveries"],
                self._reader,
                list(sent),
                [each.event_id for each in put_off],
                [each.seconds for each in put_off],
                [each.is_try for each in put_off],
                [_storable(each.dead_reason) for each in put_off],
                self._now(),
                self._target_digest,
            )
        return frozenset(row["event_id"] for row in rows if row["is_dead"])

    async def count_due(self, deliveries_max: int) -> int:
        """Return how many deliveries are due, and `deliveries_max` if there are more."""
        async with self._database.upkeep() as connection:
            count: int = await connection.fetchval(
                QUERIES["count_due"], self._reader, deliveries_max, self._now()
            )
        return count

    async def oldest_seconds(self) -> float | None:
        """Return the age of the oldest event that the target has not got yet, if there is one."""
        async with self._database.upkeep() as connection:
            row = await connection.fetchrow(QUERIES["oldest_owed"], self._reader, self._now())
        self.is_disabled = row is not None and row["is_disabled"]
        self.target = None if row is None else self._read_target(row)
        age: float | None = row["seconds"] if row else None
        return age

    def _read_target(self, row: asyncpg.Record) -> ReaderTarget:
        digest = row["target_digest"]
        is_ours = digest == self._target_digest
        return ReaderTarget(digest, row["served_at"], is_ours, row["is_ahead"], row["moved_at"])


async def dead_letters(connection: Connection, limit: int) -> list[asyncpg.Record]:
    """Return the dead letters, the oldest first."""
    return await connection.fetch(QUERIES["dead_letters"], limit)


async def retry_dead_letters(connection: Connection, event_ids: Sequence[UUID] | None) -> int:
    """Have dead letters tried again, all of them if no id is given; return how many there were.

    All of them page by page: what fails, or is interrupted, keeps what it has done.
    """
    if event_ids is None:
        return await _each_page(connection, QUERIES["retry_all_dead_letters"])
    return len(await connection.fetch(QUERIES["retry_dead_letters"], event_ids))


async def hasten_deliveries(connection: Connection, lease_seconds: float) -> int:
    """Have events that wait for another try sent now, page by page; return how many there were.

    One that is due within the time of a lease may be under way.
    """
    return await _each_page(connection, QUERIES["hasten_deliveries"], lease_seconds)


async def _each_page(connection: Connection, statement: str, *arguments: object) -> int:
    """Run a statement for each page of deliveries; return how many it has changed."""
    count, place = 0, ("", UUID(int=0))
    while (page := await connection.fetchrow(statement, *place, PAGE_MAX, *arguments)) is not None:
        count += page["count"]
        place = page["reader"], page["event_id"]
    return count


def _storable(reason: str | None) -> str | None:
    """Return the reason that a target gave as text that the database takes; None as it is."""
    if reason is None:
        return None
    printable = reason.encode(errors="replace").decode().replace("\0", "")
    return printable or "refused without a reason"
