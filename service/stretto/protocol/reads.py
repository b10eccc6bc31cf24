"""What reading needs from stores: statements that answer many questions at once, in their order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stretto.protocol.ports import AttemptStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.domain import Group, Member, UserId
    from stretto.protocol.attempt import Sighting


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
