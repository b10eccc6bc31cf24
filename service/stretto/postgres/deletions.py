"""Deletes groups for their owners; what is left of one is a tombstone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.creation.deletion import SLOW_SECONDS
from stretto.postgres.connecting import LOCK_SECONDS
from stretto.postgres.connections import READ_SECONDS
from stretto.postgres.driver_connection import sure_commits, terminate
from stretto.postgres.driver_errors import in_words, is_misfit, is_of_one_statement
from stretto.postgres.lanes import Lane
from stretto.postgres.queries import QUERIES, at_home
from stretto.postgres.server_settings import require_all_rows
from stretto.postgres.sessions import is_changed
from stretto.postgres.write_columns import milliseconds
from stretto.store_errors import ReadCancelled
from stretto.uuids import uuid7

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.creation.deletion import Delete, Deletion
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection


# The type of a deletion's event, which `delete_group_1` writes.
DELETED: Final = "group.deleted"
# Of a hasty deletion, for each lock. A change of a group, or another deletion of it, commits by then.
HASTY_LOCK_SECONDS: Final = SLOW_SECONDS
# For all of it. What takes longer is tried again with all of the time (`creation/deletion.py`).
HASTY_SECONDS: Final = 0.2


class PostgresDeletionStore:
    """A `DeletionStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def deleting(self) -> AsyncIterator[Delete]:
        """Yield what deletes, on one connection."""
        await self._database.standby.require_reached()
        async with self._database.connection(Lane.DELETIONS) as connection:
            session = _Session(connection, self._database.home)
            try:
                yield session.delete
            finally:
                if session.is_suspect:
                    # Not before: the others of the batch are not to blame.
                    terminate(connection)


@dataclass(slots=True)
class _Session:
    """Deletes on one connection."""

    connection: Connection
    home: str | None
    """The schema that it leads to."""
    is_suspect: bool = False
    """Whether a deletion has missed something for what others' code has left here."""

    async def delete(self, wanted: Deletion, /, *, is_hasty: bool) -> bool | None:
        """Delete a group in a commit of its own; return what the statement does.

        Raises `ReadCancelled` where the server refuses this deletion, and goes on: for a lock, a rule,
        its time, or whatever an owner's trigger raises. Raises `Unreachable`, and deletes nothing, where
        row-level security may hide rows.
        """
        seconds = HASTY_SECONDS if is_hasty else READ_SECONDS
        try:
            with sure_commits(self.connection):
                async with self.connection.transaction():
                    await self.connection.execute(
                        QUERIES["bound_statements"], milliseconds(seconds)
                    )
                    row = await self.connection.fetchrow(
                        at_home(QUERIES["delete_group_of_owner"], self.home),
                        *(wanted.group_id, wanted.owner, uuid7(), wanted.trace_context),
                        milliseconds(HASTY_LOCK_SECONDS if is_hasty else LOCK_SECONDS),
                    )
                    assert row is not None
                    require_all_rows(row)
        except asyncpg.PostgresError as error:
            if is_misfit(error) and not self.is_suspect:
                self.is_suspect = await is_changed(self.connection, error)
            if is_of_one_statement(error):
                raise ReadCancelled(in_words(error)) from error
            raise
        is_deleted: bool | None = row["is_deleted"]
        return is_deleted
