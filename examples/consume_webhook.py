"""Greets the members of each new group once, although its event comes over a webhook at least once.

It verifies the signature (Standard Webhooks). The greeting and the inbox's record commit together,
in a database of its own:

    export STRETTO_WEBHOOK_SECRET=whsec_…
    python examples/consume_webhook.py 9000 postgresql://shop:secret@localhost/shop
"""

from __future__ import annotations

import base64
import hmac
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
from aiohttp import web

import stretto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INBOX: Final = stretto.Inbox("greeter")
TABLE: Final = """CREATE TABLE IF NOT EXISTS greeting (
    group_id text, group_name text, member_ids text[])"""
TOLERANCE_SECONDS: Final = 300
# During a change of secrets a request carries a signature of each: one that matches is enough.
SECRETS: Final = [
    base64.b64decode(secret.removeprefix("whsec_"))
    for secret in os.environ["STRETTO_WEBHOOK_SECRET"].split()
]
POOL: Final = web.AppKey("POOL", asyncpg.Pool)


def is_genuine(request: web.Request, body: bytes) -> bool:
    """Whether one of our secrets has signed exactly this body, and recently."""
    event_id, timestamp, signatures = (
        request.headers.get(f"webhook-{name}", "").encode(errors="replace")
        for name in ("id", "timestamp", "signature")
    )
    signed = b".".join((event_id, timestamp, body))
    digests = [hmac.digest(secret, signed, "sha256") for secret in SECRETS]
    expected = [b"v1," + base64.b64encode(digest) for digest in digests]
    pairs = ((one, other) for one in expected for other in signatures.split(b" "))
    if not any(hmac.compare_digest(*pair) for pair in pairs):
        return False
    return abs(time.time() - int(timestamp)) <= TOLERANCE_SECONDS


async def greet(event: dict[str, Any], pool: asyncpg.Pool) -> None:
    """Greet all members with one row, unless the event has come before."""
    async with pool.acquire() as connection, connection.transaction():
        if await INBOX.first_time(connection, UUID(event["id"])):
            # A group of more than 100 has no `member_ids`: its members have to be read.
            row = (event["subject"], event["data"]["name"], event["data"].get("member_ids"))
            await connection.execute("INSERT INTO greeting VALUES ($1, $2, $3)", *row)


async def receive(request: web.Request) -> web.Response:
    """Have the event's effect, if it has one; answer 2xx only after the commit."""
    if not is_genuine(request, await request.read()):
        raise web.HTTPUnauthorized
    event = await request.json()
    # Each change of a group has an event too, of another type: it is acknowledged alone.
    if event["type"] == "group.created":
        await greet(event, request.app[POOL])
    # After any other answer, or none, the event is sent again.
    return web.Response(status=204)


def main(port: int, database_url: str) -> None:
    """Receive until Ctrl-C or SIGTERM."""

    async def open_pool(app: web.Application) -> AsyncIterator[None]:
        async with asyncpg.create_pool(database_url, min_size=1) as app[POOL]:
            async with app[POOL].acquire() as connection:
                await INBOX.create_table(connection)
                await connection.execute(TABLE)
            yield

    app = web.Application()
    app.cleanup_ctx.append(open_pool)
    app.add_routes([web.post("/", receive)])
    web.run_app(app, host="127.0.0.1", port=port)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
