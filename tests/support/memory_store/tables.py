"""The rows of the in-memory database, as one immutable state after another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from stretto.creation.attempt import AttemptStatus, GroupRow, Tombstone
from stretto.domain import CreatedGroup, event_id

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime
    from uuid import UUID

    from stretto.domain import NewGroup
    from stretto.errors import Failure


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """A row of `attempt`. Rows that differ only by their times are equal."""

    fingerprint: bytes
    claim_token: UUID
    claimed_at: datetime = field(compare=False)
    status: AttemptStatus = AttemptStatus.PENDING
    conversation_id: UUID | None = None
    failure: Failure | None = None
    settled_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A row of `chat_group`; all that is asked for stands in `new_group`."""

    group_id: UUID
    conversation_id: UUID
    new_group: NewGroup
    fingerprint: bytes
    created_at: datetime = field(compare=False)

    def seen(self) -> GroupRow:
        """Return what a follower reads of it."""
        created = CreatedGroup(self.group_id, self.conversation_id)
        return GroupRow(created, self.fingerprint, self.created_at)


@dataclass(frozen=True, slots=True)
class TombstoneRecord:
    """A row of `chat_group` that was emptied, or that the sweep of a failed attempt has left."""

    group_id: UUID
    failure: Failure | None
    settled_at: datetime = field(compare=False)
    deleted_at: datetime | None = field(default=None, compare=False)

    def seen(self) -> Tombstone:
        """Return what a follower reads of it."""
        return Tombstone(self.settled_at, self.failure, self.deleted_at)


@dataclass(frozen=True)
class Tables:
    """All rows at one moment. Groups are a list: that there is one per id is the key's work."""

    attempts: Mapping[UUID, AttemptRow] = field(default_factory=dict)
    groups: tuple[GroupRecord, ...] = ()
    conversations: frozenset[UUID] = frozenset()
    members: frozenset[tuple[UUID, str, str]] = frozenset()
    events: frozenset[UUID] = frozenset()
    tombstones: tuple[TombstoneRecord, ...] = ()
    """In the order of their commits, in which the log has the deletions."""

    @property
    def deleted(self) -> list[UUID]:
        """Return the groups that were deleted, in the order of the log."""
        return [each.group_id for each in self.tombstones if each.failure is None]

    def tombstone(self, group_id: UUID) -> TombstoneRecord | None:
        """Return the tombstone of that id."""
        return next((each for each in self.tombstones if each.group_id == group_id), None)

    def has_row(self, group_id: UUID) -> bool:
        """Whether `chat_group` has a row of that id: a group, or a tombstone."""
        return self.group(group_id) is not None or self.tombstone(group_id) is not None

    def group(self, group_id: UUID) -> GroupRecord | None:
        """Return the group of that id."""
        return next((group for group in self.groups if group.group_id == group_id), None)

    def with_rows(
        self, attempts: Mapping[UUID, AttemptRow], groups: tuple[GroupRecord, ...]
    ) -> Tables:
        """Return the state in which these attempts and these groups, with all parts, are written."""
        return replace(
            self,
            attempts={**self.attempts, **attempts},
            groups=self.groups + groups,
            conversations=self.conversations | {group.conversation_id for group in groups},
            members=self.members | {member for group in groups for member in _members(group)},
            events=self.events | {event_id(group.conversation_id) for group in groups},
        )

    def without(
        self,
        group_ids: Collection[UUID],
        attempt_ids: Collection[UUID],
        tombstones: tuple[TombstoneRecord, ...],
    ) -> Tables:
        """Return the state without these groups and these attempts, and with what is left of them."""
        gone = {each.conversation_id for each in self.groups if each.group_id in group_ids}
        return replace(
            self,
            attempts={id_: row for id_, row in self.attempts.items() if id_ not in attempt_ids},
            groups=tuple(each for each in self.groups if each.group_id not in group_ids),
            conversations=self.conversations - gone,
            members=frozenset(each for each in self.members if each[0] not in gone),
            tombstones=self.tombstones + tombstones,
        )

    def counts(self) -> tuple[int, ...]:
        """Return how many rows each table has: attempt, group, conversation, member, event."""
        tables = (self.attempts, self.groups, self.conversations, self.members, self.events)
        return tuple(len(table) for table in tables)

    def __hash__(self) -> int:
        return self._hash

    @property
    def _hash(self) -> int:
        known: int | None = self.__dict__.get("_known_hash")
        if known is None:
            rows = (frozenset(self.attempts.items()), frozenset(self.groups), self.tombstones)
            known = hash((rows, self.conversations, self.members, self.events))
            self.__dict__["_known_hash"] = known
        return known


def _members(group: GroupRecord) -> list[tuple[UUID, str, str]]:
    owner, others = group.new_group.owner, group.new_group.members
    admins = group.new_group.admins
    roles = [(each, "admin" if each in admins else "member") for each in others]
    return [(group.conversation_id, user, role) for user, role in ((owner, "owner"), *roles)]
