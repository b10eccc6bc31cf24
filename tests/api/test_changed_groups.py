"""Groups that a host has changed: what clients are answered, and which sessions hear of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

import stretto
from support.api_client import TEAM, api_for
from support.changed_groups import changed
from support.database import sound
from support.live_service import ServerSentEvent

if TYPE_CHECKING:
    from support.api_client import Api
    from support.database import Connection
    from support.live_service import LiveService, SseClient, WebSocketClient


async def change_all(connection: Connection, group: UUID) -> None:
    """Leave nothing as it was created but ids: not even the one who has created it is a member."""
    async with connection.transaction():
        await stretto.rename_group(connection, group, name="Crew", description="Ours")
        await stretto.add_members(connection, group, {"dave": "owner"})
        await stretto.remove_members(connection, group, ["alice", "bob"])
        await stretto.set_role(connection, group, "carol", "admin")


@pytest.mark.parametrize(
    ("source", "status"),
    [("memory", "replayed"), ("attempt", "replayed"), ("group", "healed")],
)
async def test_every_success_of_a_key_has_the_same_bytes_whatever_became_of_its_group(
    source: str, status: str, api: Api, database_url: str, connection: Connection
) -> None:
    """From memory, from the attempt, and from the group alone (G2)."""
    first = await api.create("k")
    await change_all(connection, UUID(first.json["group_id"]))
    if source == "group":
        await connection.execute("TRUNCATE attempt")
    if source == "memory":
        again, reused = await api.create("k"), await api.create("k", {"name": "Crew"})
    else:
        async with api_for(database_url) as other:
            again, reused = await other.create("k"), await other.create("k", {"name": "Crew"})
    assert (201, first.body) == (again.status, again.body)
    assert (status, first.headers["Location"]) == (
        again.headers["Idempotency-Status"],
        again.headers["Location"],
    )
    # It is the creation's body that names the request, not what the group is now.
    assert (422, "key_reused") == (reused.status, reused.json["code"])
    attempt = await api.get("/v1/attempts/k")
    assert (200, "succeeded") == (attempt.status, attempt.json["status"])
    assert await sound(connection)


async def test_what_is_read_is_the_group_as_it_is(api: Api, connection: Connection) -> None:
    """By its members alone: those who were removed see it no more."""
    first = await api.create("k")
    path = first.headers["Location"]
    await change_all(connection, UUID(first.json["group_id"]))
    assert [404, 404, 200, 200] == [
        (await api.get(path, user=user)).status for user in ("alice", "bob", "carol", "dave")
    ]
    group = (await api.get(path, user="dave")).json
    assert ("Crew", "Ours", "alice", 2) == (
        group["name"],
        group["description"],
        group["owner_id"],
        group["members_count"],
    )
    members = (await api.get(f"{path}/members", user="dave")).json["members"]
    assert [("carol", "admin"), ("dave", "owner")] == [
        (member["user_id"], member["role"]) for member in members
    ]
    assert [] == (await api.get("/v1/groups", user="bob")).json["groups"]
    assert [group] == (await api.get("/v1/groups", user="dave")).json["groups"]


async def heard(client: WebSocketClient | SseClient, count: int) -> list[tuple[str, str]]:
    """Read so many events, whatever positions come between; return the type and name of each."""
    found: list[tuple[str, str]] = []
    while len(found) < count:
        message: Any = await client.next()
        if isinstance(message, ServerSentEvent):
            event = message.json if message.data else None
        else:
            event = message.get("event")
        if event is not None:
            found.append((event["type"], event["data"]["name"]))
    return found


async def test_members_of_before_and_after_hear_of_each_change_once(
    live: LiveService, connection: Connection
) -> None:
    """Live, and again when they resume; who is removed hears of that, and of nothing later."""
    created, marker = ("group.created", "Team"), ("group.created", "Marker")
    added, removed = ("group.members_added", "Team"), ("group.members_removed", "Team")
    renamed, promoted = ("group.renamed", "Crew"), ("group.role_changed", "Crew")
    async with (
        live.websocket("alice") as alice,
        live.sse("bob") as bob,
        live.websocket("dave") as dave,
    ):
        since = [(await alice.next())["position"], (await bob.next()).id]
        assert (await dave.next()).keys() == {"position"}
        group = UUID(await live.create("k"))
        await changed(connection, stretto.add_members, group, {"dave": "member"})
        await changed(connection, stretto.remove_members, group, ["bob"])
        await changed(connection, stretto.rename_group, group, name="Crew")
        await changed(connection, stretto.set_role, group, "dave", "admin")
        await live.api.create("marker", TEAM | {"name": "Marker", "members": ["bob", "dave"]})
        assert 6 == await live.tail_once()
        whole = [created, added, removed, renamed, promoted, marker]
        assert whole == await heard(alice, 6)
        assert [created, added, removed, marker] == await heard(bob, 4)
        assert [added, removed, renamed, promoted, marker] == await heard(dave, 5)
    async with live.websocket("alice", since=since[0]) as alice:
        assert whole == await heard(alice, 6)
    async with live.sse("bob", Last_Event_ID=since[1]) as bob:
        assert [created, added, removed, marker] == await heard(bob, 4)
