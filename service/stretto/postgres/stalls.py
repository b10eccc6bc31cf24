"""Stalls: has the server end a write that takes long while others wait.

A trigger of the operator's may hang for the groups of one owner. If only our connection were cut, the
outcome would be unknown, and the server's process would keep the attempts of the whole batch locked. A
server that has frozen looks the same from here. So another connection asks the server to end the
statement. If it does, it is alive, and its answer is certain: nothing was committed (`Stalled`). A
frozen server ends nothing; its write is cut off and its outcome unknown, as ever.

A write that waits for a synchronous standby must not be ended: the server would report a success that
the standby lacks. So the server is asked only about a statement that does not wait for that. If a
write succeeds all the same while it is asked, its outcome counts as unknown.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from contextlib import asynccontextmanager
from statistics import median_low
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.postgres.connections import GRACE_SECONDS, WRITE_SECONDS
from stretto.postgres.driver_connection import is_lost, terminate
from stretto.postgres.lanes import Lane
from stretto.postgres.queries import QUERIES
from stretto.store_errors import Stalled, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from stretto.creation.ports import Write
    from stretto.domain import UserId
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection

# Several times what the largest batch takes. The batch waits so long, and then the request that
# hangs, alone: twice this is what a hang costs its neighbours.
STALL_SECONDS: Final = 0.75
# A write may also take so many times as long as one alone has taken of late: where the server is slow
# for all, taking batches apart makes it slower.
STALL_RATIO: Final = 5.0
# Of whom the times are kept: enough for a median that one or two of them do not move.
OWNERS_MAX: Final = 8
# Who were ended early and are remembered; each costs some 200 bytes.
ENDED_OWNERS_MAX: Final = 4096
# While no other request waits. It leaves the server's answer the rest of the write's time. Without
# an end, the server's process would go on after our connection was cut.
PATIENCE_SECONDS: Final = WRITE_SECONDS - 1
# Of waits for locks in one statement, each of which is bounded by `LOCK_SECONDS`.
LOCKED_SECONDS: Final = 2.0
# From one look to the next, once a write takes long.
LOOK_SECONDS: Final = 0.25


class TimesAlone:
    """How long the last write, or hook, of each of a few owners has taken alone.

    The median counts: one owner whose writes take long must not gain time at the cost of others.
    """

    def __init__(self) -> None:
        self._seconds: dict[UserId, float] = {}
        """The latest at the end."""
        self._chances: dict[UserId, bool] = {}
        """Owners who were ended early, and whether they may take longer the next time."""

    def has_chance(self, owner: UserId) -> bool:
        """Whether the owner was ended early when last alone, and may take as long as a batch now."""
        return self._chances.get(owner, False)

    def note_ended(self, owner: UserId) -> None:
        """Take down that one of this owner was ended alone: after the first time it has a chance."""
        self._chances[owner] = owner not in self._chances
        if len(self._chances) > ENDED_OWNERS_MAX:
            del self._chances[next(iter(self._chances))]

    def patience(
        self, owners: Sequence[UserId], least_seconds: float, most_seconds: float, ratio: float
    ) -> float:
        """Return how long the next step may take, with a request of each of these owners.

        That is `ratio` times the usual time alone, and as long as all of them take one after the other:
        beyond that it is better to take them apart. So it is where there is no time for all of them. For
        several owners, the time of one says nothing.
        """
        times = self._seconds
        is_known = bool(times) if len(set(owners)) == 1 else len(times) > 1
        usual_seconds = median_low(times.values()) if is_known else 0.0
        together_seconds = len(owners) * usual_seconds
        seconds = ratio * usual_seconds
        if together_seconds <= most_seconds:
            seconds = max(seconds, together_seconds)
        return min(most_seconds, max(least_seconds, seconds))

    def note(
        self, owners: Sequence[UserId], seconds: float, short_seconds: float = math.inf
    ) -> None:
        """Take down how long one has taken that has succeeded; from `short_seconds` on that was long."""
        times = self._seconds
        if len(owners) == 1:
            if self._chances.pop(owners[0], None) is not None and seconds >= short_seconds:
                # It may need as long again.
                self._chances[owners[0]] = True
            times.pop(owners[0], None)
            times[owners[0]] = seconds
            if len(times) > OWNERS_MAX:
                del times[next(iter(times))]
        elif owners:
            # None of them would have taken longer alone.
            for owner, alone_seconds in times.items():
                times[owner] = min(seconds, alone_seconds)


class StepTimes:
    """The times of each kind of step of a write; shared by the stores of a component."""

    def __init__(self) -> None:
        self._times: defaultdict[str, TimesAlone] = defaultdict(TimesAlone)

    def of(self, step: str) -> TimesAlone:
        """Return the times of this kind."""
        return self._times[step]


class Stalls:
    """The statements of one write store; `others_wait`: whether a request waits that they delay."""

    def __init__(
        self, database: Database, others_wait: Callable[[], bool], times: StepTimes
    ) -> None:
        self._database = database
        self._others_wait = others_wait
        self._times = times

    @property
    def is_shared(self) -> bool:
        """Whether a pooler shares sessions between clients."""
        return self._database.is_shared

    @asynccontextmanager
    async def ended(
        self, step: str, connection: Connection, writes: Sequence[Write], *, is_hasty: bool = True
    ) -> AsyncIterator[None]:
        """Have the statement inside ended if it stalls; raises `Stalled`.

        Each kind of `step` has its usual time. With `is_hasty` others wait for it in any case. If
        the statement ends by itself while the server is asked, the connection is cut: a request
        that comes late would end the next one.
        """
        clock_seconds = asyncio.get_running_loop().time
        began = clock_seconds()
        is_shared = self.is_shared
        owners = [write.new_group.owner for write in writes]
        times = self._times.of(step)
        process_id = None if is_shared else connection.get_server_pid()

        def is_due() -> bool:
            return is_hasty or self._others_wait() or clock_seconds() - began >= PATIENCE_SECONDS

        async def end(prober: Connection) -> bool:
            return bool(
                await prober.fetchval(
                    QUERIES["end_stalled"],
                    process_id,
                    [write.group_id for write in writes] if is_shared else [],
                    [write.claim_token for write in writes] if is_shared else [],
                    LOCKED_SECONDS,
                    clock_seconds() - began,
                )
            )

        watch = _Watch(self._database, is_due, end)
        watch.look_in(times.patience(owners, STALL_SECONDS, PATIENCE_SECONDS, STALL_RATIO))
        try:
            yield
        except asyncpg.QueryCanceledError as error:
            if not await watch.stop(GRACE_SECONDS):
                raise
            message = (
                "the write kept others waiting and was ended; a trigger may hang for its owner"
            )
            raise Stalled(message) from error
        except BaseException:
            await watch.stop(0 if is_lost(connection) else GRACE_SECONDS)
            raise
        if await watch.stop(GRACE_SECONDS):
            terminate(connection)
            message = "the write ended while the server was asked to end it"
            raise asyncpg.ConnectionDoesNotExistError(message)
        times.note(owners, clock_seconds() - began)


class _Watch:
    """Over one statement; asks the server to `end` it whenever that `is_due`."""

    def __init__(
        self,
        database: Database,
        is_due: Callable[[], bool],
        end: Callable[[Connection], Awaitable[bool]],
    ) -> None:
        self._database = database
        self._is_due = is_due
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_asked = False
        """Whether the server may have been asked; it says later if it was not."""

    def look_in(self, seconds: float) -> None:
        """Look after so many seconds, and then again and again."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    async def stop(self, seconds: float) -> bool:
        """Look no more; return whether the server may have been asked.

        Waits for an answer that is under way, as it says whether the server was asked.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._asking is not None:
            try:
                await asyncio.wait({self._asking}, timeout=seconds)
            finally:
                self._asking.cancel()
        return self._is_asked

    def _look(self) -> None:
        if self._is_due() and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask(), name="end of a stalled write")
        self.look_in(LOOK_SECONDS)

    async def _ask(self) -> None:
        try:
            async with self._database.connection(Lane.PROBE) as connection:
                was_asked, self._is_asked = self._is_asked, True
                self._is_asked = await self._end(connection) or was_asked
        except StoreError:
            # A server that does not answer ends nothing either. The write itself says what it met.
            pass
