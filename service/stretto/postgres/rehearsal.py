"""A write that is rolled back: shows whether the schema takes groups, triggers and partitions included.

An empty batch does not show it: it fires no trigger, and needs no partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import uuid4

from stretto.creation.ports import Write
from stretto.domain import NewGroup, UserId
from stretto.postgres.connections import WRITE_SECONDS
from stretto.postgres.driver_connection import is_lost, watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS, store_error
from stretto.postgres.queries import QUERIES, at_home
from stretto.postgres.write_columns import attempt_columns, group_columns, milliseconds
from stretto.store_errors import Refused

if TYPE_CHECKING:
    from stretto.postgres.connections import Database

# Where no owner is known whose groups the schema takes.
_NOBODY: Final = UserId("stretto")
# The readiness of a process must not wait long, nor keep a row of the host's long.
_LOCK_SECONDS: Final = 0.25


async def rehearse(database: Database, owner: UserId | None) -> None:
    """Write a group of this owner and roll it back; raises the `StoreError` that this meets.

    The owner is one whose group was written before: rules of the operator's may take no groups of
    another. A veto counts as success: the statements have got as far as the operator's own rules.
    """
    new_group = NewGroup.parse(owner or _NOBODY, {"name": "readiness"})
    write = Write(uuid4(), uuid4(), uuid4(), new_group, new_group.fingerprint(), is_claimed=False)
    patience, home = milliseconds(_LOCK_SECONDS), database.home
    connection = await database.acquire()
    try:
        with watchdog(connection, WRITE_SECONDS):
            transaction = connection.transaction()
            await transaction.start()
            try:
                await connection.fetchval(
                    at_home(QUERIES["claim"], home), *attempt_columns([write]), patience
                )
                await connection.fetchval(
                    at_home(QUERIES["lead"], home),
                    [write.group_id],
                    [write.claim_token],
                    *group_columns([write]),
                    patience,
                )
            finally:
                await transaction.rollback()
    except DRIVER_ERRORS as error:
        meaning = store_error(error, connection_lives=not is_lost(connection))
        if not isinstance(meaning, Refused):
            raise meaning from error
    finally:
        await database.release(connection)
