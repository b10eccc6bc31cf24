"""A writer's statements, on a connection of its own, and what their errors mean for a write."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from stretto.creation.hook_calls import HookCalls
from stretto.postgres.connecting import CONNECT_SECONDS, LOCK_SECONDS
from stretto.postgres.connections import GRACE_SECONDS, WRITE_SECONDS, Database
from stretto.postgres.driver_connection import (
    end_session,
    guarded,
    is_in_transaction,
    is_lost,
    terminate,
    watchdog,
)
from stretto.postgres.driver_errors import DRIVER_ERRORS, READ_ONLY_STATE, in_words, store_error
from stretto.postgres.hook import HookedLead
from stretto.postgres.hook_patience import HookPatience
from stretto.postgres.queries import QUERIES, at_home
from stretto.postgres.servers import enter_server, is_same_backend
from stretto.postgres.sessions import is_changed, unchanged
from stretto.postgres.stalls import Stalls, StepTimes
from stretto.postgres.trail import instance
from stretto.postgres.write_columns import claim_columns, group_columns, lead_ids, milliseconds
from stretto.store_errors import (
    InDoubt,
    Misconfigured,
    OutcomeUnknown,
    StoreError,
    Transient,
    Unreachable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from uuid import UUID

    from stretto.creation.ports import Write
    from stretto.domain import UserId
    from stretto.errors import Failure
    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.hook import OnCreate

# While other requests wait. A row that another lead holds is free in a few milliseconds; a row of
# the host's may be held for any time. Below `ALONE_SECONDS`: a hook's lock times out before its end.
HASTY_LOCK_SECONDS: Final = 0.22


class PostgresWriteStore:
    """A writer's statements. Connects when needed; a broken connection is dropped at once.

    `on_lost` is called when the database may be another one than before: remembered outcomes may be
    wrong. `others_wait` returns whether a request waits that a write delays. `hooks` are the calls of
    `on_create` that run, and `times` how long writes take, of all stores of a component.
    """

    def __init__(
        self,
        database: Database,
        on_lost: Callable[[], None],
        on_create: OnCreate | None = None,
        others_wait: Callable[[], bool] = lambda: False,
        hooks: HookCalls | None = None,
        times: StepTimes | None = None,
    ) -> None:
        self._database = database
        self._on_lost = on_lost
        self._connection: Connection | None = None
        self._server: str | None = None
        """Which server the last connection led to."""
        self._is_writing = False
        self.is_cut_off = False
        """Whether the last try to connect has failed, or is under way."""
        self.is_misfit = False
        """Whether the database lacked what a statement needs, and no group was written since."""
        self.owner_led: UserId | None = None
        """Whose group was written last."""
        times = StepTimes() if times is None else times
        self._stalls = Stalls(database, others_wait, times)
        self._hooked: HookedLead | None = None
        if on_create is not None:
            self._hooked = HookedLead(
                on_create,
                self._lead,
                self._discard,
                stalls=self._stalls,
                patience=HookPatience(others_wait, times.of("hook")),
                calls=hooks or HookCalls(),
            )

    @property
    def is_connected(self) -> bool:
        """Whether a write needs no new connection, as far as is known."""
        return self._connection is not None and not is_lost(self._connection)

    @property
    def writes_at_once(self) -> bool:
        """Whether a batch may be claimed and led in one round trip: no hook runs in between."""
        return self._hooked is None

    async def open(self) -> None:
        """Connect and have what writes planned, so that the first request need not wait for it.

        Raises as the statements do; what is not done now is done when it is needed.
        """
        if self.writes_at_once:
            await self.claim_and_lead([])
            return
        await self.claim([])
        await self.lead([])

    async def claim_and_lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Claim and lead in two commits and one round trip; return the tokens that led.

        After an error the claims may be committed.
        """
        async with (
            self._writing() as connection,
            self._stalls.ended("lead", connection, writes, is_hasty=is_hasty),
        ):
            led = await connection.fetchval(
                at_home(QUERIES["claim_and_lead"], self._database.home),
                *claim_columns(writes),
                *group_columns(writes),
                milliseconds(HASTY_LOCK_SECONDS if is_hasty else LOCK_SECONDS),
            )
        return self._noted(writes, set(led or ()))

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        """Insert pending attempts; return the tokens of those that won."""
        async with self._writing() as connection, self._stalls.ended("claim", connection, writes):
            claim = at_home(QUERIES["claim"], self._database.home)
            won = await connection.fetchval(claim, *claim_columns(writes))
        return set(won or ())

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Write groups and settle their attempts; return the tokens that did."""
        async with self._writing() as connection:
            lead = self._lead if self._hooked is None else self._hooked.lead
            led = await lead(connection, writes, HASTY_LOCK_SECONDS if is_hasty else LOCK_SECONDS)
        return self._noted(writes, led)

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        """Return the tokens of the attempts that a lead would not have to wait for."""
        async with self._writing() as connection:
            unlocked = at_home(QUERIES["unlocked"], self._database.home)
            rows = await connection.fetch(unlocked, *lead_ids(writes))
        return {row["claim_token"] for row in rows}

    async def are_tables_locked(self) -> bool:
        """Whether another session holds, or waits for, a table lock that prevents every write."""
        async with self._writing() as connection:
            return bool(await connection.fetchval(QUERIES["are_tables_locked"]))

    async def fail(self, write: Write, failure: Failure) -> bool:
        """Settle as failed, durably, unless the attempt is no longer ours."""
        async with (
            self._writing() as connection,
            self._stalls.ended("fail", connection, [write]),
            unchanged(connection, is_flushed=True),
        ):
            fail = at_home(QUERIES["fail"], self._database.home)
            columns = (write.group_id, write.claim_token, failure.code, failure.detail)
            settled = await connection.fetch(fail, *columns, instance(), write.trace_id)
        return bool(settled)

    async def close(self) -> None:
        """Release the connection. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if not is_lost(connection):
                connection.remove_termination_listener(self._report_loss)
            await self._database.release(connection)

    async def release(self) -> None:
        """Release the connection, unless a write is under way. The next write takes another."""
        if not self._is_writing:
            await self.close()

    def cut_off(self) -> None:
        """Cut the connection under a write: cancelling it may make the server report a success."""
        if self._is_writing and self._connection is not None:
            terminate(self._connection)

    @asynccontextmanager
    async def _writing(self) -> AsyncIterator[Connection]:
        """Yield our connection for one write; errors on it are raised as `StoreError`s."""
        if self._connection is not None and is_in_transaction(self._connection):
            # All of ours have ended: a statement that a host's hook has left running began it.
            await self._discard()
        await self._database.standby.require_reached()
        connection = self._connection
        if connection is None or is_lost(connection):
            connection = await self._connect()
        self._is_writing = True
        began = self._database.standby.clock_seconds()
        try:
            with guarded(connection, WRITE_SECONDS):
                yield connection
        except DRIVER_ERRORS as error:
            # Not assigned to a name: it would refer to itself, by its traceback and this frame.
            raise await self._meaning(error, connection, began) from error
        finally:
            self._is_writing = False

    def _noted(self, writes: Sequence[Write], led: set[UUID]) -> set[UUID]:
        """Note that the schema takes groups. A claim, or a batch of which none led, shows less."""
        owner = next((each.new_group.owner for each in writes if each.claim_token in led), None)
        if owner is not None:
            self.is_misfit, self.owner_led = False, owner
            self._database.standby.note_commit()
        return led

    async def _lead(
        self, connection: Connection, writes: Sequence[Write], lock_seconds: float
    ) -> set[UUID]:
        is_hasty = lock_seconds < LOCK_SECONDS
        async with self._stalls.ended("lead", connection, writes, is_hasty=is_hasty):
            columns = (*lead_ids(writes), *group_columns(writes), milliseconds(lock_seconds))
            lead = QUERIES["lead"] if self.writes_at_once else QUERIES["lead_before_hook"]
            led = await connection.fetchval(at_home(lead, self._database.home), *columns)
        return set(led or ())

    async def _connect(self) -> Connection:
        """Acquire a connection and watch it; raises `Unreachable`.

        There was no watch since the last connection was given up. So the server is asked which it
        is: if it is another one, remembered outcomes are forgotten as after a loss.
        """
        await self._drop()
        self.is_cut_off = True
        connection = await self._database.acquire()
        try:
            with watchdog(connection, CONNECT_SECONDS):
                server = await enter_server(connection)
        except BaseException as error:
            terminate(connection)
            await self._database.release(connection)
            self.is_misfit |= isinstance(error, Misconfigured)
            if isinstance(error, DRIVER_ERRORS):
                raise Unreachable(in_words(error)) from error
            raise
        self._connection, self.is_cut_off = connection, False
        connection.add_termination_listener(self._report_loss)
        if self._server not in (None, server):
            self._on_lost()
        self._server = server
        return connection

    async def _meaning(
        self, error: BaseException, connection: Connection, began: float
    ) -> StoreError:
        """Return what an error means for the write; drop a connection that is of no more use."""
        meaning = store_error(error, connection_lives=not is_lost(connection))
        if isinstance(meaning, InDoubt) and not await is_same_backend(connection):
            meaning = OutcomeUnknown(*meaning.args)
        self.is_misfit |= isinstance(meaning, Misconfigured)
        is_read_only = getattr(error, "sqlstate", "") == READ_ONLY_STATE
        if is_read_only or type(meaning) is OutcomeUnknown:
            await self._drop()
            meaning = await self._database.standby.explained(meaning, began, error)
        elif isinstance(meaning, Misconfigured | Transient) and await is_changed(connection, error):
            await self._discard()
        return meaning

    async def _discard(self) -> None:
        """Replace a connection whose session has changed; remembered outcomes stay right.

        The next one is opened at once. Without a connection, a failover would not be noticed until
        the next write, and outcomes that the new primary lacks would still be replayed.
        """
        connection = self._connection
        if connection is None or is_lost(connection):
            await self._drop()
            return
        connection.remove_termination_listener(self._report_loss)
        # A hook may have left a statement running, in a transaction that locks a batch's attempts.
        await end_session(connection, GRACE_SECONDS)
        await self._drop()
        try:
            await self._connect()
        except StoreError:
            # A failover would go unnoticed now. The write that led here keeps its outcome.
            self._on_lost()

    async def _drop(self) -> None:
        """Give up a connection whose state is unknown."""
        connection, self._connection = self._connection, None
        if connection is not None:
            terminate(connection)
            await self._database.release(connection)

    def _report_loss(self, _: Connection) -> None:
        """Report a lost connection at once: the next one may lead to another server."""
        self._on_lost()
