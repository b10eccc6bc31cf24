"""The host's hook `on_create`: what runs in the leader's transaction besides the lead itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from stretto.domain import CreatedGroup, NewGroup
from stretto.errors import GroupRejected
from stretto.protocol.ports import Refused, Transient, Write
from stretto.storage.database import WRITE_SECONDS, is_lost

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.storage.database import Connection

    Lead: TypeAlias = Callable[[Connection, Sequence[Write]], Awaitable[set[UUID]]]

# Below the deadline of the write that the hook is a part of.
HOOK_SECONDS: Final = WRITE_SECONDS - 1

OnCreate: TypeAlias = Callable[
    ["Connection", Sequence[tuple[CreatedGroup, NewGroup]]], Awaitable[None]
]
"""A host's hook: runs inside the leader's transaction, for the groups that it creates together."""


async def lead_with_hook(
    connection: Connection, writes: Sequence[Write], lead: Lead, on_create: OnCreate
) -> set[UUID]:
    """Lead, and run the hook for what was led, in one transaction."""
    await connection.execute("BEGIN")
    try:
        led = await lead(connection, writes)
        if led:
            created = [(_created(w), w.new_group) for w in writes if w.claim_token in led]
            async with asyncio.timeout(HOOK_SECONDS):
                await on_create(connection, created)
    except Exception as error:
        # Nothing is committed, since COMMIT was not sent.
        if not is_lost(connection):
            await connection.execute("ROLLBACK")
        if isinstance(error, GroupRejected):
            raise Refused(error.failure) from error
        if isinstance(error, asyncpg.PostgresError):
            raise
        # The host's own trouble says nothing about the group: nothing is failed for good.
        message = f"on_create raised {type(error).__name__}"
        raise Transient(message) from error
    # An aborted transaction is "committed" without an error: only the tag tells (the host's
    # hook may have swallowed a failed statement).
    tag = await connection.execute("COMMIT")
    if tag != "COMMIT":
        message = f"the transaction ended in {tag}: on_create swallowed a database error"
        raise Transient(message)
    return led


def _created(write: Write) -> CreatedGroup:
    return CreatedGroup(write.group_id, write.conversation_id)
