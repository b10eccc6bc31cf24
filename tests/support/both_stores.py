"""One view of both kinds of stores: what a test of the port needs besides the port itself."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from stretto.creation.ports import Write
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.writes import PostgresWriteStore
from support.database import lock_waiters
from support.memory_store.database import MemoryDatabase
from support.memory_store.stores import (
    MemoryAttemptStore,
    MemoryDeletionLog,
    MemoryDeletionStore,
    MemoryWriteStore,
)
from support.memory_store.tables import AttemptRow
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

    from stretto.creation.deletion import DeletionStore
    from stretto.creation.ports import AttemptStore, WriteStore
    from stretto.events.deletion_watch import DeletionLog
    from stretto.postgres.connections import Database
    from support.database import Connection


def write(key: str, *, name: str = "Team", members: tuple[str, ...] = ("bob",)) -> Write:
    """Return the write of a fresh request."""
    alice = UserId("alice")
    new_group = NewGroup.parse(alice, {"name": name, "members": list(members)})
    return Write(
        group_id=group_id(alice, IdempotencyKey(key)),
        claim_token=uuid4(),
        # An event tells the time in it, which of a random one may be beyond the year 9999.
        conversation_id=uuid7(),
        new_group=new_group,
        fingerprint=new_group.fingerprint(),
        is_claimed=False,
    )


class Stores(Protocol):
    """The stores of one database, and what can be done to that database from outside."""

    @property
    def attempts(self) -> AttemptStore:
        """Return the follower's store."""

    @property
    def deletions(self) -> DeletionStore:
        """Return what deletes groups."""

    @property
    def deletion_log(self) -> DeletionLog:
        """Return what a watch reads."""

    def writer(self, on_lost: Callable[[], None] = lambda: None) -> WriteStore:
        """Return a store with a connection of its own."""

    def set_clock(self, now: datetime) -> None:
        """Stop the follower's clock at that moment."""

    async def counts(self) -> tuple[int, ...]:
        """Return how many rows each table has: attempt, group, conversation, member, event."""

    async def members(self, conversation_id: UUID) -> list[tuple[str, str]]:
        """Return who takes part, with their roles, by their ids."""

    async def delete_attempts(self) -> None:
        """Lose every record of a key."""

    async def pend(self, write: Write) -> None:
        """Put a pending attempt for this write in, past all guards."""

    def holding(self, held: Write, token: UUID | None = None) -> AbstractAsyncContextManager[None]:
        """Hold the attempt's row, and commit another token at the end, if one is given."""

    async def blocked(self) -> None:
        """Wait until a statement waits for a lock."""


class MemoryStores:
    """Stores in memory."""

    def __init__(self) -> None:
        self._database = MemoryDatabase()
        self.attempts = MemoryAttemptStore(self._database)
        self.deletions = MemoryDeletionStore(self._database)
        self.deletion_log = MemoryDeletionLog(self._database)

    def writer(self, on_lost: Callable[[], None] = lambda: None) -> MemoryWriteStore:
        return MemoryWriteStore(self._database, on_lost)

    def set_clock(self, now: datetime) -> None:
        self._database.now = now

    async def counts(self) -> tuple[int, ...]:
        return self._database.committed.counts()

    async def members(self, conversation_id: UUID) -> list[tuple[str, str]]:
        members = self._database.committed.members
        return sorted((user, role) for id_, user, role in members if id_ == conversation_id)

    async def delete_attempts(self) -> None:
        for id_ in tuple(self._database.committed.attempts):
            self._database.put_attempt(id_, None)

    async def pend(self, write: Write) -> None:
        row = AttemptRow(write.fingerprint, write.claim_token, self._database.now)
        self._database.put_attempt(write.group_id, row)

    @asynccontextmanager
    async def holding(self, held: Write, token: UUID | None = None) -> AsyncIterator[None]:
        with self._database.holding(held.group_id):
            yield
            if token is not None:
                row = self._database.committed.attempts[held.group_id]
                self._database.put_attempt(held.group_id, replace(row, claim_token=token))

    async def blocked(self) -> None:
        # A statement runs as far as it gets, as soon as its task does.
        await until(lambda: self._database.is_anybody_blocked)


class PostgresStores:
    """Stores on a real database."""

    def __init__(self, database: Database, connection: Connection, stack: AsyncExitStack) -> None:
        self._database = database
        self._connection = connection
        self._stack = stack
        self._now: datetime | None = None
        self.attempts = PostgresAttemptStore(database, now=lambda: self._now)
        self.deletions = PostgresDeletionStore(database)
        self.deletion_log = PostgresLogStore(database.upkeep)

    def writer(self, on_lost: Callable[[], None] = lambda: None) -> PostgresWriteStore:
        store = PostgresWriteStore(self._database, on_lost)
        self._stack.push_async_callback(store.close)
        return store

    def set_clock(self, now: datetime) -> None:
        self._now = now

    async def counts(self) -> tuple[int, ...]:
        tables = ("attempt", "chat_group", "conversation", "conversation_member", "outbox")
        counts = [await self._connection.fetchval(f"SELECT count(*) FROM {t}") for t in tables]
        return tuple(counts)

    async def members(self, conversation_id: UUID) -> list[tuple[str, str]]:
        rows = await self._connection.fetch(
            "SELECT user_id, role FROM conversation_member WHERE conversation_id = $1",
            conversation_id,
        )
        return sorted((row["user_id"], row["role"]) for row in rows)

    async def delete_attempts(self) -> None:
        await self._connection.execute("TRUNCATE attempt")

    async def pend(self, write: Write) -> None:
        await self._connection.execute(
            """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
               VALUES ($1, 'alice', $2, $3)""",
            write.group_id,
            write.fingerprint,
            write.claim_token,
        )

    @asynccontextmanager
    async def holding(self, held: Write, token: UUID | None = None) -> AsyncIterator[None]:
        async with self._connection.transaction():
            await self._connection.execute(
                """UPDATE attempt SET claim_token = coalesce($2, claim_token)
                   WHERE group_id = $1""",
                held.group_id,
                token,
            )
            yield

    async def blocked(self) -> None:
        await lock_waiters(self._connection, 1)
