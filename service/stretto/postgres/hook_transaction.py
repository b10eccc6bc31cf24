"""HookTransaction: the leader's transaction around a host's hook, and how it ends.

What is deferred to the commit, by the host's triggers and constraints, runs right behind the hook. So
whatever it sets is found with what the hook has set, and set back before the commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from stretto.postgres.driver_connection import is_lost
from stretto.postgres.driver_errors import DRIVER_ERRORS, store_error
from stretto.postgres.hook_errors import cause_of, verdict_of, without_row_data
from stretto.postgres.pooler import RESET_SESSION, ROLL_BACK_SESSION
from stretto.postgres.queries import QUERIES
from stretto.postgres.sessions import SessionState, run_deferred, session_state
from stretto.store_errors import HookError, Misconfigured, Refused, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from asyncpg.transaction import Transaction

    from stretto.creation.ports import Write
    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.stalls import Stalls


@dataclass(frozen=True, slots=True)
class HookTransaction:
    """A lead whose transaction is open, and its session before the hook.

    `discard` drops the connection; it is called where something was left in its session. Behind a pooler
    the session is shared, and is reset instead.
    """

    connection: Connection
    transaction: Transaction
    before: SessionState
    writes: Sequence[Write]
    is_hasty: bool
    began: float
    """On the loop's clock."""
    stalls: Stalls
    discard: Callable[[], Awaitable[None]]

    async def run_deferred(self) -> SessionState:
        """Run what is deferred to the commit; return the session as that and the hook have left it.

        Raises a `StoreError`, such as `HookError`, or the driver's errors; it is rolled back then.
        """
        was_lost = is_lost(self.connection)
        try:
            # It may hang for one owner, as a trigger of the lead may.
            ended = self.stalls.ended(
                "commit", self.connection, self.writes, is_hasty=self.is_hasty
            )
            async with ended:
                await run_deferred(self.connection)
            return await session_state(self.connection)
        except StoreError:
            await self.roll_back()
            raise
        except Exception as error:
            is_gone = await self.roll_back()
            if isinstance(error, asyncpg.InFailedSQLTransactionError):
                # The driver would not report it: it takes the ROLLBACK that answers COMMIT for a
                # commit.
                message = (
                    "on_create swallowed a database error, which has aborted the transaction;"
                    " catch it outside of `async with connection.transaction()`"
                )
                raise HookError(message) from error
            if is_gone and not was_lost:
                # Cut by our own watchdog, or with the server: as a commit would be.
                raise
            if is_gone or not isinstance(error, asyncpg.PostgresError):
                raise verdict_of(error, is_gone=is_gone) from without_row_data(error)
            # Only deferred checks are refused here. We have none: it is one of the host's.
            if isinstance(store_error(error, connection_lives=True), (Refused, Misconfigured)):
                raise HookError(cause_of(error)) from without_row_data(error)
            raise

    async def commit(self, after: SessionState) -> None:
        """Commit; the session is then as it was, or not used again."""
        before = self.before
        is_reset = self.stalls.is_shared and after.state != before.state
        if is_reset:
            await self.connection.execute(RESET_SESSION)
            await self.connection.fetch(QUERIES["unlock_session"])
        if is_reset or after.at_commit != before.at_commit:
            await self.connection.fetch(QUERIES["commit_durably"], *before.at_commit)
        # The transaction is not aborted: the server has just answered a statement in it.
        await self.transaction.commit()
        if after.state != before.state:
            # What was set for the transaction alone has gone with it.
            await self._keep_if_unchanged()

    async def roll_back(self) -> bool:
        """End the transaction of a hook that has failed; return whether the connection was lost."""
        try:
            if self.stalls.is_shared:
                await self.connection.execute(ROLL_BACK_SESSION)
            await self.transaction.rollback()
        except DRIVER_ERRORS:
            is_gone = is_lost(self.connection)
            await self.discard()
            return is_gone
        await self._keep_if_unchanged()
        return False

    async def require_committed(self) -> None:
        """Raise `HookError` unless the hook, which has ended the transaction, has committed it.

        What the hook has begun since is rolled back. Only the server knows how the first one ended. One
        that was prepared would keep the attempts of the whole batch locked until it is ended by hand.
        """
        await self.transaction.rollback()
        transaction_id = self.before.transaction_id
        try:
            status = await self.connection.fetchval(QUERIES["transaction_status"], transaction_id)
            undo = await self.connection.fetchval(QUERIES["rollback_prepared"], transaction_id)
            if undo is not None:
                await self.connection.execute(undo)
        finally:
            await self.discard()
        if status != "committed":
            message = (
                "on_create ended the transaction: it must send neither COMMIT, ROLLBACK nor PREPARE"
                " TRANSACTION; `async with connection.transaction()` is a savepoint"
            )
            raise HookError(message)

    async def _keep_if_unchanged(self) -> None:
        """Drop the connection if something was left in its session; the outcome is known by now."""
        if self.stalls.is_shared:
            return
        try:
            is_unchanged = (await session_state(self.connection)).state == self.before.state
        except DRIVER_ERRORS:
            is_unchanged = False
        if not is_unchanged:
            await self.discard()
