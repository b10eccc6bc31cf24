"""Everything that requests read from the database, each kind through a `BatchReader` of its own.

Each request asks one question; this decides which questions share a statement, and who take turns.
Nothing is cached: an answer is read after its question was asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stretto.runtime.batch_reader import BatchReader
from stretto.store_errors import ReadCancelled, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence
    from uuid import UUID

    from stretto.creation.attempt import Sighting
    from stretto.creation.ports import BatchAttemptStore, BatchGroupStore
    from stretto.creation.trail import BatchTrailStore, TrailEntry
    from stretto.domain import Group, Member, UserId

# Rows by primary key, some microseconds each: as many as a batch of writes has by default.
ROWS_READ_MAX: Final = 128
# Of groups or members, for one question.
PAGE_ITEMS_DEFAULT: Final = 50
PAGE_ITEMS_MAX: Final = 200
PAGES_READ_MAX: Final = 16
# Of all pages of a statement, two of the largest (200 rows, and one that shows that there is more).
# A row may count 1,001 members: other users wait for some 400,000 of these, not for 3,200,000.
PAGE_ROWS_READ_MAX: Final = 402
# All that wait share one check, as many as a process may have connections: none is rejected. A load
# balancer takes an instance out that answers it 503, and any client may ask.
PINGS_MAX: Final = 1_000_000
# Of one trail: some 15 KiB of JSON. An owner adds ten a second at most, and the newest show most.
TRAIL_ENTRIES_MAX: Final = 100


class AttemptReads:
    """The follower's store, whose looks share a statement."""

    def __init__(self, store: BatchAttemptStore) -> None:
        self._store = store
        # Not by the group's id: an owner may ask for any number of keys.
        self.looks = BatchReader(
            "reader of attempts",
            self._look_all,
            share_of=lambda asked: asked[0],
            batch_max=ROWS_READ_MAX,
        )

    async def look(self, group_id: UUID, lease_seconds: float, owner: UserId, /) -> Sighting:
        """Read the attempt and the group of that id in one query; owners take turns."""
        return await self.looks.ask((owner, group_id, lease_seconds))

    async def heal(self, group_id: UUID) -> None:
        """Settle the attempt as succeeded from the domain tables."""
        await self._store.heal(group_id)

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        """Replace the token that was seen, if the lease is over and no writer holds the row."""
        return await self._store.reclaim(group_id, seen, claim_token, lease_seconds)

    async def _look_all(
        self, questions: Sequence[tuple[UserId, UUID, float]]
    ) -> Sequence[Sighting]:
        """Read many; the statement need not know who asks."""
        return await self._store.look_all([question[1:] for question in questions])


class GroupReads:
    """What members read; users take turns."""

    def __init__(self, store: BatchGroupStore) -> None:
        self._store = store
        self.single = BatchReader(
            "reader of groups",
            self._group_of_member,
            share_of=_asker_or_group,
            batch_max=ROWS_READ_MAX,
        )
        self.lists = BatchReader(
            "reader of lists",
            store.groups_of_member,
            share_of=lambda asked: asked[0],
            batch_max=PAGES_READ_MAX,
            weigh=lambda asked: asked[2],
            weight_max=PAGE_ROWS_READ_MAX,
        )
        self.members = BatchReader(
            "reader of members",
            self._members_of_group,
            share_of=_asker_or_group,
            batch_max=PAGES_READ_MAX,
            weigh=lambda asked: asked[4],
            weight_max=PAGE_ROWS_READ_MAX,
        )

    async def group_of_member(
        self, group_id: UUID, member: UserId | None, *, asker: UserId | None = None
    ) -> Group | None:
        """Return the group, if this user is a member of it; without a member, any group.

        `asker` takes turns, where it is not the member: a service that may read any group.
        """
        return await self.single.ask((asker or member, group_id, member))

    async def _group_of_member(
        self, questions: Sequence[tuple[UserId | None, UUID, UserId | None]]
    ) -> Sequence[Group | None]:
        """Read many; the statement need not know who asks."""
        return await self._store.group_of_member([question[1:] for question in questions])

    async def groups_of_member(
        self, user: UserId, after: UUID | None, limit: int
    ) -> Sequence[Group]:
        """Return up to `limit` groups, newest first, that follow the conversation `after`."""
        return await self.lists.ask((user, after, limit))

    async def members_of_group(
        self,
        group_id: UUID,
        member: UserId | None,
        after: str | None,
        limit: int,
        *,
        asker: UserId | None = None,
    ) -> Sequence[Member] | None:
        """Return up to `limit` members in the order of their ids, that follow the user `after`.

        None and `asker` are as in `group_of_member`: a group that is gone has no page, also no empty one.
        """
        return await self.members.ask((asker or member, group_id, member, after, limit))

    async def _members_of_group(
        self, questions: Sequence[tuple[UserId | None, UUID, UserId | None, str | None, int]]
    ) -> Sequence[Sequence[Member] | None]:
        """Read pages of members; the statement need not know who asks."""
        return await self._store.members_of_group([question[1:] for question in questions])


def _asker_or_group(asked: Sequence[Hashable]) -> Hashable:
    """Return who takes turns: a host that names no user asks for many of them."""
    asker, group_id, *_ = asked
    return group_id if asker is None else asker


class Reads:
    """All readers of a process; each question raises `Unreachable` or `Overloaded` at worst."""

    def __init__(
        self,
        attempts: BatchAttemptStore,
        trails: BatchTrailStore,
        groups: BatchGroupStore,
        ping: Callable[[], Awaitable[None]],
    ) -> None:
        self.attempts = AttemptReads(attempts)
        self._trail_store = trails
        self._trails = BatchReader(
            "reader of trails",
            self._newest_of_trails,
            share_of=lambda asked: asked[0],
            batch_max=PAGES_READ_MAX,
        )
        self.groups = GroupReads(groups)
        self._ping_database = ping
        self._pings = BatchReader(
            "reader of health",
            self._answer_pings,
            share_of=lambda _: None,
            batch_max=PINGS_MAX,
        )

    @property
    def readers(self) -> Sequence[BatchReader[Any, Any]]:
        """The actors to run."""
        looks, groups = self.attempts.looks, self.groups
        return looks, self._trails, groups.single, groups.lists, groups.members, self._pings

    async def trail(self, owner: UserId, group_id: UUID) -> Sequence[TrailEntry]:
        """Return the newest entries of an attempt's trail, oldest first; owners take turns."""
        return await self._trails.ask((owner, group_id))

    async def _newest_of_trails(
        self, questions: Sequence[tuple[UserId, UUID]]
    ) -> Sequence[Sequence[TrailEntry]]:
        """Read many; the statement need not know who asks."""
        return await self._trail_store.newest([id_ for _, id_ in questions], TRAIL_ENTRIES_MAX)

    async def ping(self) -> None:
        """Raise `Unreachable` unless the database answers and has the tables."""
        await self._pings.ask(None)

    async def _answer_pings(self, questions: Sequence[None]) -> Sequence[None]:
        """Check the database once for all who asked."""
        try:
            await self._ping_database()
        except ReadCancelled as error:
            # They ask the same: to check for each alone would only take longer.
            raise Unreachable(str(error)) from error
        return questions
