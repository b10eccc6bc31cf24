"""Inbox: effects once, although messages come at least once (G8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.postgres.driver_connection import Connection


class Inbox:
    """What one consumer has dealt with; each consumer of a database has a name of its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def first_time(self, connection: Connection, message_id: UUID) -> bool:
        """Whether the message's effects are still to come; from now on they are not.

        To be called in the transaction that has the effects: what is rolled back was never dealt
        with. Waits for a transaction that is dealing with the same message. The connection's
        search_path must lead to stretto's tables.
        """
        assert connection.is_in_transaction(), "the record must commit together with the effects"
        first = await connection.fetchval(QUERIES["first_time"], self._name, message_id)
        return first is not None
