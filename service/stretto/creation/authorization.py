"""Asks the host whether an owner may create a group, before anything is claimed.

What was claimed has been allowed. So a key that has an attempt, a group or a tombstone is not refused:
a retry finds what became of it, whatever the host says by now (G3). A refused key is not spent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from stretto.creation.attempt import Sighting
from stretto.creation.flight import RETRY_AFTER_SECONDS, public_error
from stretto.creation.host_errors import last_raised, veto_of
from stretto.domain import NewGroup
from stretto.errors import AuthorizeFailed, CreationRefused, Overloaded
from stretto.kinds import is_a
from stretto.misuse import CreatedInHook
from stretto.observations import AuthorizationFailed
from stretto.runtime.exits import ExitAsError
from stretto.store_errors import StoreError
from stretto.uuids import uuid_of

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.creation.hook_calls import HookCalls
    from stretto.creation.ports import AttemptStore
    from stretto.domain import UserId
    from stretto.observations import Observer

# Nothing is claimed yet, so nothing but its own request waits for it. Half of a client's patience is
# left to the write.
AUTHORIZE_SECONDS: Final = 2.0
# Of a process at once: a host whose service hangs keeps so many requests waiting, and rejects others.
# One owner has no more of them than are left free for others: alone half, beside one that has half a
# quarter. So a few owners, for whom the host's code hangs, do not keep all others out.
AUTHORIZATIONS_MAX: Final = 1024

Authorize: TypeAlias = Callable[[NewGroup], Awaitable[None]]
"""A host's say about a new group: returns, or raises `GroupRejected`."""
Reportable: TypeAlias = Callable[[BaseException], BaseException | None]
"""Returns an error as a log may show it."""


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
        self._under_way: Counter[UserId] = Counter()
        """Calls of each owner that have not ended."""
        self._calls = 0

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
        owner = new_group.owner
        if self._under_way[owner] >= AUTHORIZATIONS_MAX - self._calls:
            raise Overloaded(retry_after_seconds=RETRY_AFTER_SECONDS)
        # A task of its own: what cancels the host's code from within does not cancel the request.
        call = asyncio.create_task(self._call(new_group), name="stretto authorize")
        self._calls += 1
        self._under_way[owner] += 1
        # Counted until it has ended, which a host may delay beyond its time.
        call.add_done_callback(partial(self._end, owner))
        try:
            await asyncio.wait({call}, timeout=AUTHORIZE_SECONDS)
        finally:
            call.cancel()
        if not call.done():
            raise self._failure(f"authorize took longer than {AUTHORIZE_SECONDS:g} s")
        if call.cancelled():
            raise self._failure("authorize was cancelled by something that it waited for")
        error = call.exception()
        if error is None:
            return
        try:
            veto = veto_of(error)
        except Exception:  # noqa: BLE001 whatever the host's error raises where it is read
            veto = None
        if veto is not None:
            raise CreationRefused(veto)
        bug = self._reportable(last_raised(error, Authorization._call.__code__))
        cause = f"authorize raised {type(error).__name__}"
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

    def _end(self, owner: UserId, call: asyncio.Task[None]) -> None:
        self._calls -= 1
        self._under_way[owner] -= 1
        if not self._under_way[owner]:
            del self._under_way[owner]
        if not call.cancelled():
            # Read, or asyncio complains of one that came too late.
            call.exception()

    def _failure(self, cause: str, bug: BaseException | None = None) -> AuthorizeFailed:
        """Report that the host has said neither yes nor no; return the error for the client."""
        self._observe(AuthorizationFailed(cause, bug))
        return AuthorizeFailed(retry_after_seconds=RETRY_AFTER_SECONDS)
