"""Asks the host whether an owner may create a group, before anything is claimed.

What was claimed has been allowed. So a key that has an attempt, a group or a tombstone is not refused:
a retry finds what became of it, whatever the host says by now (G3). A refused key is not spent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakValueDictionary

from stretto.creation.attempt import Sighting
from stretto.creation.flight import RETRY_AFTER_SECONDS, public_error
from stretto.creation.host_errors import READING_ERRORS, last_raised, veto_of
from stretto.creation.laggards import (
    AUTHORIZE_SECONDS,
    LATE_CALLS_MAX,
    RETRY_AFTER_SECONDS_MAX,
    Laggards,
)
from stretto.creation.paces import Paces
from stretto.domain import NewGroup
from stretto.errors import AuthorizeFailed, CreationRefused, Overloaded
from stretto.kinds import is_a, name_of
from stretto.misuse import CreatedInHook
from stretto.observations import AuthorizationFailed
from stretto.runtime.cancelling import retrieve
from stretto.runtime.exits import ExitAsError
from stretto.store_errors import StoreError
from stretto.telemetry.logs import logger
from stretto.uuids import uuid_of

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.creation.hook_calls import HookCalls
    from stretto.creation.ports import AttemptStore
    from stretto.domain import UserId
    from stretto.observations import Observer

# Of a process at once: a host whose service hangs keeps so many requests waiting, and rejects others.
# One owner has no more of them than are left free for others: a single owner gets half, a second one a
# quarter. So a few owners, for whom the host's code hangs, do not keep all others out. Nor do many: those
# for whom it was slow leave some to the others (`paces.py`), and those for whom it was late have calls of
# their own (`laggards.py`).
AUTHORIZATIONS_MAX: Final = 1024
# Of one owner at once; further ones wait for these. A host asks its own database: its pool would serve the
# calls of one owner with hundreds of requests before any other's.
CALLS_OF_OWNER: Final = 32
# A call that goes on for so long after its cancellation is stuck: it may never end, so it keeps no place.
# Code that only tidies up has ended by then.
STUCK_SECONDS: Final = 3.0
# With so many stuck calls, an owner is refused without a call for a while, after each that gets stuck. Then
# the host is asked again: it may have recovered, though the old calls never end.
STUCK_OF_OWNER_MAX: Final = 16
# Stuck calls in all, each of some kilobytes; further ones keep their places until there are fewer.
STUCK_MAX: Final = 16_384

Authorize: TypeAlias = Callable[[NewGroup], Awaitable[None]]
"""A host's say about a new group: returns, or raises `GroupRejected`."""
Reportable: TypeAlias = Callable[[BaseException], BaseException | None]
"""Returns an error as a log may show it."""


class _Calls:
    """Calls under way, of which an owner has no more than are left free for others."""

    def __init__(self, at_once_max: int) -> None:
        self._free = at_once_max
        self._of_owner: Counter[UserId] = Counter()

    def begin(self, owner: UserId, left_to_others: int = 0) -> bool:
        """Count one more call of the owner, and return true, if it may begin.

        So many of those that are free are not for this owner.
        """
        if self._of_owner[owner] >= self._free - left_to_others:
            return False
        self._free -= 1
        self._of_owner[owner] += 1
        return True

    def end(self, owner: UserId) -> None:
        """Count one less."""
        self._free += 1
        self._of_owner[owner] -= 1
        if not self._of_owner[owner]:
            del self._of_owner[owner]

    def of(self, owner: UserId) -> int:
        """Return how many there are of the owner."""
        return self._of_owner[owner]


class _Place:
    """What counts a call until it has ended, which a host may delay beyond its time."""

    def __init__(self, calls: _Calls, owner: UserId) -> None:
        self._calls, self._owner = calls, owner

    def end(self, call: asyncio.Task[None]) -> None:
        """Give the place back: the call has ended."""
        self._calls.end(self._owner)
        # Its error may have come too late.
        retrieve(call)

    def end_soon(self, call: asyncio.Task[None], stuck: _StuckCalls) -> None:
        """Count the call, which was cancelled, among the stuck ones unless it ends in time."""
        asyncio.get_running_loop().call_later(STUCK_SECONDS, self._move, call, stuck)

    def _move(self, call: asyncio.Task[None], stuck: _StuckCalls) -> None:
        if call.done():
            return
        if stuck.take(self._owner):
            self._calls.end(self._owner)
            self._calls = stuck
            logger.warning("authorize.stuck", calls=stuck.of(self._owner))
        else:
            self.end_soon(call, stuck)


class _StuckCalls(_Calls):
    """Calls that go on long after their cancellation, and the owners who are refused for them."""

    def __init__(self, clock_seconds: Callable[[], float]) -> None:
        super().__init__(STUCK_MAX)
        self._clock_seconds = clock_seconds
        self._refused_until: dict[UserId, float] = {}

    def take(self, owner: UserId) -> bool:
        """Count one more, if there may be more; with many of them, its owner is refused for a while."""
        if not self._free:
            return False
        self._free -= 1
        self._of_owner[owner] += 1
        if self._of_owner[owner] >= STUCK_OF_OWNER_MAX:
            self._refused_until[owner] = self._clock_seconds() + RETRY_AFTER_SECONDS_MAX
        return True

    def end(self, owner: UserId) -> None:
        """Count one less."""
        super().end(owner)
        if self._of_owner[owner] < STUCK_OF_OWNER_MAX:
            self.allow(owner)

    def allow(self, owner: UserId) -> None:
        """Refuse the owner no longer: the host has answered for it, or its calls have ended."""
        self._refused_until.pop(owner, None)

    def is_refused(self, owner: UserId) -> bool:
        """Whether a call of the owner would most likely not end either."""
        until = self._refused_until.get(owner)
        return until is not None and self._clock_seconds() < until


class Authorization:
    """Calls the host's `authorize`, for a bounded time, and for a bounded number of requests at once."""

    def __init__(
        self,
        authorize: Authorize,
        attempts: AttemptStore,
        lease_seconds: float,
        observe: Observer,
        reportable: Reportable,
        hooks: HookCalls,
    ) -> None:
        """Take what shows which calls of the component's hooks run."""
        self._authorize: Callable[[NewGroup], Awaitable[object]] = authorize
        self._attempts = attempts
        self._lease_seconds = lease_seconds
        self._observe = observe
        self._reportable = reportable
        self._hooks = hooks
        self._laggards, self._paces = Laggards(), Paces()
        self._calls, self._late_calls = _Calls(AUTHORIZATIONS_MAX), _Calls(LATE_CALLS_MAX)
        self._stuck = _StuckCalls(self._laggards.clock_seconds)
        self._turns: WeakValueDictionary[UserId, asyncio.Semaphore] = WeakValueDictionary()
        """Of the owners with requests here."""

    async def require(self, group_id: bytes, new_group: NewGroup) -> None:
        """Return if the host allows the group, or if its key has an attempt or a group already.

        Raises `CreationRefused`, `AuthorizeFailed`, `Overloaded` or `DatabaseUnavailable`.
        """
        try:
            await self._ask(new_group)
        except (CreationRefused, AuthorizeFailed):
            if not await self._is_known(uuid_of(group_id), new_group.owner):
                raise

    async def _is_known(self, group_id: UUID, owner: UserId) -> bool:
        try:
            sighting = await self._attempts.look(group_id, self._lease_seconds, owner)
        except StoreError as error:
            raise public_error(error) from error
        return sighting != Sighting(None, None)

    async def _ask(self, new_group: NewGroup) -> None:
        owner, laggards = new_group.owner, self._laggards
        if self._stuck.is_refused(owner):
            cause = f"{self._stuck.of(owner)} calls of authorize for the owner do not end"
            raise self._failure(cause, None, RETRY_AFTER_SECONDS_MAX)
        is_late = owner in laggards
        calls = self._late_calls if is_late else self._calls
        left_to_others = 0 if is_late else self._paces.left_to_others(owner, AUTHORIZATIONS_MAX)
        if not calls.begin(owner, left_to_others):
            seconds = laggards.retry_after_seconds() if is_late else RETRY_AFTER_SECONDS
            raise Overloaded(retry_after_seconds=seconds)
        turns = self._turns.setdefault(owner, asyncio.Semaphore(CALLS_OF_OWNER))
        try:
            async with asyncio.timeout(AUTHORIZE_SECONDS):
                await turns.acquire()
        except BaseException as error:
            calls.end(owner)
            if isinstance(error, TimeoutError):
                raise Overloaded(retry_after_seconds=RETRY_AFTER_SECONDS) from error
            raise
        try:
            await self._ask_in_turn(new_group, calls)
        finally:
            turns.release()

    async def _ask_in_turn(self, new_group: NewGroup, calls: _Calls) -> None:
        owner, laggards = new_group.owner, self._laggards
        began, patience = laggards.clock_seconds(), laggards.patience_seconds(owner)
        # A task of its own: what cancels the host's code from within does not cancel the request.
        call = asyncio.create_task(self._call(new_group), name="stretto authorize")
        place = _Place(calls, owner)
        call.add_done_callback(place.end)
        try:
            await asyncio.wait({call}, timeout=patience)
        except asyncio.CancelledError:
            laggards.note_left(owner, laggards.clock_seconds() - began)
            raise
        finally:
            if call.cancel():
                place.end_soon(call, self._stuck)
        if not call.done():
            laggards.note_late(owner)
            seconds = laggards.retry_after_seconds()
            raise self._failure(f"authorize took longer than {patience:g} s", None, seconds)
        taken_seconds = laggards.clock_seconds() - began
        laggards.note_answered(owner, taken_seconds)
        self._paces.note(owner, taken_seconds)
        self._stuck.allow(owner)
        self._raise_failure(call)

    def _raise_failure(self, call: asyncio.Task[None]) -> None:
        """Raise what a call that has ended says, unless it allows the group."""
        if call.cancelled():
            raise self._failure("authorize was cancelled by something that it waited for")
        error = call.exception()
        if error is None:
            return
        try:
            veto = veto_of(error)
        except READING_ERRORS:
            veto = None
        if veto is not None:
            raise CreationRefused(veto)
        bug = self._reportable(last_raised(error, Authorization._call.__code__))
        cause = f"authorize raised {name_of(error)}"
        if is_a(error, CreatedInHook):
            # Our own: it says what to do.
            cause += f": {error}"
        raise self._failure(cause, bug) from bug

    async def _call(self, new_group: NewGroup) -> None:
        call = self._hooks.begin("authorize")
        try:
            with ExitAsError("authorize"):
                answer: object = await self._authorize(new_group)
        finally:
            self._hooks.end(call)
        if answer is not None:
            # It may well mean no.
            message = (
                f"authorize must return None or raise GroupRejected, not return {type(answer)!r}"
            )
            raise TypeError(message)

    def _failure(
        self,
        cause: str,
        bug: BaseException | None = None,
        retry_after_seconds: int = RETRY_AFTER_SECONDS,
    ) -> AuthorizeFailed:
        """Report that the host has said neither yes nor no; return the error for the client."""
        self._observe(AuthorizationFailed(cause, bug))
        return AuthorizeFailed(retry_after_seconds=retry_after_seconds)
