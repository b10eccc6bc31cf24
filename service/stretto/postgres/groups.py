"""What members read: groups and their members. No other user learns that a group exists.

Each statement answers many questions, in their order; each raises `Unreachable` where the database
does not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from stretto.domain import Group, Member
from stretto.postgres.lanes import Lane
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    import asyncpg

    from stretto.domain import UserId
    from stretto.postgres.connections import Database

Item = TypeVar("Item")


class PostgresGroupStore:
    """Reads of the domain tables."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def group_of_member(
        self, wanted: Sequence[tuple[UUID, UserId | None]]
    ) -> list[Group | None]:
        """Return each group by its id, if this user is a member of it; without a user, any group."""
        rows = await self._fetch(QUERIES["group_of_member"], wanted)
        pages = _pages(Group, rows, len(wanted))
        return [page[0] if page else None for page in pages]

    async def groups_of_member(
        self, wanted: Sequence[tuple[UserId, UUID | None, int]]
    ) -> list[list[Group]]:
        """For each `(user, after, limit)`: the next groups, newest first, after a conversation."""
        rows = await self._fetch(QUERIES["groups_of_member"], wanted)
        return _pages(Group, rows, len(wanted))

    async def groups_of_owner(self, owner: UserId, after: UUID | None, limit: int) -> list[Group]:
        """Return up to `limit` groups of an owner, newest first, after the conversation `after`."""
        async with self._database.connection(Lane.GROUPS) as connection:
            rows = await connection.fetch(QUERIES["groups_of_owner"], owner, after, limit)
        return [Group(**row) for row in rows]

    async def members_of_group(
        self, wanted: Sequence[tuple[UUID, UserId | None, str | None, int]]
    ) -> list[list[Member] | None]:
        """For each `(group_id, member, after, limit)`: the next members, by id, after a user.

        None for a group that is not there, or of which `member` is none; without a user, any group is read.
        """
        rows = await self._fetch(QUERIES["members_of_group"], wanted)
        found = {row["number"] for row in rows}
        pages = _pages(Member, [row for row in rows if row["user_id"] is not None], len(wanted))
        return [page if number in found else None for number, page in enumerate(pages, start=1)]

    async def _fetch(
        self, statement: str, wanted: Sequence[tuple[Any, ...]]
    ) -> list[asyncpg.Record]:
        """Send the questions as columns."""
        async with self._database.connection(Lane.GROUPS) as connection:
            return await connection.fetch(statement, *zip(*wanted, strict=True))


def _pages(kind: type[Item], rows: Sequence[asyncpg.Record], count: int) -> list[list[Item]]:
    """Return the items of each question, by its number, which counts from 1."""
    pages: list[list[Item]] = [[] for _ in range(count)]
    for row in rows:
        number, *values = row
        pages[number - 1].append(kind(*values))
    return pages
