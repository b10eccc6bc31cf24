"""The log of events: pages of it, and the document that is published of an event."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
import orjson

from stretto.domain import EVENT_TYPE, EVENT_TYPE_CHARACTERS_MAX
from stretto.events.log import CommittedEvent, LoggedEvent, LogPage
from stretto.events.place import History, Part, Place, PositionLost, Present
from stretto.postgres.connecting import READ_ONLY
from stretto.postgres.lanes import Lane
from stretto.postgres.queries import QUERIES, at_home
from stretto.postgres.server_settings import require_all_rows
from stretto.postgres.servers import begin_history
from stretto.store_errors import Unreachable
from stretto.telemetry.trace_context import TRACE_CONTEXT_CHARACTERS_MAX, as_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias

    from stretto.domain import UserId
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Connection

    Acquire: TypeAlias = Callable[[], AbstractAsyncContextManager[Connection]]

SOURCE: Final = "urn:stretto"
# The creation of a larger group does not name its members: it is sent to each of them.
MEMBER_IDS_MAX: Final = 100
_ORIGIN_CHARACTERS: Final = 8
# A part of a subject of the bus, and a header field: with others the bus or the webhook sends nothing.
_TYPE: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{EVENT_TYPE_CHARACTERS_MAX}}}")
_FIELD: Final = re.compile(rf"[ -~]{{0,{TRACE_CONTEXT_CHARACTERS_MAX}}}")


class PostgresLogStore:
    """Reads of the log over any connection; each raises `Unreachable` if `acquire` does.

    A page is one of the schema `home`, if that is given, wherever the session leads.
    """

    def __init__(self, acquire: Acquire, home: str | None = None) -> None:
        self._acquire = acquire
        self._home = home

    async def present(self) -> Place:
        """Return the place that covers every event that is visible now."""
        async with self._acquire() as connection:
            row = await connection.fetchrow(QUERIES["log_present"])
        assert row is not None
        return _present(orjson.loads(row["present"])).place

    async def kept_place(self, reader: str) -> Place | None:
        """Return the place of a reader whose row is kept; None if there is none."""
        async with self._acquire() as connection:
            row = await connection.fetchrow(QUERIES["reader_place"], reader)
        return None if row is None else reader_place(row)

    async def begin_again(
        self, reader: str, last: Place | None, target_digest: bytes | None = None
    ) -> None:
        """Have a reader, whose row was lost, begin at a place that was its own, or where the log begins.

        At the present it would pass over what has been committed since.
        """
        present = (await self.page(await self.present(), 1)).present
        place = present.first
        if last is not None:
            with suppress(PositionLost):
                present.require(last)
                place = last
        async with self._acquire() as connection:
            await connection.execute(
                QUERIES["begin_again"], reader, *reader_row(place), target_digest, place.history.id
            )

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        """Return the next events, up to so many, once a synchronous standby has them.

        It may leave out events of other users. The caller checks the place: `page.present.require`.
        """
        async with self._acquire() as connection:
            first, *rows = await connection.fetch(
                at_home(QUERIES["log_page"], self._home),
                begin.history.number,
                begin.xmax,
                _positions(begin.running),
                events_max,
                users,
                MEMBER_IDS_MAX,
                *_parts(begin),
            )
        require_all_rows(first)
        present = _present(orjson.loads(first["present"]))
        events = [_logged(row, present.histories) for row in rows]
        place = present.place
        if first["is_full"]:
            last = events[-1]
            place = (
                present.within(begin, last.history, last.part)
                if first["is_cut"]
                else present.after(begin, last.history, last.position)
            )
        return LogPage(begin, events, place, present, first["is_full"], first["is_cut"])

    async def deletions(self, begin: Place | None, limit: int) -> tuple[list[UUID], Present]:
        """Return groups whose deletion the place does not cover, up to `limit`, and the present.

        Without a place, none. Where the newest history has ended, the next one is begun: a change of
        a group does not, and without requests no writer connects.
        """
        place = (0, 0, "{}", 0)
        if begin is not None:
            place = (begin.history.number, begin.xmax, _positions(begin.running), limit)
        async with self._acquire() as connection:
            deleted_groups = at_home(QUERIES["deleted_groups"], self._home)
            row = await connection.fetchrow(deleted_groups, *place)
            assert row is not None
            require_all_rows(row)
            present = _present(orjson.loads(row["present"]))
            if present.is_ended:
                # A server that takes no writes has no changes either.
                with suppress(asyncpg.PostgresError):
                    await begin_history(connection, present.history.number)
        return row["group_ids"], present


async def origin(database: Database) -> str:
    """Return what identifies this database on a bus that others may share."""
    async with database.connection(Lane.PROBE) as connection:
        identity: str = await connection.fetchval(QUERIES["origin"])
    return hashlib.sha256(identity.encode()).hexdigest()[:_ORIGIN_CHARACTERS]


def reader_place(row: asyncpg.Record) -> Place:
    """Return the place of a reader whose row is kept."""
    _, xmax, running = row["seen"].split(":")
    # A history that is not kept has no id: no place in it is one of the log.
    history = History(row["history"], row["history_id"] or "")
    place = Place(history, int(xmax), tuple(map(int, filter(None, running.split(",")))))
    return place.with_parts(_parts_of(row["parts"], history.number))


def reader_row(place: Place) -> tuple[int, str, str]:
    """Return history, snapshot and parts of a place, as a reader's row has them."""
    number, running = place.history.number, ",".join(map(str, place.running))
    parts = (f"{number}:{part.position}:{part.is_change:d}:{part.event_id}" for part in place.parts)
    snapshot = f"{min(place.running, default=place.xmax)}:{place.xmax}:{running}"
    return number, snapshot, ",".join(parts)


def event_columns(events: Collection[LoggedEvent]) -> tuple[list[int], list[str], list[UUID]]:
    """Return where events lie in the log, and their ids, as an array for each column."""
    return (
        [logged.history.number for logged in events],
        [str(logged.position) for logged in events],
        [logged.event.event_id for logged in events],
    )


def committed_event(row: asyncpg.Record) -> CommittedEvent | None:
    """Return an event of the log, or of a delivery; None if none can be made of the row.

    Such a row was written by hand; it must hold up no other one.
    """
    recipients, trace_context = tuple(row["recipients"]), row["trace_context"]
    event_type = row["event_type"] or EVENT_TYPE
    if recipients and None in (row["owner_id"], *recipients):
        return None
    if not (_TYPE.fullmatch(event_type) and _FIELD.fullmatch(trace_context or "")):
        return None
    try:
        document = envelope(row)
    except (ValueError, OverflowError, TypeError):
        return None
    return CommittedEvent(row["event_id"], recipients, document, trace_context, event_type)


def _logged(row: asyncpg.Record, histories: Mapping[int, str]) -> LoggedEvent:
    """Return a row of the log. Also one without an event counts: readers move on behind it."""
    event = committed_event(row)
    is_readable = event is not None
    if event is None:
        event_type = row["event_type"] or EVENT_TYPE
        event = CommittedEvent(row["event_id"], (), b"", event_type=event_type)
    history = History(row["history"], histories[row["history"]])
    is_change = row["event_type"] is not None
    return LoggedEvent(event, history, row["position"], is_readable, is_change)


def envelope(row: asyncpg.Record) -> bytes:
    """Return a row as a CloudEvents 1.0 document in JSON: the same bytes on every way out.

    Equal ids must mean equal content: a write whose outcome was unknown may have been committed
    twice, once by a server that was lost. So the time is not the row's: it is the one in the
    conversation's id (RFC 9562, UUIDv7), from which the event's id follows. A write has one
    conversation, and one trace. The id of a change is such a UUID itself.

    Raises `ValueError`, `OverflowError` or `TypeError` if no document can be made that all readers can read.
    """
    event_type = row["event_type"]
    milliseconds = row["event_id" if event_type else "conversation_id"].int >> 80
    document = orjson.dumps(
        {
            "specversion": "1.0",
            "id": str(row["event_id"]),
            "source": SOURCE,
            "type": event_type or EVENT_TYPE,
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
                # Its recipients are not the group's members: it says who owns the group, and how many.
                **_change(row),
            },
        }
    )
    if row["metadata"] is not None:
        # PostgreSQL has greater numbers and more levels than what reads the document may have.
        orjson.loads(document)
    return document


def _change(row: asyncpg.Record) -> dict[str, object]:
    """Return what a change says; raises `TypeError` for no object, or an odd owner: events wait by owner."""
    change: object = orjson.loads(row["change"] or "{}")
    if not isinstance(change, dict) or not isinstance(change.get("owner_id", ""), str | None):
        raise TypeError(change)
    return change


def _chosen(row: asyncpg.Record) -> dict[str, object]:
    """Return what only some events have."""
    chosen: dict[str, object] = {}
    if row["member_ids"] is not None:
        chosen["member_ids"] = row["member_ids"]
    if row["group_kind"] is not None:
        chosen["kind"] = row["group_kind"]
    if row["metadata"] is not None:
        chosen["metadata"] = orjson.Fragment(row["metadata"])
    return chosen


def _parts_of(text: str, history: int) -> Iterator[Part]:
    """Yield a history's parts; an instance of an older version moves a place, and leaves old ones."""
    for part in filter(None, text.split(",")):
        number, position, is_change, event_id = part.split(":")
        if int(number) == history:
            yield Part(int(position), is_change == "1", UUID(event_id))


def _parts(place: Place) -> tuple[str, list[bool], list[UUID]]:
    return (
        _positions(part.position for part in place.parts),
        [part.is_change for part in place.parts],
        [part.event_id for part in place.parts],
    )


def _positions(positions: Iterable[int]) -> str:
    return "{" + ",".join(map(str, positions)) + "}"


def _present(row: dict[str, Any]) -> Present:
    if row["is_standby"]:
        # A pooler may lead to one between two statements.
        raise Unreachable(READ_ONLY)
    histories = {int(number): name for number, name in row["histories"].items()}
    number = row["history"]
    return Present(
        History(number, histories[number]),
        row["next_position"],
        tuple(row["running"]),
        histories,
        (row["start_history"], row["start_position"]),
        row["is_ended"],
        frozenset(row["start_running"]),
    )
