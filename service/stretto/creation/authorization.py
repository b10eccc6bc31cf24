"""Asks the host whether an owner may create a group, before anything is claimed.

What was claimed has been allowed. So a key that has an attempt or a group is not refused: a retry finds
what became of it, whatever the host says by now (G3). A refused key is not spent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from stretto.creation.flight import RETRY_AFTER_SECONDS, public_error
from stretto.creation.host_errors import last_raised, veto_of
from stretto.domain import NewGroup
from stretto.errors import AuthorizeFailed, CreationRefused, Overloaded
from stretto.observations import AuthorizationFailed
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from stretto.creation.ports import AttemptStore
    from stretto.domain import UserId
    from stretto.observations import Observer

# Nothing is claimed yet, so nothing but its own request waits for it. Half of a client's patience is
# left to the write.
AUTHORIZE_SECONDS: Final = 2.0
# Of a process at once: a host whose service hangs keeps so many requests waiting, and rejects others.
AUTHORIZATIONS_MAX: Final = 1024
# One owner does not take all of them.
OWNER_AUTHORIZATIONS_MAX: Final = 512

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
    ) -> None:
        self._authorize: Callable[[NewGroup], Awaitable[object]] = authorize
        self._attempts = attempts
        self._lease_seconds = lease_seconds
        self._observe = observe
        self._reportable = reportable
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
            if not await self._is_known(UUID(bytes=group_id)):
                raise

    async def _is_known(self, group_id: UUID) -> bool:
        try:
            sighting = await self._attempts.look(group_id, self._lease_seconds)
        except StoreError as error:
            raise public_error(error) from error
        return sighting.attempt is not None or sighting.group is not None

    async def _ask(self, new_group: NewGroup) -> None:
        owner = new_group.owner
        if self._calls >= AUTHORIZATIONS_MAX or self._under_way[owner] >= OWNER_AUTHORIZATIONS_MAX:
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
        raise self._failure(f"authorize raised {type(error).__name__}", bug) from bug

    async def _call(self, new_group: NewGroup) -> None:
        try:
            answer: object = await self._authorize(new_group)
        except (KeyboardInterrupt, SystemExit) as error:
            # A task that raises one of these ends its event loop, and the host with it.
            message = f"authorize raised {type(error).__name__}"
            raise RuntimeError(message) from error
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
