"""What members read: groups and who takes part in them. Nobody else learns that a group exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.domain import Group, Member
from stretto.storage.queries import QUERIES

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.storage.database import Database


class PostgresGroupStore:
    """Reads of the domain tables; each raises `Unreachable` where the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def group_of_member(self, group_id: UUID, user: UserId) -> Group | None:
        """Return the group, if this user is a member of it."""
        async with self._database.reading() as connection:
            row = await connection.fetchrow(QUERIES["group_of_member"], group_id, user)
        return None if row is None else Group(**row)

    async def groups_of_member(self, user: UserId, after: UUID | None, limit: int) -> list[Group]:
        """Return up to `limit` groups, newest first, behind the conversation `after`."""
        async with self._database.reading() as connection:
            rows = await connection.fetch(QUERIES["groups_of_member"], user, after, limit)
        return [Group(**row) for row in rows]

    async def members_of_group(self, group_id: UUID, after: str | None, limit: int) -> list[Member]:
        """Return up to `limit` members in the order of their ids, behind the user `after`."""
        async with self._database.reading() as connection:
            rows = await connection.fetch(QUERIES["members_of_group"], group_id, after, limit)
        return [Member(**row) for row in rows]
