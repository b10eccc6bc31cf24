"""A follower's statements: what became of an attempt, and how it is healed or reclaimed."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

from stretto.creation.attempt import Attempt, AttemptStatus, GroupRow, Sighting, Tombstone
from stretto.domain import CreatedGroup
from stretto.errors import Failure
from stretto.postgres.lanes import Lane
from stretto.postgres.queries import QUERIES, at_home
from stretto.postgres.trail import instance
from stretto.telemetry.request_context import CURRENT_REQUEST, trace_id_of
from stretto.uuids import uuid4

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime

    import asyncpg

    from stretto.domain import UserId
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection


# Of a failed attempt whose record was swept: of the host's own words only the code is kept.
DETAIL_SWEPT: Final = "The attempt failed; its details are no longer kept."


class PostgresAttemptStore:
    """Reads and settles attempts of other leaders; each statement raises `Unreachable`."""

    def __init__(
        self, database: Database, now: Callable[[], datetime | None] = lambda: None
    ) -> None:
        self._database = database
        self._now = now

    async def look(self, group_id: UUID, lease_seconds: float, _: UserId, /) -> Sighting:
        """Read the attempt and the group of that id in one query."""
        (sighting,) = await self.look_all([(group_id, lease_seconds)])
        return sighting

    async def look_all(self, wanted: Sequence[tuple[UUID, float]]) -> list[Sighting]:
        """Read attempts and groups of many ids, each with its lease, in one query."""
        async with self._database.connection(Lane.LOOKS) as connection:
            rows = await connection.fetch(
                at_home(QUERIES["look"], self._database.home),
                [group_id for group_id, _ in wanted],
                [lease_seconds for _, lease_seconds in wanted],
                self._now(),
            )
        return [_sighting(group_id, row) for (group_id, _), row in zip(wanted, rows, strict=True)]

    async def heal(self, group_id: UUID) -> None:
        """Settle the attempt as succeeded from the domain tables."""
        trace_id = trace_id_of(CURRENT_REQUEST.get())
        async with self._healing() as connection:
            heal = at_home(QUERIES["heal"], self._database.home)
            await connection.execute(heal, group_id, uuid4(), instance(), trace_id)

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        """Replace the token that was seen, if the lease is over and the row is not locked."""
        trace_id = trace_id_of(CURRENT_REQUEST.get())
        async with self._healing() as connection:
            reclaimed = await connection.fetchval(
                at_home(QUERIES["reclaim"], self._database.home),
                *(group_id, seen, claim_token, lease_seconds, self._now(), instance(), trace_id),
            )
        return reclaimed is not None

    @asynccontextmanager
    async def _healing(self) -> AsyncIterator[Connection]:
        database = self._database
        async with (
            database.connection(Lane.FOLLOWERS) as connection,
            database.unchanged(connection),
        ):
            yield connection


def _sighting(group_id: UUID, row: asyncpg.Record) -> Sighting:
    attempt = group = tombstone = None
    if row["status"] is not None:
        failure = None
        if row["failure_code"] is not None:
            failure = Failure(row["failure_code"], row["failure_detail"])
        attempt = Attempt(
            status=AttemptStatus(row["status"]),
            fingerprint=row["fingerprint"],
            claim_token=row["claim_token"],
            conversation_id=row["conversation_id"] and _uuid(row["conversation_id"]),
            failure=failure,
            claimed_at=row["claimed_at"],
            settled_at=row["settled_at"],
            lease_over=row["lease_over"],
        )
    if row["group_conversation_id"] is not None:
        created = CreatedGroup(group_id, _uuid(row["group_conversation_id"]))
        group = GroupRow(created, row["group_fingerprint"], row["group_created_at"])
    if row["is_tombstone"]:
        code = row["tombstone_failure_code"]
        failure = None if code is None else Failure(code, DETAIL_SWEPT)
        tombstone = Tombstone(row["group_created_at"], failure, row["group_deleted_at"])
    return Sighting(attempt, group, tombstone)


def _uuid(value: UUID) -> UUID:
    """Return the standard library's UUID: orjson rejects the driver's own class."""
    return UUID(bytes=value.bytes)
