"""The protocol's stores over one in-memory database."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from stretto.events.place import History, Place, Present
from stretto.store_errors import OutcomeUnknown, StoreError, Unreachable
from support.memory_store import statements
from support.memory_store.database import Statement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from uuid import UUID

    from stretto.creation.attempt import Sighting
    from stretto.creation.deletion import Delete, Deletion
    from stretto.creation.ports import Write
    from stretto.domain import UserId
    from stretto.errors import Failure
    from support.memory_store.database import MemoryDatabase, Steps, Transaction

# Of the log of deletions, which here has one position for each.
_HISTORY: Final = History(1, "00000001")


class MemoryWriteStore:
    """A writer's statements, one at a time on a connection of its own."""

    def __init__(
        self,
        database: MemoryDatabase,
        on_lost: Callable[[], None],
        *,
        writes_at_once: bool = True,
    ) -> None:
        self.writes_at_once = writes_at_once
        self.is_connected = True
        self._database = database
        self._on_lost = on_lost
        self._statement: Statement | None = None

    async def open(self) -> None:
        """Connected from the start."""

    async def claim_and_lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Claim, commit, then lead; return the tokens that led."""
        led: set[UUID] = await self._write("claim_and_lead", writes)
        return led

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        """Insert pending attempts; return the tokens of those that won."""
        won: set[UUID] = await self._write("claim", writes)
        return won

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Write groups and settle their attempts; return the tokens that did."""
        led: set[UUID] = await self._write("lead", writes)
        return led

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        """Return the tokens of the attempts that a lead would not have to wait for."""
        free: set[UUID] = await self._write("unlocked", writes)
        return free

    async def are_tables_locked(self) -> bool:
        """Tables cannot be locked here."""
        return False

    async def fail(self, write: Write, failure: Failure) -> bool:
        """Settle as failed, durably, unless the attempt is no longer ours."""
        is_failed: bool = await self._write("fail", [write], failure)
        return is_failed

    async def close(self) -> None:
        """Nothing is kept."""

    def cut_off(self) -> None:
        """Break the connection under a write."""
        if self._statement is not None:
            self._statement.lose()

    async def _write(self, name: str, writes: Sequence[Write], *rest: object) -> Any:
        def begin(mine: Transaction) -> Steps:
            steps: Steps = getattr(statements, name)(self._database, mine, writes, *rest)
            return self._database.replied(steps)

        self._statement = statement = Statement(
            self._database,
            name,
            (*writes, *rest),
            begin,
            asyncio.get_running_loop().create_future(),
            self._lost,
        )
        try:
            self._database.submit(statement)
            return await statement.answered
        finally:
            self._statement = None

    def _lost(self) -> StoreError:
        self._on_lost()
        return OutcomeUnknown("the connection broke")


class MemoryAttemptStore:
    """A follower's statements; whatever goes wrong, the database was out of reach.

    Nothing is recorded in trails: no decision depends on them.
    """

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def look(self, group_id: UUID, lease_seconds: float, _: UserId, /) -> Sighting:
        """Read the attempt and the group of that id."""
        sighting: Sighting = await self._follow("look", group_id, lease_seconds)
        return sighting

    async def heal(self, group_id: UUID) -> None:
        """Settle the attempt as succeeded from the domain tables."""
        await self._follow("heal", group_id)

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        """Put a new token in place of the seen one, if the lease is over and the row is free."""
        tokens = (seen, claim_token)
        is_ours: bool = await self._follow("reclaim", group_id, tokens, lease_seconds)
        return is_ours

    async def _follow(self, name: str, group_id: UUID, *rest: object) -> Any:
        def begin(mine: Transaction) -> Steps:
            steps: Steps = getattr(statements, name)(self._database, mine, group_id, *rest)
            return steps

        return await _answered(self._database, name, (group_id, *rest), begin)


class MemoryDeletionStore:
    """Deletes groups, whoever asks: there are no members' rights here."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    @asynccontextmanager
    async def deleting(self) -> AsyncIterator[Delete]:
        """Yield what deletes."""
        yield self._delete

    async def _delete(self, wanted: Deletion, /, *, is_hasty: bool) -> bool | None:
        del is_hasty
        group_id = wanted.group_id

        def begin(mine: Transaction) -> Steps:
            return self._database.replied(statements.delete_group(self._database, mine, group_id))

        is_deleted: bool | None = await _answered(
            self._database, "delete_group", (group_id,), begin
        )
        return is_deleted


class MemoryDeletionLog:
    """What a watch reads: at once, since what happens during its look is as if it were after it."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database

    async def deletions(self, begin: Place | None, limit: int) -> tuple[Sequence[UUID], Present]:
        """Return groups whose deletion the place does not cover, and the present."""
        deleted = self._database.committed.deleted
        present = Present(_HISTORY, len(deleted), (), {_HISTORY.number: _HISTORY.id}, (1, 0))
        return ([] if begin is None else deleted[begin.xmax :][:limit]), present


async def _answered(
    database: MemoryDatabase,
    name: str,
    arguments: tuple[object, ...],
    begin: Callable[[Transaction], Steps],
) -> Any:
    """Return the result of a statement, of which a lost connection says nothing."""
    statement = Statement(
        database,
        name,
        arguments,
        begin,
        asyncio.get_running_loop().create_future(),
        lambda: Unreachable("the connection broke"),
    )
    database.submit(statement)
    return await statement.answered
