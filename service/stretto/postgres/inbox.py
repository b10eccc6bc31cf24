"""Inbox: effects once, although messages are delivered at least once (G8)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from stretto.kinds import require_kind
from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection


class Inbox:
    """The messages that one consumer has processed; each consumer of a database has a name."""

    def __init__(self, name: str) -> None:
        require_kind("name", name, str)
        self._name = name

    async def first_time(self, connection: Connection, message_id: UUID) -> bool:
        """Record the message; return whether it is new, so that its effects are due.

        Call it in the transaction that has the effects: what is rolled back was never processed.
        Waits for another transaction that is processing the same message. The connection's
        search_path must lead to stretto's tables.
        """
        # The driver takes the text of an id as well.
        require_kind("message_id", message_id, UUID, str)
        if not connection.is_in_transaction():
            raise RuntimeError(
                "the record must commit together with the effects: call first_time within"
                " `async with connection.transaction()`"
            )
        first = await connection.fetchval(QUERIES["first_time"], self._name, message_id)
        return first is not None
