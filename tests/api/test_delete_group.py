"""`DELETE /v1/groups/{group_id}`: what is gone, and what its key is answered from then on."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.domain import group_id
from stretto.events import deletion_watch
from stretto.http.tokens.scopes import Scope
from stretto.http.tokens.settings import TokenSettings
from support.api_client import SECRET, TEAM, Api, Reply, api_for, token_of
from support.database import sound
from support.waiting import until

if TYPE_CHECKING:
    from support.database import Connection
    from support.live_service import LiveService


def path_of(key: str, user: str = "alice") -> str:
    """Return where the group of a key is."""
    return f"/v1/groups/{group_id(user, key)}"


async def delete(api: Api, key: str, user: str = "alice") -> int:
    """Have a user delete alice's group of a key; return the status."""
    reply = await api.request("DELETE", path_of(key), user=user)
    assert b"" == reply.body or reply.status != 204
    return reply.status


def is_gone(reply: Reply) -> bool:
    """Whether a key is answered that its group was deleted."""
    if reply.status != 410:
        return False
    assert ("group_deleted", "new-key") == (reply.json["code"], reply.json["retry"])
    return True


async def test_a_deleted_groups_key_is_answered_410_for_ever(
    api: Api, database_url: str, connection: Connection
) -> None:
    """At once, after a restart, after the attempts are lost, and whatever the body is."""
    assert 201 == (await api.create("k")).status
    assert 204 == await delete(api, "k")
    assert is_gone(await api.create("k"))
    await connection.execute("TRUNCATE attempt")
    assert is_gone(await api.create("k"))
    assert is_gone(await api.create("k", {"name": "Another"}))
    assert is_gone(await api.create("k", first_sent="@1"))
    assert is_gone(await api.get("/v1/attempts/k"))
    async with api_for(database_url) as restarted:
        assert is_gone(await restarted.create("k"))
    assert 201 == (await api.create("k2")).status
    assert await sound(connection)


async def test_a_deleted_group_is_read_by_nobody(api: Api, connection: Connection) -> None:
    """Nor is anything left of it but a tombstone, and its events as long as they are kept."""
    await api.create("k", {**TEAM, "description": "d", "kind": "project", "metadata": {"a": 1}})
    await delete(api, "k")
    for user in ("alice", "bob"):
        assert 404 == (await api.get(path_of("k"), user=user)).status
        assert 404 == (await api.get(path_of("k") + "/members", user=user)).status
        assert [] == (await api.get("/v1/groups", user=user)).json["groups"]
    tables = ("attempt", "conversation", "conversation_member", "chat_group", "outbox")
    counts = [await connection.fetchval(f"SELECT count(*) FROM {table}") for table in tables]
    assert [0, 0, 0, 1, 2] == counts
    row = await connection.fetchrow("SELECT * FROM chat_group")
    assert row is not None
    kept = {"group_id", "created_at", "deleted_at", "revision"}
    assert kept == {name for name, value in row.items() if value is not None}


async def test_deleting_again_is_answered_alike(api: Api) -> None:
    """A client whose answer was lost sends its request again."""
    await api.create("k")
    assert [204, 204] == [await delete(api, "k") for _ in range(2)]


async def test_only_an_owner_deletes_a_group(api: Api, connection: Connection) -> None:
    """For all others there is no such group; what never was is not found either."""
    created = await api.create("k")
    for user in ("bob", "mallory"):
        assert 404 == await delete(api, "k", user)
    assert 404 == await delete(api, "never")
    assert 404 == (await api.request("DELETE", "/v1/groups/no-id")).status
    assert created.body == (await api.create("k")).body
    await connection.execute("UPDATE conversation_member SET role = 'owner' WHERE user_id = 'bob'")
    assert 204 == await delete(api, "k", "bob")


@pytest.mark.parametrize(("expected", "scope"), [(204, Scope.DELETE), (403, Scope.CREATE)])
async def test_a_token_of_another_scope_deletes_nothing(
    api: Api, expected: int, scope: Scope
) -> None:
    """One that may only create leaves what is there."""
    await api.create("k")
    headers = {"Authorization": f"Bearer {token_of('alice', SECRET, scope)}"}
    reply = await api.request("DELETE", path_of("k"), headers=headers)
    assert expected == reply.status
    assert (201 if expected == 403 else 410) == (await api.create("k")).status


async def test_a_service_that_reads_any_group_reads_no_tombstone(database_url: str) -> None:
    """It asks for no membership, which a tombstone lacks."""
    tokens = TokenSettings(jwt_secret=SECRET, jwt_require_scopes=True)
    everything = {"Authorization": f"Bearer {token_of('alice', SECRET, *Scope)}"}
    async with api_for(database_url, tokens=tokens) as api:
        created = await api.request(
            "POST",
            "/v1/groups",
            headers={**everything, "Idempotency-Key": "k"},
            json=TEAM,
        )
        assert [201, 200] == [
            created.status,
            (await api.get(path_of("k"), headers=everything)).status,
        ]
        assert 204 == (await api.request("DELETE", path_of("k"), headers=everything)).status
        for place in (path_of("k"), path_of("k") + "/members"):
            assert 404 == (await api.get(place, headers=everything)).status


async def test_members_get_the_event_once(live: LiveService) -> None:
    """With the group as it was; its id and its time are the deletion's own."""
    async with live.websocket("bob") as bob:
        await bob.next()
        group = await live.create("k")
        assert 204 == await delete(live.api, "k")
        assert 204 == await delete(live.api, "k")
        await live.tail_once()
        created, deleted = (await bob.next())["event"], (await bob.next())["event"]
    assert ["group.created", "group.deleted"] == [created["type"], deleted["type"]]
    assert group == deleted["subject"] == deleted["data"]["group_id"]
    same = ("group_id", "conversation_id", "owner_id", "name", "members_count")
    assert [created["data"][name] for name in same] == [deleted["data"][name] for name in same]
    assert 7 == UUID(deleted["id"]).version
    assert created["id"] != deleted["id"]
    assert created["time"] < deleted["time"]


async def test_another_process_forgets_what_it_has_answered(
    database_url: str, connection: Connection
) -> None:
    """Within a second: it reads deletions from the log."""
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(api_for(database_url)) for _ in range(2)]
        for api in (one, other):
            for key in ("k", "kept"):
                assert 201 == (await api.create(key)).status
        assert 204 == await delete(one, "k")
        assert is_gone(await one.create("k"))

        async def is_gone_there() -> bool:
            return is_gone(await other.create("k"))

        await until(is_gone_there)
        assert [201, 201] == [(await api.create("kept")).status for api in (one, other)]
    assert await sound(connection)


async def test_without_the_watch_another_process_would_answer_on(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: the answer comes from memory alone."""
    monkeypatch.setattr(deletion_watch.DeletionWatch, "run_once", _look_at_nothing)
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(api_for(database_url)) for _ in range(2)]
        for api in (one, other):
            await api.create("k")
        assert 204 == await delete(one, "k")
        assert (410, 201) == ((await one.create("k")).status, (await other.create("k")).status)


async def _look_at_nothing(_: object) -> int:
    return 0
