"""The log of events: pages of it, and the document that is published of an event."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import orjson

from stretto.domain import EVENT_TYPE
from stretto.events.log import CommittedEvent, LoggedEvent, LogPage
from stretto.events.place import History, Place, Present
from stretto.postgres.connections import Database, Lane
from stretto.postgres.queries import QUERIES
from stretto.telemetry.trace_context import as_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias
    from uuid import UUID

    import asyncpg

    from stretto.domain import UserId
    from stretto.postgres.driver_connection import Connection

    Acquire: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]

SOURCE: Final = "urn:stretto"
_ORIGIN_CHARACTERS: Final = 8


class PostgresLogStore:
    """Reads of the log over any connection; each raises `Unreachable` if `acquire` does."""

    def __init__(self, acquire: Acquire) -> None:
        self._acquire = acquire

    async def present(self) -> Place:
        """Return the place that covers every event that is visible now."""
        async with self._acquire() as connection:
            row = await connection.fetchrow(QUERIES["log_present"])
        assert row is not None
        return _present(orjson.loads(row["present"])).place

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        """Return the next events, once a synchronous standby has them; whole transactions.

        It may leave out events of other users. The caller checks the place: `page.present.require`.
        """
        async with self._acquire() as connection:
            first, *rows = await connection.fetch(
                QUERIES["log_page"],
                begin.history.number,
                begin.xmax,
                "{" + ",".join(map(str, begin.running)) + "}",
                events_max,
                users,
            )
        present = _present(orjson.loads(first["present"]))
        events = [
            LoggedEvent(
                committed_event(row),
                History(row["history"], present.histories[row["history"]]),
                row["position"],
            )
            for row in rows
        ]
        place = present.place
        if first["is_full"]:
            place = present.after(begin, events[-1].history, events[-1].position)
        return LogPage(begin, events, place, present, first["is_full"])


async def origin(database: Database) -> str:
    """Return what identifies this database on a bus that others may share."""
    async with database.connection(Lane.HISTORY) as connection:
        identity: str = await connection.fetchval(QUERIES["origin"])
    return hashlib.sha256(identity.encode()).hexdigest()[:_ORIGIN_CHARACTERS]


def reader_place(row: asyncpg.Record) -> Place:
    """Return the place of a reader whose row is kept."""
    _, xmax, running = row["seen"].split(":")
    # A history that is not kept has no id: no place in it is one of the log.
    history = History(row["history"], row["history_id"] or "")
    return Place(history, int(xmax), tuple(map(int, filter(None, running.split(",")))))


def snapshot(place: Place) -> str:
    """Return a place without its history, as a reader's row has it."""
    running = ",".join(map(str, place.running))
    return f"{min(place.running, default=place.xmax)}:{place.xmax}:{running}"


def event_columns(events: Collection[LoggedEvent]) -> tuple[list[int], list[str], list[UUID]]:
    """Return where events lie in the log, and their ids, as an array for each column."""
    return (
        [logged.history.number for logged in events],
        [str(logged.position) for logged in events],
        [logged.event.event_id for logged in events],
    )


def committed_event(row: asyncpg.Record) -> CommittedEvent:
    """Return an event of the log, or of a delivery."""
    return CommittedEvent(
        row["event_id"], tuple(row["recipients"]), envelope(row), row["trace_context"]
    )


def envelope(row: asyncpg.Record) -> bytes:
    """Return a row as a CloudEvents 1.0 document in JSON: the same bytes on every way out.

    Equal ids must mean equal content: a write whose outcome was unknown may have been committed
    twice, once by a server that was lost. So the time is not the row's: it is the one in the
    conversation's id (RFC 9562, UUIDv7), from which the event's id follows. A write has one
    conversation, and one trace.
    """
    milliseconds = row["conversation_id"].int >> 80
    return orjson.dumps(
        {
            "specversion": "1.0",
            "id": str(row["event_id"]),
            "source": SOURCE,
            "type": EVENT_TYPE,
            "subject": str(row["subject"]),
            "time": datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(
                timespec="milliseconds"
            ),
            "datacontenttype": "application/json",
            **as_fields(row["trace_context"]),
            "data": {
                "group_id": str(row["subject"]),
                "conversation_id": str(row["conversation_id"]),
                "owner_id": row["owner_id"],
                "name": row["group_name"],
                "members_count": row["members_count"],
                **_chosen(row),
            },
        }
    )


def _chosen(row: asyncpg.Record) -> dict[str, object]:
    """Return what only some groups have: the document of the others stays as it has always been."""
    chosen: dict[str, object] = {}
    if row["group_kind"] is not None:
        chosen["kind"] = row["group_kind"]
    if row["metadata"] is not None:
        chosen["metadata"] = orjson.Fragment(row["metadata"])
    return chosen


def _present(row: dict[str, Any]) -> Present:
    histories = {int(number): name for number, name in row["histories"].items()}
    number = row["history"]
    return Present(
        History(number, histories[number]),
        row["next_position"],
        tuple(row["running"]),
        histories,
        (row["start_history"], row["start_position"]),
        row["is_ended"],
    )
