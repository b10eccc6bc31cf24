"""Handle: what a host does with a running component, without HTTP.

Every error is one of the tree (`errors.py`), as the HTTP API answers it; `problem_of` turns it into
an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from stretto.assembly.host_options import require_on_event
from stretto.creation.creator import WAIT_SECONDS_DEFAULT
from stretto.creation.flight import public_error
from stretto.creation.reads import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from stretto.domain import IdempotencyKey, UserId
from stretto.errors import NotFound
from stretto.kinds import require_kind, require_seconds
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from stretto.creation.creator import GroupCreator
    from stretto.creation.flight import Answer
    from stretto.creation.lookup import AttemptLookup, AttemptReport
    from stretto.creation.reads import Reads
    from stretto.domain import Group, Member, NewGroup
    from stretto.events.subscriptions import OnEvent, Subscriptions


class Running(Protocol):
    """The parts that a handle uses."""

    @property
    def creator(self) -> GroupCreator:
        """Creates."""

    @property
    def lookup(self) -> AttemptLookup:
        """Reports on attempts."""

    @property
    def reads(self) -> Reads:
        """Reads groups."""

    @property
    def subscriptions(self) -> Subscriptions:
        """Gives events to the host."""

    def announce(self) -> None:
        """Wakes every reader of the log."""


class Handle(ABC):
    """What a host does with its component; use it in the event loop of the component.

    No call asks who may do this: authentication and permissions are the host's. Arguments are
    checked before a question joins others in a statement: a wrong one would fail those too.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def _running(self) -> Running:
        """Return the running component; raises `NotStarted`."""

    async def create(
        self, key: str, new_group: NewGroup, *, wait_seconds: float = WAIT_SECONDS_DEFAULT
    ) -> Answer:
        """Create the group, or find the one that this owner and key have created already.

        Cancelling the call does not cancel the attempt; call again with the same key. Raises
        `KeyInvalid`, `KeyReused`, `AttemptFailed`, `GroupDeleted`, `AttemptPending`, `RateLimited`,
        `Overloaded`, `HookFailed`, `CreationRefused`, `AuthorizeFailed` or `DatabaseUnavailable`.
        """
        creator = self._running.creator
        return await creator.create(IdempotencyKey(key), new_group, wait_seconds=wait_seconds)

    async def create_from(
        self,
        owner: str,
        key: str,
        body: bytes,
        *,
        wait_seconds: float = WAIT_SECONDS_DEFAULT,
        claims: Mapping[str, Any] | None = None,
    ) -> Answer:
        """Create the group that the JSON body of a `POST /v1/groups` asks for; as `create` otherwise.

        `claims` are for `authorize` and `on_create`. Raises `RequestInvalid` as well.
        """
        return await self._running.creator.create_from(
            UserId(owner), IdempotencyKey(key), body, wait_seconds=wait_seconds, claims=claims
        )

    async def attempt(self, owner: str, key: str, *, wait_seconds: float = 0.0) -> AttemptReport:
        """Report what became of an attempt; wait so long for a pending one.

        Raises `NotFound`, `GroupDeleted`, `Overloaded` or `DatabaseUnavailable`.
        """
        require_seconds("wait_seconds", wait_seconds)
        lookup = self._running.lookup
        with _public_errors():
            return await lookup.look_up(UserId(owner), IdempotencyKey(key), wait_seconds)

    async def group(self, group_id: UUID, *, member: str | None = None) -> Group:
        """Return a group; with a `member`, only if that user is one.

        That of a key is `group(stretto.group_id(owner, key))`. Raises `NotFound`, `Overloaded` or
        `DatabaseUnavailable`.
        """
        require_kind("group_id", group_id, UUID)
        user = None if member is None else UserId(member)
        with _public_errors():
            group = await self._running.reads.groups.group_of_member(group_id, user)
        if group is None:
            raise NotFound
        return group

    async def groups(
        self, user: str, *, after: UUID | None = None, limit: int = PAGE_ITEMS_DEFAULT
    ) -> Sequence[Group]:
        """Return the groups of which a user is a member, newest first.

        The next page is `after` the `conversation_id` of the last group. Raises `Overloaded` or
        `DatabaseUnavailable`.
        """
        _require_limit(limit)
        require_kind("after", after, UUID, NoneType)
        with _public_errors():
            return await self._running.reads.groups.groups_of_member(UserId(user), after, limit)

    async def members(
        self, group_id: UUID, *, after: str | None = None, limit: int = PAGE_ITEMS_DEFAULT
    ) -> Sequence[Member]:
        """Return members of a group in the order of their ids.

        The next page is `after` the `user_id` of the last one. Raises `NotFound`, also where the group
        was deleted after an earlier page, `Overloaded` or `DatabaseUnavailable`.
        """
        _require_limit(limit)
        require_kind("group_id", group_id, UUID)
        require_kind("after", after, str, NoneType)
        if after is not None and not (after.isascii() and after.isprintable()):
            message = "after must be the id of a user"
            raise ValueError(message)
        with _public_errors():
            reads = self._running.reads.groups
            members = await reads.members_of_group(group_id, None, after, limit)
        if members is None:
            raise NotFound
        return members

    async def on_event(self, callback: OnEvent) -> Callable[[], Awaitable[None]]:
        """Call back for each event that commits from now on, of every owner's groups.

        One call at a time, in the order of the log, also while calls are slow: then later events
        wait in the log. A call that raises, or takes more than 30 s, is reported (`on_event.failed`) and
        not repeated. Nothing is kept over the end of the process: what must not be missed goes
        through a bus or a webhook.

        Return an async function that ends this. Raises `Overloaded` for more than 16 subscriptions, or
        `DatabaseUnavailable`.
        """
        require_on_event(callback)
        self._running.creator.require_own_loop()
        with _public_errors():
            return await self._running.subscriptions.begin(callback)

    def announce(self) -> None:
        """Have the log read now: call it once a transaction that has changed groups is committed.

        Without it the events are found by looking, within a second. It wakes the readers of all
        processes, waits for nothing, and one call too many does no harm. Another thread has the
        loop call it: `loop.call_soon_threadsafe(component.announce)`.
        """
        self._running.announce()


@contextmanager
def _public_errors() -> Iterator[None]:
    """Raise a store's error as the one that callers get."""
    try:
        yield
    except StoreError as error:
        raise public_error(error) from error


def _require_limit(limit: int) -> None:
    require_kind("limit", limit, int)
    if not 1 <= limit <= PAGE_ITEMS_MAX:
        message = f"limit must be 1 to {PAGE_ITEMS_MAX}, not {limit}"
        raise ValueError(message)
