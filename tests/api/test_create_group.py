"""`POST /v1/groups` as a client sees it."""

from __future__ import annotations

import asyncio
import time
import zlib
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from stretto.assembly.settings import ComponentSettings
from stretto.codec import BODY_BYTES_MAX
from stretto.creation.settings import CreatorSettings
from stretto.domain import group_id
from stretto.errors import GroupRejected, Retry
from support.api_client import TEAM, Api, api_for, token_of

if TYPE_CHECKING:
    from support.database import Connection

TABLES = ("attempt", "chat_group", "conversation", "conversation_member", "outbox")


async def rows(connection: Connection) -> int:
    """Count the rows of all tables."""
    counts = [await connection.fetchval(f"SELECT count(*) FROM {table}") for table in TABLES]
    return sum(counts)


async def test_a_new_group_is_created_and_every_retry_is_a_replay(api: Api) -> None:
    """The same status and bytes, marked; the id is the one that the client can compute."""
    first = await api.create("k")
    again = await api.create("k")
    expected_id = str(group_id("alice", "k"))
    assert (201, 201) == (first.status, again.status)
    assert first.body == again.body
    assert ["group_id", "conversation_id"] == list(first.json)
    assert expected_id == first.json["group_id"]
    for reply in (first, again):
        assert f"/v1/groups/{expected_id}" == reply.headers["Location"]
        assert reply.headers["Content-Type"] == "application/json"
    assert ("created", None) == (
        first.headers["Idempotency-Status"],
        first.headers.get("Idempotent-Replayed"),
    )
    assert ("replayed", "true") == (
        again.headers["Idempotency-Status"],
        again.headers["Idempotent-Replayed"],
    )


async def test_a_quoted_key_is_the_same_key(api: Api) -> None:
    """Both spellings name one attempt."""
    assert (await api.create("k")).body == (await api.create('"k"')).body


async def test_another_spelling_of_the_same_request_is_the_same_request(api: Api) -> None:
    """White space, field order, member order and the owner's mention mean nothing."""
    first = await api.create("k", TEAM)
    members = ["carol", "bob", "bob", "alice"]
    again = await api.create("k", {"members": members, "description": None, "name": "Team"})
    assert (201, first.body) == (again.status, again.body)


async def test_another_body_under_the_key_is_refused_without_showing_the_first(api: Api) -> None:
    """422, a new key is needed, and nothing of the first body leaks."""
    await api.create("k", {"name": "Secret plans"})
    reply = await api.create("k", {"name": "Team"})
    assert (422, "key_reused", "new-key") == (
        reply.status,
        reply.json["code"],
        reply.json["retry"],
    )
    assert b"Secret" not in reply.body


async def test_two_owners_may_use_the_same_key(api: Api) -> None:
    """A key belongs to its owner."""
    assert (await api.create("k")).body != (await api.create("k", user="bob")).body


async def test_an_attempt_that_is_not_settled_in_time_is_reported_as_pending(
    database_url: str, connection: Connection
) -> None:
    """409 with Retry-After for a follower that will not wait."""
    settings = ComponentSettings(creator=CreatorSettings(lease_seconds=600))
    async with api_for(database_url, settings) as api:
        await api.create("k")
        await connection.execute(
            """DELETE FROM conversation;
               CREATE TEMP TABLE old AS SELECT * FROM attempt; TRUNCATE attempt;
               INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
               SELECT group_id, owner_id, fingerprint, gen_random_uuid() FROM old"""
        )
    async with api_for(database_url, settings) as api:
        reply = await api.create("k", wait=0)
    assert (409, "attempt_pending", "same-key", "1") == (
        reply.status,
        reply.json["code"],
        reply.json["retry"],
        reply.headers["Retry-After"],
    )


async def test_a_failed_attempt_is_gone_for_good(database_url: str) -> None:
    """410 with the host's reason, now and on every retry."""

    async def reject(*_: object) -> None:
        raise GroupRejected("quota", "Ten groups are enough.")

    async with api_for(database_url, on_create=reject) as api:
        replies = [await api.create("k") for _ in range(2)]
        lookup = await api.get("/v1/attempts/k")
    for reply in replies:
        assert (410, "attempt_failed", "new-key") == (
            reply.status,
            reply.json["code"],
            reply.json["retry"],
        )
        assert reply.json["failure"] == {"code": "quota", "detail": "Ten groups are enough."}
    assert lookup.json["status"] == "failed"
    assert lookup.json["failure"] == replies[0].json["failure"]


async def test_a_request_that_was_first_sent_too_long_ago_starts_nothing(
    database_url: str, connection: Connection
) -> None:
    """422 before the claim; a group that is there is found however old the request is."""
    settings = ComponentSettings(attempt_age_max=3600)
    now = int(time.time())
    async with api_for(database_url, settings) as api:
        late = {
            seconds: await api.create("k", first_sent=f"@{now + seconds}")
            for seconds in (-3700, -(10**12), 400, 10**12)
        }
        assert await rows(connection) == 0
        created = await api.create("k", first_sent=f"@{now - 3000}")
        again = await api.create("k", first_sent=f"@{now - 3700}")
    for reply in late.values():
        assert (422, "first_sent_out_of_range", "new-key") == (
            reply.status,
            reply.json["code"],
            reply.json["retry"],
        )
    assert [201, 201] == [created.status, again.status]
    await connection.execute("DELETE FROM attempt")
    async with api_for(database_url, settings) as api:
        healed = await api.create("k", first_sent="@1")
    assert (201, "healed") == (healed.status, healed.headers["Idempotency-Status"])
    assert created.body == again.body == healed.body


async def test_a_limited_owner_learns_when_to_come_back(database_url: str) -> None:
    """429 before the claim."""
    settings = ComponentSettings(creator=CreatorSettings(rate_limit=0.01))
    async with api_for(database_url, settings) as api:
        assert (await api.create("a")).status == 201
        reply = await api.create("b")
        assert (await api.create("c", user="bob")).status == 201
    assert (429, "rate_limited", "same-key") == (
        reply.status,
        reply.json["code"],
        reply.json["retry"],
    )
    assert 0 < int(reply.headers["Retry-After"]) <= 100


GOOD = orjson.dumps(TEAM)
JSON = {"Content-Type": "application/json"}
KEYED = {**JSON, "Idempotency-Key": "k"}


@pytest.mark.parametrize(
    ("code", "headers", "body"),
    [
        ("key_missing", [], GOOD),
        ("key_invalid", [("Idempotency-Key", "a"), ("Idempotency-Key", "a")], GOOD),
        ("key_invalid", [("Idempotency-Key", "")], GOOD),
        ("key_invalid", [("Idempotency-Key", "k" * 256)], GOOD),
        ("key_invalid", [("Idempotency-Key", "clé")], GOOD),
        ("key_invalid", [("Idempotency-Key", "two words")], GOOD),
        ("key_invalid", [("Idempotency-Key", '"unclosed')], GOOD),
        ("request_invalid", [("Idempotency-Key", "k")], b""),
        ("request_invalid", [("Idempotency-Key", "k")], b"{"),
        ("request_invalid", [("Idempotency-Key", "k")], b"[]"),
        ("request_invalid", [("Idempotency-Key", "k")], b"{}"),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": 1}'),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": ""}'),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": "%s"}' % (b"n" * 65)),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": "Team", "colour": "red"}'),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": "a\\u0007b"}'),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": "a\\u0000b"}'),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": "a\\ud800b"}'),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": "a\xffb"}'),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": "a", "name": "b"}'),
        ("request_invalid", [("Idempotency-Key", "k")], b'{"name": "a", "n\\u0061me": "b"}'),
        (
            "request_invalid",
            [("Idempotency-Key", "k")],
            orjson.dumps({"name": "Team", "members": [f"user {n}" for n in range(1001)]}),
        ),
        (
            "request_invalid",
            [("Idempotency-Key", "k")],
            orjson.dumps({"name": "Team", "members": ["ü"]}),
        ),
        (
            "body_too_large",
            [("Idempotency-Key", "k")],
            b'{"name": "Team"}' + b" " * BODY_BYTES_MAX,
        ),
        (
            "body_too_large",
            [("Idempotency-Key", "k"), ("Content-Encoding", "deflate")],
            zlib.compress(b'{"name": "Team"}' + b" " * 50_000_000),
        ),
        (
            "request_invalid",
            [("Idempotency-Key", "k"), ("Content-Encoding", "deflate")],
            b"this is not compressed",
        ),
    ],
)
async def test_wrong_input_is_explained_and_leaves_no_row(
    code: str,
    headers: list[tuple[str, str]],
    body: bytes,
    api: Api,
    connection: Connection,
) -> None:
    """A problem document, and nothing else has happened (G7)."""
    before = await rows(connection)
    token = ("Authorization", f"Bearer {token_of('alice')}")
    async with api.session.post(
        api.url + "/v1/groups", data=body, headers=[*headers, *JSON.items(), token]
    ) as response:
        problem = orjson.loads(await response.read())
        assert response.content_type == "application/problem+json"
    assert (code, response.status) == (problem["code"], problem["status"])
    assert Retry.NEVER == problem["retry"]
    assert before == await rows(connection)


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "", "application/jsonp"])
async def test_only_json_is_read(content_type: str, api: Api, connection: Connection) -> None:
    """415, and nothing is claimed."""
    reply = await api.request(
        "POST",
        "/v1/groups",
        data=GOOD,
        headers={"Idempotency-Key": "k", "Content-Type": content_type},
    )
    assert (415, "unsupported_media_type") == (reply.status, reply.json["code"])
    assert await rows(connection) == 0


async def test_json_may_name_its_encoding(api: Api) -> None:
    """As many client libraries do."""
    headers = {"Idempotency-Key": "k", "Content-Type": "application/json; charset=utf-8"}
    reply = await api.request("POST", "/v1/groups", data=GOOD, headers=headers)
    assert reply.status == 201


async def test_every_error_of_a_body_is_reported_at_once_with_its_place(api: Api) -> None:
    """JSON pointers, so that a program can find them."""
    reply = await api.create("k", {"name": "", "colour": 1, "a/b": 2, "members": ["bob", 5]})
    assert reply.status == 400
    expected = ["/colour", "/a~1b", "/name", "/members/1"]
    assert expected == [error["pointer"] for error in reply.json["errors"]]


@pytest.mark.parametrize("wait", ["wait=-1", "wait=x", "wait", "respond-async", "wait=99999"])
async def test_a_preference_that_makes_no_sense_is_no_reason_to_refuse(wait: str, api: Api) -> None:
    """RFC 7240: it is ignored, or cut to what we allow."""
    headers = {**KEYED, "Prefer": wait}
    assert (await api.request("POST", "/v1/groups", data=GOOD, headers=headers)).status == 201


@pytest.mark.parametrize(
    ("status", "code", "method", "path"),
    [
        (404, "not_found", "GET", "/nothing"),
        (404, "not_found", "POST", "/v1/groups/"),
        (405, "method_not_allowed", "PUT", "/v1/groups"),
        (405, "method_not_allowed", "DELETE", "/livez"),
    ],
)
async def test_unknown_paths_and_methods_are_problems_too(
    status: int, code: str, method: str, path: str, api: Api
) -> None:
    """No bare text page anywhere; the answer to a wrong method names the right ones."""
    reply = await api.request(method, path)
    assert (status, code) == (reply.status, reply.json["code"])
    assert reply.headers["Content-Type"].startswith("application/problem+json")
    assert (status == 405) == ("Allow" in reply.headers)


async def test_many_members_and_the_widest_text_are_created(
    api: Api, connection: Connection
) -> None:
    """The limits are inclusive."""
    document: dict[str, Any] = {
        "name": "🎻" * 64,
        "description": "line one\nline two\t" + "ß" * 1006,
        "members": [f"user {number:0123}" for number in range(1000)],
    }
    reply = await api.create("k" * 255, document)
    assert reply.status == 201
    assert await connection.fetchval("SELECT count(*) FROM conversation_member") == 1001
    stored = await connection.fetchrow("SELECT name, description FROM chat_group")
    assert stored is not None
    assert (document["name"], document["description"]) == tuple(stored)


async def test_the_event_stands_in_the_outbox(api: Api, connection: Connection) -> None:
    """Once, with the id that follows from the group, and its recipients."""
    replies = await asyncio.gather(*(api.create("k") for _ in range(5)))
    (event,) = await connection.fetch("SELECT * FROM outbox")
    created = replies[0].json
    assert (["alice", "bob", "carol"], "Team") == (event["recipients"], event["group_name"])
    assert created == {
        "group_id": str(event["subject"]),
        "conversation_id": str(event["conversation_id"]),
    }
