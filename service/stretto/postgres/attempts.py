"""The attempt's statements: the leader's on a connection of its own, the follower's on pooled ones."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final
from uuid import UUID

import orjson
from uuid_utils.compat import uuid4

from stretto.creation.attempt import Attempt, AttemptStatus, GroupRow, Sighting
from stretto.domain import CreatedGroup, event_id
from stretto.errors import Failure, InDoubt, Misconfigured, OutcomeUnknown, StoreError, Unreachable
from stretto.postgres.connections import (
    CONNECT_SECONDS,
    GRACE_SECONDS,
    LOCK_SECONDS,
    WRITE_SECONDS,
    Database,
    Lane,
    is_lost,
    terminate,
    watchdog,
)
from stretto.postgres.driver_errors import DRIVER_ERRORS, READ_ONLY_STATE, in_words, store_error
from stretto.postgres.hook import HookedLead
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime

    import asyncpg

    from stretto.creation.ports import Write
    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.hook import Lead, OnCreate

# A claim waits for a row only while another claim of its key commits, which takes a few milliseconds.
# Whatever takes longer is not claimed, and holds up the other keys of the batch no longer; one that is
# claimed alone, because its batch was held up, gets less.
CLAIM_LOCK_SECONDS: Final = 0.1
CLAIM_ALONE_LOCK_SECONDS: Final = 0.02
# Where other requests wait. A row that another lead holds is free in a few milliseconds, and a row of
# the host's may be held for any time.
HASTY_LOCK_SECONDS: Final = 0.25


class PostgresWriteStore:
    """A writer's statements. Connects when needed; a broken connection is dropped at once."""

    def __init__(
        self,
        database: Database,
        on_lost: Callable[[], None],
        on_create: OnCreate | None = None,
    ) -> None:
        self._database = database
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._server: str | None = None
        """Which server the last connection led to."""
        self._is_writing = False
        self.is_cut_off = False
        """Whether the last try to connect has failed, or goes on."""
        self.is_misfit = False
        """Whether the database has lacked what a statement needs, and no write has succeeded since."""
        self._lead_writes: Lead = _lead
        self._has_hook = on_create is not None
        if on_create is not None:
            hooked = HookedLead(on_create, _lead, self._discard, is_pooled=database.is_shared)
            self._lead_writes = hooked.lead

    async def open(self) -> None:
        """Connect and have both statements planned: the first request need not wait for it.

        Raises as they do; what is not done now is done when it is needed.
        """
        await self.claim([])
        await self.lead([])

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        """Insert pending attempts; return the tokens of those that won."""
        async with self._writing() as connection:
            rows = await connection.fetch(
                QUERIES["claim"],
                [write.group_id for write in writes],
                [write.new_group.owner for write in writes],
                [write.fingerprint for write in writes],
                [write.claim_token for write in writes],
                _milliseconds(CLAIM_ALONE_LOCK_SECONDS if len(writes) == 1 else CLAIM_LOCK_SECONDS),
            )
        return {row["claim_token"] for row in rows}

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Write groups and settle their attempts; return the tokens that did."""
        async with self._writing() as connection:
            led = await self._lead_writes(
                connection, writes, HASTY_LOCK_SECONDS if is_hasty else LOCK_SECONDS
            )
        # Not after a claim: that needs less.
        self.is_misfit = False
        return led

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        """Return the tokens of the attempts that a lead would not have to wait for."""
        async with self._writing() as connection:
            rows = await connection.fetch(
                QUERIES["unlocked"],
                [write.group_id for write in writes],
                [write.claim_token for write in writes],
            )
        return {row["claim_token"] for row in rows}

    async def are_tables_locked(self) -> bool:
        """Whether another holds, or waits for, a lock on a table that lets no group be written."""
        async with self._writing() as connection:
            return bool(await connection.fetchval(QUERIES["are_tables_locked"]))

    async def fail(self, write: Write, failure: Failure) -> bool:
        """Settle as failed, durably, unless the attempt is no longer ours."""
        async with self._writing() as connection:
            settled = await connection.fetch(
                QUERIES["fail"], write.group_id, write.claim_token, failure.code, failure.detail
            )
        return bool(settled)

    async def close(self) -> None:
        """Give the connection back. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if not is_lost(connection):
                connection.remove_termination_listener(self._told_of_loss)
            await self._database.give_back(connection)

    async def release(self) -> None:
        """Give the connection back, unless a write is under way. The next write takes another."""
        if not self._is_writing:
            await self.close()

    def cut_off(self) -> None:
        """Break the connection under a write: cancelling one may make the server call it done."""
        if self._is_writing and self._connection is not None:
            terminate(self._connection)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Connection]:
        """Lend our connection; errors on it come out as the store's own."""
        if self._connection is not None and _is_left_over(self._connection):
            await self._discard()
        connection = self._connection
        if connection is None or is_lost(connection):
            connection = await self._connect()
        self._is_writing = True
        try:
            with watchdog(connection, WRITE_SECONDS):
                yield connection
        except DRIVER_ERRORS as error:
            # Not named here: it would refer to itself, by its traceback and this frame.
            raise await self._known_as(error, connection) from error
        finally:
            self._is_writing = False

    async def _connect(self) -> Connection:
        """Take a connection, and watch it; raises `Unreachable`.

        Nobody has watched since the last one was given up. So the server says which it is, and where
        it is another, what was remembered is forgotten as after a loss.
        """
        await self._drop()
        self.is_cut_off = True
        connection = await self._database.lend()
        try:
            with watchdog(connection, CONNECT_SECONDS):
                server: str = await connection.fetchval(QUERIES["server"])
        except BaseException as error:
            terminate(connection)
            await self._database.give_back(connection)
            if isinstance(error, DRIVER_ERRORS):
                raise Unreachable(in_words(error)) from error
            raise
        self._connection = connection
        self.is_cut_off = False
        connection.add_termination_listener(self._told_of_loss)
        if self._server not in (None, server):
            self._on_lost()
        self._server = server
        return connection

    async def _known_as(self, error: BaseException, connection: Connection) -> StoreError:
        """Return what an error means for the write; drops the connection where it is of no use."""
        meaning = store_error(error, connection_lives=not is_lost(connection))
        if isinstance(meaning, InDoubt) and not await _is_same_backend(connection):
            meaning = OutcomeUnknown(*meaning.args)
        self.is_misfit |= isinstance(meaning, Misconfigured)
        is_read_only = getattr(error, "sqlstate", "") == READ_ONLY_STATE
        if is_read_only or type(meaning) is OutcomeUnknown:
            await self._drop()
        elif self._has_hook and isinstance(meaning, Misconfigured):
            # The session may be misled, and not the database.
            await self._discard()
        return meaning

    async def _discard(self) -> None:
        """Drop a connection whose session is not as it was; nothing that was remembered is wrong.

        The next is taken at once: without one, a failover would not be noticed until the next write, and
        what the new primary does not have would go on being replayed.
        """
        connection = self._connection
        if connection is None or is_lost(connection):
            await self._drop()
            return
        connection.remove_termination_listener(self._told_of_loss)
        await self._drop()
        try:
            await self._connect()
        except StoreError:
            # Nobody watches. The write that has led to this has its outcome nevertheless.
            self._on_lost()

    async def _drop(self) -> None:
        """Give up a connection whose state nobody knows."""
        connection, self._connection = self._connection, None
        if connection is not None:
            terminate(connection)
            await self._database.give_back(connection)

    def _told_of_loss(self, _: Connection) -> None:
        """Pass it on at once: behind the next connection may be another server."""
        self._on_lost()


class PostgresAttemptStore:
    """A follower's statements."""

    def __init__(
        self, database: Database, now: Callable[[], datetime | None] = lambda: None
    ) -> None:
        self._database = database
        self._now = now

    async def look(self, group_id: UUID, lease_seconds: float) -> Sighting:
        """Read the attempt and the group of that id in one query."""
        (sighting,) = await self.look_all([(group_id, lease_seconds)])
        return sighting

    async def look_all(self, wanted: Sequence[tuple[UUID, float]]) -> list[Sighting]:
        """Read attempts and groups of many ids, each with the lease of its attempt, in one query."""
        async with self._database.reading(Lane.LOOKS) as connection:
            rows = await connection.fetch(
                QUERIES["look"],
                [group_id for group_id, _ in wanted],
                [lease_seconds for _, lease_seconds in wanted],
                self._now(),
            )
        return [_sighting(group_id, row) for (group_id, _), row in zip(wanted, rows, strict=True)]

    async def heal(self, group_id: UUID) -> None:
        """Settle the attempt as succeeded from the domain tables."""
        async with self._database.reading(Lane.FOLLOWERS) as connection:
            await connection.execute(QUERIES["heal"], group_id, uuid4())

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        """Put a new token in place of the seen one, if the lease is over and nobody holds it."""
        async with self._database.reading(Lane.FOLLOWERS) as connection:
            reclaimed = await connection.fetchval(
                QUERIES["reclaim"], group_id, seen, claim_token, lease_seconds, self._now()
            )
        return reclaimed is not None


def _is_left_over(connection: Connection) -> bool:
    """Whether it is in a transaction, which is none of ours: ours have ended.

    Something that a host's hook has left running has begun it; ours would be a savepoint in it.
    """
    return not is_lost(connection) and connection.is_in_transaction()


async def _is_same_backend(connection: Connection) -> bool:
    """Whether the connection still leads to the server process that it was opened to.

    It then leads to the same server, and no statement of ours is left under way. PgBouncer speaks of a
    server that it has lost while the connection to itself lives; the process that it names at the
    opening is none.
    """
    try:
        with watchdog(connection, GRACE_SECONDS):
            backend = await connection.fetchval(QUERIES["backend"])
    except DRIVER_ERRORS:
        return False
    return bool(backend == connection.get_server_pid())


async def _lead(connection: Connection, writes: Sequence[Write], lock_seconds: float) -> set[UUID]:
    recipients = [(write.new_group.owner, *write.new_group.members) for write in writes]
    rows = await connection.fetch(
        QUERIES["lead"],
        [write.group_id for write in writes],
        [write.claim_token for write in writes],
        [write.conversation_id for write in writes],
        [write.new_group.name for write in writes],
        [write.new_group.description for write in writes],
        [_array_literal(users) for users in recipients],
        [event_id(write.group_id) for write in writes],
        [_event_data(write) for write in writes],
        _milliseconds(lock_seconds),
    )
    return {row["claim_token"] for row in rows}


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.0f}ms"


def _array_literal(users: Sequence[str]) -> str:
    """Return a text[] in PostgreSQL's notation.

    Arrays of arrays of different lengths cannot be sent; a list of literals can. For printable ASCII
    a quoted element is written exactly as in JSON.
    """
    return "{" + orjson.dumps(users)[1:-1].decode() + "}"


def _event_data(write: Write) -> str:
    return orjson.dumps(
        {
            "group_id": write.group_id,
            "conversation_id": write.conversation_id,
            "owner_id": write.new_group.owner,
            "name": write.new_group.name,
            "members_count": 1 + len(write.new_group.members),
        }
    ).decode()


def _uuid(value: UUID) -> UUID:
    """Return the standard library's UUID: what the driver returns is its own, which orjson refuses."""
    return UUID(bytes=value.bytes)


def _sighting(group_id: UUID, row: asyncpg.Record) -> Sighting:
    attempt = group = None
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
    return Sighting(attempt, group)
