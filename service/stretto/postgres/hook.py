"""The host's hook `on_create`: what runs in the leader's transaction besides the lead itself.

The hook is the host's code on our connection. So it is not assumed that it ends, that the
transaction is still ours afterwards, or that the session is as it was. Its veto (`GroupRejected`,
or an exception group of nothing else) is the only thing that it says about the new group; every
other failure is a `HookError`, and the attempt stays pending. A lead with a hook costs three round trips
beside those of the transaction and of the hook, and behind a pooler one more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from stretto.creation.host_errors import last_raised
from stretto.domain import CreatedGroup, NewGroup
from stretto.kinds import is_a
from stretto.postgres.connecting import LOCK_SECONDS
from stretto.postgres.connections import GRACE_SECONDS, WRITE_SECONDS
from stretto.postgres.driver_connection import end_resources, end_session, is_lost
from stretto.postgres.driver_errors import DRIVER_ERRORS
from stretto.postgres.hook_errors import cause_of, too_late, verdict_of, without_row_data
from stretto.postgres.hook_handle import HookHandle
from stretto.postgres.hook_transaction import HookTransaction
from stretto.postgres.queries import QUERIES
from stretto.postgres.servers import enter_server
from stretto.postgres.sessions import SessionState, session_state
from stretto.runtime.cancelling import retrieve
from stretto.store_errors import HookEnded, HookError, Transient

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.creation.hook_calls import HookCalls
    from stretto.creation.ports import Write
    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.hook_patience import HookPatience
    from stretto.postgres.stalls import Stalls

    Lead: TypeAlias = Callable[[Connection, Sequence[Write], float], Awaitable[set[UUID]]]

# Below the deadline of the write that the hook is a part of.
HOOK_SECONDS: Final = WRITE_SECONDS - 1
# A cancelled hook may clean up for so long; if it goes on, it is left alone, without a connection.
HOOK_CANCEL_SECONDS: Final = 0.5

OnCreate: TypeAlias = Callable[
    ["Connection", Sequence[tuple[CreatedGroup, NewGroup]]], Awaitable[None]
]
"""A host's hook: runs inside the leader's transaction, for the groups that it creates together."""


class HookedLead:
    """Leads and runs the hook for what was led, in one transaction.

    `discard` drops the connection; it is called where the hook has left something in its session.
    Behind a pooler the session is shared, and is reset instead.
    """

    def __init__(
        self,
        on_create: OnCreate,
        lead: Lead,
        discard: Callable[[], Awaitable[None]],
        *,
        stalls: Stalls,
        patience: HookPatience,
        calls: HookCalls,
    ) -> None:
        """Take what shows which calls of the component's hook run."""
        self._on_create = on_create
        self._lead = lead
        self._discard = discard
        self._stalls = stalls
        self._patience = patience
        self._calls = calls
        self._first: tuple[Connection, SessionState] | None = None
        """The session at the first lead on its connection."""

    async def lead(
        self, connection: Connection, writes: Sequence[Write], lock_seconds: float
    ) -> set[UUID]:
        """Return the tokens that led. Raises a `StoreError`, such as `HookError`, or the driver's errors.

        The hook's own statements wait for locks no longer than the lead's.
        """
        # Begun by the driver, so that the hook's `connection.transaction()` is a savepoint in it.
        transaction, began = connection.transaction(), asyncio.get_running_loop().time()
        await transaction.start()
        try:
            if self._stalls.is_shared:
                # Begun by the lead, the new row would stay locked for as long as the hook runs.
                await connection.fetchval(QUERIES["present_history"])
            tokens = await self._lead(connection, writes, lock_seconds)
            before = await session_state(connection)
        except Exception as error:
            if not is_lost(connection):
                await transaction.rollback()
            if isinstance(error, asyncpg.SerializationError):
                await enter_server(connection)
            raise
        is_hasty = lock_seconds < LOCK_SECONDS
        led = HookTransaction(
            connection=connection,
            transaction=transaction,
            before=before,
            writes=writes,
            is_hasty=is_hasty,
            began=began,
            stalls=self._stalls,
            discard=self._discard,
        )
        if self._was_changed(led):
            # Something that an earlier hook left behind has used it: what this lead ran in is unknown.
            await led.roll_back()
            await self._discard()
            message = "an earlier on_create left something running, which has changed the session"
            raise Transient(message)
        if not tokens:
            await transaction.rollback()
            return tokens
        created = [
            (CreatedGroup(write.group_id, write.conversation_id), write.new_group)
            for write in writes
            if write.claim_token in tokens
        ]
        try:
            await self._run(led, created)
        except Exception as error:
            is_gone = await led.roll_back()
            if is_a(error, HookError):
                raise
            # Not assigned to a name: it would refer to itself, by its traceback and this frame.
            raise verdict_of(error, is_gone=is_gone) from without_row_data(self._last_raised(error))
        after = await led.run_deferred()
        if after.transaction_id != before.transaction_id:
            await led.require_committed()
        else:
            await led.commit(after)
        return tokens

    def _was_changed(self, led: HookTransaction) -> bool:
        """Whether the session has changed since its first lead; behind a pooler each may differ."""
        if self._first is None or self._first[0] is not led.connection:
            self._first = led.connection, led.before
        return not self._stalls.is_shared and self._first[1].state != led.before.state

    async def _run(
        self, led: HookTransaction, created: Sequence[tuple[CreatedGroup, NewGroup]]
    ) -> None:
        """Run the hook, for a bounded time."""
        handle = HookHandle(led.connection)
        clock_seconds = asyncio.get_running_loop().time
        started = clock_seconds()
        # A task of its own: what cancels the hook from within does not cancel the writer.
        hook = asyncio.create_task(self._call(handle, created), name="stretto on_create")
        try:
            owners = [new_group.owner for _, new_group in created]
            patience_seconds = await self._patience.wait(
                hook, owners, HOOK_SECONDS, is_hasty=led.is_hasty
            )
            is_in_time = hook.done()
            seconds = clock_seconds() - started
        finally:
            if not hook.done():
                hook.cancel()
                await asyncio.wait({hook}, timeout=HOOK_CANCEL_SECONDS)
            if not hook.done():
                # It must not write into the transactions that come after this one.
                await end_session(led.connection, GRACE_SECONDS)
                hook.add_done_callback(retrieve)
            handle.end()
            end_resources(led.connection, led.transaction)
        # One for which others wait may be slow because all are, however long it was given.
        if not is_in_time and (led.is_hasty or patience_seconds < HOOK_SECONDS):
            raise HookEnded(too_late(seconds, patience_seconds))
        if not is_in_time:
            raise HookError(too_late(seconds, HOOK_SECONDS))
        if hook.cancelled():
            message = "on_create was cancelled by something that it waited for"
            raise HookError(message)
        error = hook.exception()
        is_cut_off = is_lost(led.connection) and clock_seconds() - led.began >= HOOK_SECONDS
        if is_cut_off and (error is None or is_a(error, DRIVER_ERRORS)):
            # By our own watchdog: the loop was blocked, or the lead took most of the write's time.
            cause = None if error is None else without_row_data(self._last_raised(error))
            raise HookError(too_late(seconds, HOOK_SECONDS)) from cause
        if is_a(error, Exception):
            try:
                raise error
            finally:
                # Its traceback refers to this frame, which must not refer back.
                del hook, error
        if error is not None:
            message = cause_of(error)
            raise HookError(message) from without_row_data(self._last_raised(error))

    async def _call(
        self, handle: HookHandle, created: Sequence[tuple[CreatedGroup, NewGroup]]
    ) -> None:
        call = self._calls.begin("on_create")
        try:
            await self._on_create(handle, created)
        except (KeyboardInterrupt, SystemExit) as error:
            # A task that raises one of these ends its event loop, and the host with it.
            raise HookError(cause_of(error)) from without_row_data(error)
        finally:
            self._calls.end(call)

    def _last_raised(self, error: BaseException) -> BaseException:
        return last_raised(error, HookedLead._call.__code__)
