"""What one owner has no other one sees, and what is secret is written nowhere."""

from __future__ import annotations

import asyncio
import base64
import signal
from typing import TYPE_CHECKING
from uuid import UUID

import jwt
import orjson

from stretto.domain import event_id, group_id
from support.api_client import SECRET, TEAM, Api, connected_api, token_of
from support.database import pend
from support.raw_client import raw_clients

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.api_client import Reply
    from support.database import Connection
    from support.service_process import StartService

DEADLINE_SECONDS = 60
BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
KEY = "key-that-is-never-shown"
WEBHOOK_PATH = "path-that-lets-in"
NAME, MEMBER, DESCRIPTION = "Plan of the secret", "member-of-the-secret", "What is secret"


def encoded(document: object) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(orjson.dumps(document)).rstrip(b"=").decode()


def tampered(token: str) -> Iterator[str]:
    """Change every character of a token to another one, and whole parts of it to others."""
    header, claims, signature = token.split(".")
    for place, character in enumerate(token):
        # Each of the six bits counts, but for the last, unused ones of a part.
        other = chr(BASE64[BASE64.find(character.encode()) ^ 32])
        yield f"{token[:place]}{other}{token[place + 1 :]}"
    for bare in ("none", "None", "NONE", ""):
        unsigned = encoded({"alg": bare, "typ": "JWT"})
        yield from (f"{unsigned}.{claims}.", f"{unsigned}.{claims}.{signature}")
    yield from (f"{header}.{claims}.", f"{header}.{claims}", f"{header}..{signature}", "..")
    yield from (f".{claims}.{signature}", f"{token}.{signature}", token + "A")
    yield f"{header}.{encoded({'sub': 'mallory'})}.{signature}"
    yield f"{encoded({'alg': 'HS512', 'typ': 'JWT'})}.{claims}.{signature}"
    yield f"{encoded({'alg': 'RS256', 'typ': 'JWT'})}.{claims}.{signature}"
    yield jwt.encode({"sub": "alice"}, "another secret that is long enough", "HS256")
    yield jwt.encode({"sub": "alice", "exp": 1}, SECRET, "HS256")
    yield jwt.encode({"sub": "alice"}, SECRET, "HS256", headers={"crit": ["exp"]})
    yield jwt.encode({"name": "alice"}, SECRET, "HS256")


async def test_a_token_that_was_tampered_with_in_any_part_is_rejected(
    start_service: StartService, connection: Connection
) -> None:
    """Nor does it say which part it was beyond general words, nor spoil the genuine one."""
    service = await start_service()
    token = token_of("alice")
    async with asyncio.timeout(DEADLINE_SECONDS), connected_api(service.url) as api:
        for wrong in tampered(token):
            headers = {"Authorization": f"Bearer {wrong}", "Idempotency-Key": "k"}
            reply = await api.request("POST", "/v1/groups", user=None, headers=headers, json=TEAM)
            assert (401, "Bearer") == (reply.status, reply.headers.get("WWW-Authenticate")), wrong
            assert "unauthenticated" == reply.json["code"]
        assert await connection.fetchval("SELECT count(*) FROM attempt") == 0
        assert (await api.create("k")).status == 201


def shown(reply: Reply) -> tuple[int, bytes, dict[str, str]]:
    """Return all of an answer but its date and the request's id."""
    own = {"date", "x-request-id"}
    fields = {n: v for n, v in reply.headers.items() if n.lower() not in own}
    return reply.status, reply.body, fields


async def test_what_is_anothers_looks_like_what_does_not_exist(
    api: Api, connection: Connection
) -> None:
    """Byte for byte: keys, groups and members of others, settled or pending, give no hint."""
    mine = group_id("alice", KEY)
    created = await api.create(KEY, {"name": NAME, "members": [MEMBER]})
    assert str(mine) == created.json["group_id"]
    await pend(connection, "pending")
    conversation = created.json["conversation_id"]
    nobodys = UUID(int=7)
    for path, missing in (
        (f"/v1/attempts/{KEY}", "/v1/attempts/nobodys"),
        ("/v1/attempts/pending", "/v1/attempts/nobodys"),
        (f"/v1/attempts/{KEY}/history", "/v1/attempts/nobodys/history"),
        (f"/v1/groups/{mine}", f"/v1/groups/{nobodys}"),
        (f"/v1/groups/{mine}/members", f"/v1/groups/{nobodys}/members"),
        (f"/v1/groups/{conversation}", f"/v1/groups/{nobodys}"),
        (f"/v1/groups/{event_id(mine)}", f"/v1/groups/{nobodys}"),
    ):
        expected = shown(await api.get(missing, user="mallory"))
        assert expected == shown(await api.get(path, user="mallory"))
        assert expected[0] == 404
        assert NAME.encode() not in expected[1]
    # From where alice's groups are listed, mallory sees her own alone.
    listed = await api.get(f"/v1/groups?cursor={conversation}", user="mallory")
    assert listed.json == {"groups": [], "next_cursor": None}


async def test_anothers_key_is_free_for_every_owner(api: Api) -> None:
    """Neither refused as used, nor answered with the other's group."""
    first = await api.create(KEY, {"name": NAME})
    second = await api.create(KEY, {"name": "Mine"}, user="mallory")
    assert (201, "created") == (second.status, second.headers["Idempotency-Status"])
    assert first.json["group_id"] != second.json["group_id"]
    assert first.json["conversation_id"] != second.json["conversation_id"]


async def test_nothing_secret_is_logged_or_counted(
    start_service: StartService, connection: Connection, server_url: str
) -> None:
    """At the lowest level, with all that can go wrong: neither keys, tokens, names nor passwords."""
    webhook_secret = base64.b64encode(b"the secret of the webhook").decode()
    service = await start_service(
        LOG_LEVEL="debug",
        READ_TIMEOUT_SECONDS="1",
        # It is not called, since it leads to no public address.
        WEBHOOK_URL=f"http://localhost:1/{WEBHOOK_PATH}",
        WEBHOOK_SECRET=f"whsec_{webhook_secret}",
    )
    document = {"name": NAME, "description": DESCRIPTION, "members": [MEMBER]}
    token = token_of("alice")
    head = (
        f"POST /v1/groups?token={token} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Idempotency-Key: {KEY}\r\nContent-Type: application/json\r\n"
    ).encode()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        connected_api(service.url) as api,
        raw_clients(service.url) as raw,
    ):
        await api.create(KEY, document)
        await api.create(KEY, document)
        await api.create(KEY, {**document, "name": NAME + "!"})
        await api.create(KEY + "\t", document)
        await api.create(KEY, {**document, "members": [7, MEMBER + "\0"], NAME: 1})
        for path in (
            *(f"attempts/{KEY}", f"attempts/{KEY}/history", f"attempts/{KEY}-unknown"),
            *(f"groups/{KEY}", KEY),
        ):
            await api.get(f"/v1/{path}")
            await api.get(f"/v1/{path}?access_token={token}", user="mallory")
        forged = {"Authorization": f"Bearer {token}x"}
        await api.get("/v1/groups", user=None, headers=forged)
        for broken in (
            head + b"\x00\r\n\r\n",
            head + b"Content-Length: 9\r\nContent-Length: 8\r\n\r\n",
            head + b"Transfer-Encoding: chunked\r\n\r\n" + NAME.encode() + b"\r\n",
            head + b"Content-Length: 200\r\n\r\n{" + NAME.encode(),
            head[:-2] + b"x",
        ):
            await (await raw.connect(broken)).closed()
        # Everything that can go wrong with the database, from a lock to a missing table.
        await connection.execute("ALTER TABLE conversation ADD CHECK (false) NOT VALID")
        assert (await api.create(KEY + "-refused", document)).status == 410
        await connection.execute("ALTER TABLE conversation RENAME TO gone")
        assert (await api.create(KEY + "-lost", document)).status == 503
        await connection.execute("ALTER TABLE attempt RENAME TO gone_too")
        assert (await api.create(KEY + "-unclaimed", document)).status == 503
        assert (await api.get(f"/v1/attempts/{KEY}-unclaimed")).status == 503
        metrics = b""
        while b'stretto_webhook_tries_total{result="blocked"}' not in metrics:
            metrics = (await api.get("/metrics", user=None)).body
        service.signal(signal.SIGTERM)
        assert await service.exited() == 0
        await service._reading
    written = b"".join(service.log)
    # It did say what happened.
    for event in (
        b"request.unreadable",
        b"request.cut_off",
        b"write.failed",
        b"webhook.blocked",
        b"service.stopped",
    ):
        assert event in written
    password = server_url.partition("@")[0].rpartition(":")[2]
    secrets = [*token.split("."), KEY, NAME, MEMBER, DESCRIPTION, SECRET, password, "mallory"]
    secrets += [webhook_secret, WEBHOOK_PATH]
    for secret in secrets:
        assert secret.encode() not in written, secret
        assert secret.encode() not in metrics, secret
