"""What creating a group needs from the world: stores and writers.

A store's write ends in one of seven ways, and never in a guess: it returns (committed), or raises
`Refused`, `Transient`, `LeftOver`, `HookError` or `Unreachable` (not committed), or `OutcomeUnknown`
(nobody can know yet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.creation.attempt import Sighting
    from stretto.domain import Group, Member, NewGroup, UserId
    from stretto.errors import Failure


@dataclass(frozen=True, slots=True)
class Write:
    """All that one request may write."""

    group_id: UUID
    claim_token: UUID
    conversation_id: UUID
    new_group: NewGroup
    fingerprint: bytes
    is_claimed: bool
    """Whether the attempt carries the token already, because it was reclaimed."""


@dataclass(frozen=True, slots=True)
class Led:
    """This write created the group, committed."""


@dataclass(frozen=True, slots=True)
class NotLed:
    """Nothing was written: the attempt is another's, gone, or settled. Follow."""


@dataclass(frozen=True, slots=True)
class SettledAsFailed:
    """The attempt is durably failed."""

    failure: Failure


WriteResult = Led | NotLed | SettledAsFailed


class WriteStore(Protocol):
    """The leader's statements, on a connection of its own; raises `StoreError`s."""

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        """Insert pending attempts; return the tokens of those that won."""

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Write groups and settle their attempts in one commit; return the tokens that did.

        A write whose token is not the attempt's, or whose attempt is not pending, writes nothing. In
        haste, a lock is waited for only as long as other requests can bear.
        """

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        """Return the tokens of those whose attempts carry them, pending, and are held by no other."""

    async def are_tables_locked(self) -> bool:
        """Whether another holds, or waits for, a lock on a table that lets no group be written."""

    async def fail(self, write: Write, failure: Failure) -> bool:
        """Settle as failed if the token is still the attempt's and no group exists."""

    async def close(self) -> None:
        """Give the connection back. Idempotent."""

    def cut_off(self) -> None:
        """Break the connection under a write that must not be waited for any longer."""


class AttemptStore(Protocol):
    """A follower's statements; each holds a connection only while it runs."""

    async def look(self, group_id: UUID, lease_seconds: float) -> Sighting:
        """Read the attempt and the group of that id in one query."""

    async def heal(self, group_id: UUID) -> None:
        """Settle the attempt as succeeded from the domain tables; a no-op where there is no group."""

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        """Put a new token in place of the seen one, if the lease is over and no writer holds it."""


class Writers(Protocol):
    """Where a request hands in its write."""

    def ask(self, message: Write) -> asyncio.Future[WriteResult]:
        """Queue the write; raises `Overloaded` at once where there is no room.

        The future raises a `StoreError` when the attempt could not be settled.
        """


class BatchAttemptStore(AttemptStore, Protocol):
    """A follower's statements, of which looking is shared."""

    async def look_all(self, wanted: Sequence[tuple[UUID, float]]) -> Sequence[Sighting]:
        """Read attempts and groups of many ids, each with the lease of its attempt, in one query."""


class BatchGroupStore(Protocol):
    """Reads of the domain tables."""

    async def group_of_member(
        self, wanted: Sequence[tuple[UUID, UserId]]
    ) -> Sequence[Group | None]:
        """Return each group by its id, if this user is a member of it."""

    async def groups_of_member(
        self, wanted: Sequence[tuple[UserId, UUID | None, int]]
    ) -> Sequence[Sequence[Group]]:
        """Return of each user up to so many groups, newest first, behind a conversation."""

    async def members_of_group(
        self, wanted: Sequence[tuple[UUID, str | None, int]]
    ) -> Sequence[Sequence[Member]]:
        """Return of each group up to so many members, in the order of their ids, behind a user."""
