"""What the database in memory can do and a real one does only when it is hurt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stretto.domain import UserId
from stretto.store_errors import OutcomeUnknown, Unreachable
from support.both_stores import write
from support.memory_store.database import MemoryDatabase
from support.memory_store.stores import MemoryAttemptStore, MemoryWriteStore

if TYPE_CHECKING:
    from support.memory_store.database import Statement


async def test_a_crash_takes_back_claims_and_never_a_group() -> None:
    """A claim commits asynchronously; a lead makes durable what came before it."""
    database = MemoryDatabase()
    store = MemoryWriteStore(database, on_lost=lambda: None)
    led, claimed = write("a"), write("b")
    await store.claim([led])
    await store.lead([led])
    await store.claim([claimed])
    assert (2, 1, 1, 2, 1) == database.committed.counts()
    database.crash(survives=0)
    assert (1, 1, 1, 2, 1) == database.committed.counts()
    assert set() == await store.lead([claimed])


async def test_a_statement_that_never_arrives_is_unknown_and_writes_nothing() -> None:
    """A writer must take it for possible; a follower has only not been answered."""
    lost: list[str] = []

    def lose(statement: Statement) -> None:
        statement.lose()
        statement.vanish()

    database = MemoryDatabase(submitted=lose)
    with pytest.raises(OutcomeUnknown):
        await MemoryWriteStore(database, lambda: lost.append("lost")).claim([write("k")])
    assert ["lost"] == lost
    with pytest.raises(Unreachable):
        await MemoryAttemptStore(database).look(write("k").group_id, 5.0, UserId("alice"))
    assert (0, 0, 0, 0, 0) == database.committed.counts()
