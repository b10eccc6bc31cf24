"""What a host's changes leave in the database: the group as it is, and the events that say so."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from stretto.domain import NewGroup, UserId
from stretto.events.place import History, Place
from stretto.postgres.log import PostgresLogStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from support.database import Connection

# More than a test has.
EVENTS_MAX = 1000
ALICE = UserId("alice")
TEAM = NewGroup.parse(
    ALICE,
    {
        "name": "Team",
        "description": "Ours",
        "members": ["bob", {"user_id": "carol", "role": "admin"}],
        "kind": "project",
    },
)
ROLES = {"alice": "owner", "bob": "member", "carol": "admin"}


@dataclass(frozen=True, slots=True)
class Seen:
    """A group, as its tables have it."""

    name: str
    description: str | None
    roles: dict[str, str]
    revision: int = 0


UNCHANGED = Seen("Team", "Ours", ROLES)


async def seen(connection: Connection, group_id: UUID) -> Seen:
    """Read a group."""
    group = await connection.fetchrow("SELECT * FROM chat_group WHERE group_id = $1", group_id)
    assert group is not None
    assert (group["revision"] == 0) == (group["changed_at"] is None)
    members = await connection.fetch(
        "SELECT user_id, role FROM conversation_member WHERE conversation_id = $1",
        group["conversation_id"],
    )
    roles = {member["user_id"]: member["role"] for member in members}
    return Seen(group["name"], group["description"], roles, group["revision"])


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a change, as its readers get it."""

    type: str
    document: dict[str, Any]
    recipients: tuple[str, ...]
    history: int

    @property
    def data(self) -> dict[str, Any]:
        """What it says."""
        data: dict[str, Any] = self.document["data"]
        return data


async def events(connection: Connection) -> list[Event]:
    """Read the whole log, in its order."""
    store = PostgresLogStore(lambda: nullcontext(connection))
    # Before the first history: the whole log follows.
    found = (await store.page(Place(History(0, ""), 0, ()), EVENTS_MAX)).events
    documents = [(each, orjson.loads(each.event.envelope)) for each in found]
    return [
        Event(document["type"], document, each.event.recipients, each.history.number)
        for each, document in documents
    ]


async def changes(connection: Connection) -> list[Event]:
    """Read the events of changes, in the order of the log."""
    return [event for event in await events(connection) if event.type != "group.created"]


async def changed(
    connection: Connection, change: Callable[..., Awaitable[Any]], *args: Any, **options: Any
) -> Any:
    """Make a change in a transaction of its own."""
    async with connection.transaction():
        return await change(connection, *args, **options)
