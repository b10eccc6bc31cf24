"""The host's hook `on_create`: what runs in the leader's transaction besides the lead itself.

The hook is the host's code on our connection, so nothing of it is taken for granted: neither that it
ends, nor that the transaction is still ours afterwards, nor that the session is as it was. Its veto
(`GroupRejected`, or a group of nothing else) is the only thing that it says about the new group; every
other failure is a `HookError`, and the attempt stays pending. Costs two round trips beside those of the transaction and of the hook.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from stretto.domain import CreatedGroup, NewGroup
from stretto.errors import HookError, HookInterrupted, Misconfigured, Refused, StoreError, Transient
from stretto.postgres.connections import WRITE_SECONDS, is_lost, terminate
from stretto.postgres.driver_connection import end_resources
from stretto.postgres.driver_errors import DRIVER_ERRORS, store_error
from stretto.postgres.hook_errors import (
    cause_of,
    drop_all_frames,
    last_raised,
    too_late,
    veto_of,
    without_row_data,
)
from stretto.postgres.hook_handle import HookHandle
from stretto.postgres.pooler import RESET_SESSION, ROLL_BACK_SESSION
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.creation.ports import Write
    from stretto.postgres.driver_connection import Connection

    Lead: TypeAlias = Callable[[Connection, Sequence[Write], float], Awaitable[set[UUID]]]

# Below the deadline of the write that the hook is a part of.
HOOK_SECONDS: Final = WRITE_SECONDS - 1
# A hook that is cancelled cleans up after itself; one that goes on is left alone, without connection.
HOOK_CANCEL_SECONDS: Final = 0.5

OnCreate: TypeAlias = Callable[
    ["Connection", Sequence[tuple[CreatedGroup, NewGroup]]], Awaitable[None]
]
"""A host's hook: runs inside the leader's transaction, for the groups that it creates together."""


@dataclass(frozen=True, slots=True)
class _Session:
    """The transaction that a session is in, and what can be left behind in it."""

    transaction_id: str | None
    durability: str
    state: tuple[object, ...]


class HookedLead:
    """Leads and runs the hook for what was led, in one transaction.

    `discard` drops the connection: it is called where the hook has left something in its session.
    Behind a pooler the session is reset instead, because there it is not ours.
    """

    def __init__(
        self,
        on_create: OnCreate,
        lead: Lead,
        discard: Callable[[], Awaitable[None]],
        *,
        is_pooled: bool,
    ) -> None:
        self._on_create = on_create
        self._lead = lead
        self._discard = discard
        self._is_pooled = is_pooled
        self._first: tuple[Connection, _Session] | None = None
        """The session as it was when the connection was new to us."""

    async def lead(
        self, connection: Connection, writes: Sequence[Write], lock_seconds: float
    ) -> set[UUID]:
        """Return the tokens that led. Raises `HookError`, `Refused`, and errors of the driver.

        The hook's own statements wait for locks no longer than the lead's.
        """
        # Begun by the driver, so that the hook's `connection.transaction()` is a savepoint in it.
        transaction = connection.transaction()
        await transaction.start()
        try:
            led = await self._lead(connection, writes, lock_seconds)
            before = await _session(connection)
        except Exception:
            if not is_lost(connection):
                await transaction.rollback()
            raise
        if self._was_changed(connection, before):
            # A statement that an earlier hook had prepared has run since: nobody knows on what it led.
            await self._roll_back(connection, transaction, before)
            await self._discard()
            message = "something that an earlier on_create has left running has used its session"
            raise Transient(message)
        if not led:
            await transaction.rollback()
            return led
        created = [
            (CreatedGroup(write.group_id, write.conversation_id), write.new_group)
            for write in writes
            if write.claim_token in led
        ]
        try:
            after = await self._run(connection, transaction, created)
        except Exception as error:
            is_gone = await self._roll_back(connection, transaction, before)
            if is_gone and isinstance(error, DRIVER_ERRORS):
                # The database has gone; the hook only met that. What it means is for the store to say.
                raise
            if isinstance(error, HookError):
                raise
            raise _verdict(error) from without_row_data(self._last_raised(error))
        if after.transaction_id != before.transaction_id:
            return await self._ended_by_hook(connection, transaction, before, led)
        await self._commit(connection, transaction, before, after)
        return led

    def _was_changed(self, connection: Connection, before: _Session) -> bool:
        """Whether the session is another than at its first lead; behind a pooler each may be."""
        if self._first is None or self._first[0] is not connection:
            self._first = connection, before
        return not self._is_pooled and self._first[1].state != before.state

    async def _run(
        self,
        connection: Connection,
        transaction: asyncpg.transaction.Transaction,
        created: Sequence[tuple[CreatedGroup, NewGroup]],
    ) -> _Session:
        """Run the hook, for a bounded time; return the session as the hook has left it."""
        handle = HookHandle(connection)
        clock_seconds = asyncio.get_running_loop().time
        started = clock_seconds()
        # A task of its own: what cancels the hook from within does not cancel the writer.
        hook = asyncio.create_task(self._call(handle, created), name="stretto on_create")
        try:
            is_in_time = bool((await asyncio.wait({hook}, timeout=HOOK_SECONDS))[0])
            seconds = clock_seconds() - started
        finally:
            if not hook.done():
                hook.cancel()
                await asyncio.wait({hook}, timeout=HOOK_CANCEL_SECONDS)
            if not hook.done():
                # It must not write into the transactions that come after this one.
                terminate(connection)
            handle.end()
            end_resources(connection, transaction)
        if not is_in_time:
            raise HookError(too_late(seconds, HOOK_SECONDS))
        if hook.cancelled():
            message = "on_create was cancelled by something that it waited for"
            raise HookError(message)
        error = hook.exception()
        is_cut_off = seconds >= HOOK_SECONDS and is_lost(connection)
        if is_cut_off and (error is None or isinstance(error, DRIVER_ERRORS)):
            # The loop was blocked. Once it was free, our own watchdog was due before we were.
            raise HookError(too_late(seconds, HOOK_SECONDS)) from error
        if isinstance(error, Exception):
            try:
                raise error
            finally:
                # Its traceback refers to this frame, which must not refer back.
                del hook, error
        if error is not None:
            message = cause_of(error)
            raise HookError(message) from without_row_data(self._last_raised(error))
        try:
            return await _session(connection)
        except asyncpg.InFailedSQLTransactionError as error:
            # The driver would not say so: it takes the ROLLBACK that answers COMMIT for a commit.
            message = (
                "on_create swallowed a database error, which has aborted the transaction;"
                " catch it outside of `async with connection.transaction()`"
            )
            raise HookError(message) from error

    async def _call(
        self, handle: HookHandle, created: Sequence[tuple[CreatedGroup, NewGroup]]
    ) -> None:
        try:
            await self._on_create(handle, created)
        except (KeyboardInterrupt, SystemExit) as error:
            # A task that raises one of these ends its event loop, and the host with it.
            raise HookError(cause_of(error)) from without_row_data(error)

    def _last_raised(self, error: BaseException) -> BaseException:
        return last_raised(error, HookedLead._call.__code__)

    async def _commit(
        self,
        connection: Connection,
        transaction: asyncpg.transaction.Transaction,
        before: _Session,
        after: _Session,
    ) -> None:
        """Commit; the session is then as it was, or not used again."""
        if self._is_pooled and after.state != before.state:
            await connection.execute(RESET_SESSION)
            await connection.fetch(QUERIES["unlock_session"])
        if after.durability != before.durability:
            await connection.fetch(QUERIES["commit_durably"], before.durability)
        try:
            # It cannot be an aborted transaction: the server has just answered a statement in it.
            await transaction.commit()
        except asyncpg.PostgresError as error:
            # Only what is checked late fails here, and ours is not: it is the host's.
            meaning = store_error(error, connection_lives=not is_lost(connection))
            if isinstance(meaning, (Refused, Misconfigured)):
                await self._keep_if_unchanged(connection, before)
                raise HookError(cause_of(error)) from without_row_data(error)
            raise
        if after.state != before.state:
            # What was set for the transaction alone has gone with it.
            await self._keep_if_unchanged(connection, before)

    async def _roll_back(
        self,
        connection: Connection,
        transaction: asyncpg.transaction.Transaction,
        before: _Session,
    ) -> bool:
        """End the transaction of a hook that has failed; return whether the connection was lost."""
        try:
            if self._is_pooled:
                await connection.execute(ROLL_BACK_SESSION)
            await transaction.rollback()
        except DRIVER_ERRORS:
            is_gone = is_lost(connection)
            await self._discard()
            return is_gone
        await self._keep_if_unchanged(connection, before)
        return False

    async def _ended_by_hook(
        self,
        connection: Connection,
        transaction: asyncpg.transaction.Transaction,
        before: _Session,
        led: set[UUID],
    ) -> set[UUID]:
        """Answer for a transaction that the hook has ended: the server knows how.

        What the hook has begun since is rolled back.
        """
        await transaction.rollback()
        status = await connection.fetchval(QUERIES["transaction_status"], before.transaction_id)
        await self._discard()
        if status != "committed":
            message = (
                "on_create ended the transaction: it must send neither COMMIT nor ROLLBACK;"
                " `async with connection.transaction()` is a savepoint"
            )
            raise HookError(message)
        return led

    async def _keep_if_unchanged(self, connection: Connection, before: _Session) -> None:
        """Drop the connection if something was left in its session; the outcome is known by now."""
        if self._is_pooled:
            return
        try:
            is_unchanged = (await _session(connection)).state == before.state
        except DRIVER_ERRORS:
            is_unchanged = False
        if not is_unchanged:
            await self._discard()


async def _session(connection: Connection) -> _Session:
    row = await connection.fetchrow(QUERIES["session"])
    assert row is not None
    transaction_id, durability, *state = row
    return _Session(transaction_id, durability, tuple(state))


def _verdict(error: Exception) -> StoreError:
    """Return what a hook's failure means for the group: only a veto says anything about it."""
    veto = veto_of(error)
    if veto is not None:
        drop_all_frames(error)
        return Refused(veto)
    is_passing = isinstance(error, asyncpg.PostgresError) and isinstance(
        store_error(error, connection_lives=True), Transient
    )
    return (HookInterrupted if is_passing else HookError)(cause_of(error))
