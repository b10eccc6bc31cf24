"""Kind, metadata and members' roles: stored, read, announced, and a part of what a request means."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from stretto.errors import GroupRejected
from stretto.http.front.plain_requests import PlainRequests
from stretto.http.service import SERVICE
from stretto.metadata import METADATA_BYTES_MAX
from support.api_client import Api, api_for, token_of
from support.live_service import LiveService, live_service
from support.raw_client import creation, raw_clients

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stretto.domain import CreatedGroup, NewGroup
    from support.database import Connection

TOKEN = token_of("alice")
METADATA: dict[str, Any] = {"z": 1, "a": {"text": "é\n", "no": [True, None, -0.25]}}
CHOSEN: dict[str, Any] = {
    "name": "Team",
    "members": ["bob", {"user_id": "carol", "role": "admin"}],
    "kind": "project",
    "metadata": METADATA,
}
# Each is the same request, in other bytes.
SPELLINGS = [
    orjson.dumps(CHOSEN),
    orjson.dumps(CHOSEN, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS),
    orjson.dumps({**CHOSEN, "metadata": {"a": METADATA["a"], "z": 1.0}}),
    orjson.dumps({**CHOSEN, "members": [*reversed(CHOSEN["members"]), "carol", "alice"]}),
]
WRONG: dict[str, bytes] = {
    "kind": b'{"name":"T","kind":"Project"}',
    "metadata": b'{"name":"T","metadata":[]}',
    "NUL": rb'{"name":"T","metadata":{"a":"\u0000"}}',
    "surrogate": rb'{"name":"T","metadata":{"a":"\ud800"}}',
    "number": b'{"name":"T","metadata":{"a":9007199254740992}}',
    "large": b'{"name":"T","metadata":{"a":"%b"}}' % (b"x" * METADATA_BYTES_MAX),
    "deep": b'{"name":"T","metadata":%b1%b}' % (b'{"a":' * 17, b"}" * 17),
    "twice": b'{"name":"T","metadata":{"a":1,"a":1}}',
    "twice escaped": rb'{"name":"T","metadata":{"a":1,"\u0061":1}}',
    "twice further in": b'{"name":"T","metadata":{"a":[{"b":1,"b":2}]}}',
    "two metadata": b'{"name":"T","metadata":null,"metadata":null}',
    "role": b'{"name":"T","members":[{"user_id":"bob","role":"owner"}]}',
    "no user": b'{"name":"T","members":[{"role":"admin"}]}',
    "two users": b'{"name":"T","members":[{"user_id":"bob","user_id":"carol"}]}',
}


async def test_what_the_creator_chooses_is_read_by_every_member(
    api: Api, connection: Connection
) -> None:
    """One by one, in lists, and as what it was: an object, not a text."""
    created = (await api.create("k", CHOSEN)).json
    path = f"/v1/groups/{created['group_id']}"
    for user in ("alice", "bob", "carol"):
        one = (await api.get(path, user=user)).json
        (listed,) = (await api.get("/v1/groups", user=user)).json["groups"]
        assert listed == one
        assert ("project", METADATA) == (one["kind"], one["metadata"])
    members = (await api.get(f"{path}/members", user="bob")).json["members"]
    roles = {"alice": "owner", "bob": "member", "carol": "admin"}
    assert roles == {each["user_id"]: each["role"] for each in members}
    stored = await connection.fetchrow("SELECT group_kind, metadata->'a'->>'text' FROM chat_group")
    assert ("project", "é\n") == tuple(stored or ())


async def test_a_group_without_them_has_none(api: Api, connection: Connection) -> None:
    """Null to its readers, and nothing in its row."""
    for key, document in (
        ("k", {"name": "T"}),
        ("l", {"name": "T", "kind": None, "metadata": None}),
    ):
        created = (await api.create(key, document)).json
        group = (await api.get(f"/v1/groups/{created['group_id']}")).json
        assert (None, None) == (group["kind"], group["metadata"])
    found = await connection.fetch("SELECT DISTINCT group_kind, metadata FROM chat_group")
    assert [(None, None)] == [tuple(row) for row in found]


async def test_every_member_hears_of_them(database_url: str) -> None:
    """The event has kind and metadata; that of a group without them has neither."""
    async with live_service(database_url) as live, live.websocket("bob") as session:
        await session.next()
        await live.api.create("k", CHOSEN)
        await live.create("plain")
        await live.tail_once()
        data = (await session.next())["event"]["data"]
        assert ("project", METADATA, 3) == (data["kind"], data["metadata"], data["members_count"])
        plain = (await session.next())["event"]["data"]
        always = {"group_id", "conversation_id", "owner_id", "name", "members_count"}
        assert always | {"member_ids"} == plain.keys()


@pytest.mark.parametrize("is_remembered", [True, False])
async def test_each_spelling_is_the_same_request_and_another_choice_is_not(
    is_remembered: bool, live: LiveService, connection: Connection
) -> None:
    """From memory, and from the database once the process has forgotten and the attempt is gone."""
    first = await live.api.create("k", CHOSEN)
    others = [
        {**CHOSEN, "kind": "team"},
        {**CHOSEN, "metadata": {**METADATA, "z": 2}},
        {**CHOSEN, "members": ["bob", "carol"]},
        {"name": "Team", "members": ["bob", "carol"]},
    ]
    bodies = [*SPELLINGS, *map(orjson.dumps, others)]
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json"}
    statuses = []
    for body in bodies:
        if not is_remembered:
            live.app[SERVICE].creator.forget()
            await connection.execute("TRUNCATE attempt")
        reply = await live.api.request("POST", "/v1/groups", headers=headers, data=body)
        statuses.append(reply.status)
        assert reply.status == 422 or reply.body == first.body
    assert [201] * len(SPELLINGS) + [422] * len(others) == statuses


@pytest.mark.parametrize("body", [SPELLINGS[0], *WRONG.values()], ids=["right", *WRONG])
async def test_both_ways_take_and_refuse_the_same(
    body: bytes, live: LiveService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast path reads a request as the routes do, and wrong ones leave no trace."""
    answers = []
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert (await live.api.get("/v1/groups", headers=headers)).status == 200
    async with raw_clients(live.api.url) as raw:
        for reads, key in ((PlainRequests.read, "one"), (lambda *_: None, "two")):
            monkeypatch.setattr(PlainRequests, "read", reads)
            client = await raw.connect(creation(TOKEN, key, body))
            async with asyncio.timeout(20):
                status, _, document = await client.answer()
            answers.append((status, document.get("errors")))
    assert answers[0] == answers[1]
    expected = 201 if body == SPELLINGS[0] else 400
    assert expected == answers[0][0]
    groups = (await live.api.get("/v1/groups")).json["groups"]
    assert (2 if expected == 201 else 0) == len(groups)
    assert [("project", METADATA)] * len(groups) == [(g["kind"], g["metadata"]) for g in groups]


async def test_the_hosts_hook_sees_them_and_the_tokens_claims(
    database_url: str, connection: Connection
) -> None:
    """On both ways; what it rejects by them fails as by anything else."""
    seen: list[tuple[object, ...]] = []

    async def on_create(_: object, created: Sequence[tuple[CreatedGroup, NewGroup]]) -> None:
        for _, new_group in created:
            claims: Mapping[str, Any] = new_group.claims or {}
            metadata = new_group.metadata and new_group.metadata.value
            seen.append((new_group.kind, metadata, new_group.admins, claims.get("sub")))
            if new_group.kind == "veto":
                raise GroupRejected("quota", "No more of these.")

    async with api_for(database_url, on_create=on_create) as api, raw_clients(api.url) as raw:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert (await api.get("/v1/groups", headers=headers)).status == 200
        client = await raw.connect(creation(TOKEN, "plain", orjson.dumps(CHOSEN)))
        assert (await client.answer())[0] == 201
        assert (await api.create("k", CHOSEN, user="bob")).status == 201
        expected = [("project", METADATA, ("carol",), user) for user in ("alice", "bob")]
        assert expected == seen
        reply = await api.create("l", {"name": "T", "kind": "veto"})
        assert (410, "quota") == (reply.status, reply.json["failure"]["code"])
    assert 2 == await connection.fetchval("SELECT count(*) FROM chat_group")
