"""Inbox: effects once, although messages are delivered at least once (G8).

Its table is a part of stretto's schema. In another database the consumer creates and sweeps its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from stretto.kinds import require_kind
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection

# Records that one statement of a sweep deletes. Where few are as old, it reads the whole table.
SWEPT_MAX: Final = 10_000


class Inbox:
    """The messages that one consumer has processed; each consumer of a database has a name.

    Its table is `inbox` of the schema; without one, the `inbox` that the connection's search_path
    leads to.
    """

    def __init__(self, name: str, *, schema: str | None = None) -> None:
        require_kind("name", name, str)
        require_kind("schema", schema, str, type(None))
        self._name = name
        self._table = "inbox"
        if schema is not None:
            self._table = '"{}".inbox'.format(schema.replace('"', '""'))
        self._first_time = self._placed(QUERIES["first_time"])

    async def first_time(self, connection: Connection, message_id: UUID) -> bool:
        """Record the message; return whether it is new, so that its effects are due.

        Call it in the transaction that has the effects: what is rolled back was never processed.
        Waits for another transaction that is processing the same message.
        """
        # The driver takes the text of an id as well.
        require_kind("message_id", message_id, UUID, str)
        if not connection.is_in_transaction():
            raise RuntimeError(
                "the record must commit together with the effects: call first_time within"
                " `async with connection.transaction()`"
            )
        first = await connection.fetchval(self._first_time, self._name, message_id)
        return first is not None

    async def create_table(self, connection: Connection) -> None:
        """Create the table if it is missing; its schema must exist. Any number may do so at once.

        Stretto's own database has it.
        """
        async with connection.transaction():
            if not await connection.fetchval(QUERIES["has_inbox"], self._table):
                await connection.execute(self._placed(QUERIES["create_inbox"]))

    async def sweep(self, connection: Connection, days: int) -> int:
        """Delete what this consumer processed more than `days` ago; return how many records.

        At most `SWEPT_MAX` at a time. An event that comes again later has its effects again: keep
        records for longer than the bus keeps messages and an operator retries dead letters. In
        stretto's own database the service sweeps (`STRETTO_RETENTION_DAYS`).
        """
        require_kind("days", days, int)
        swept: int = await connection.fetchval(
            self._placed(QUERIES["forget_messages"]), self._name, days, SWEPT_MAX
        )
        return swept

    def _placed(self, statement: str) -> str:
        """Return the statement with the table in its schema."""
        return statement.replace(" inbox", f" {self._table}")
