"""A webhook's receiver: verifies each event (Standard Webhooks) and processes each one once.

STRETTO_WEBHOOK_SECRET=whsec_… python examples/webhook.py 9000
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import sys
import time

from aiohttp import web

TOLERANCE_SECONDS = 300
# During a change of secrets a request carries a signature of each: one that matches is enough.
SECRETS = [
    base64.b64decode(secret.removeprefix("whsec_"))
    for secret in os.environ["STRETTO_WEBHOOK_SECRET"].split()
]
# A real receiver stores these in the same transaction as its effects: see stretto.Inbox.
seen: set[str] = set()


def is_genuine(request: web.Request, body: bytes) -> bool:
    """Whether one of our secrets has signed exactly this body, and recently."""
    event_id = request.headers.get("webhook-id", "")
    timestamp = request.headers.get("webhook-timestamp", "")
    if not timestamp.isdecimal() or abs(time.time() - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    signed = f"{event_id}.{timestamp}.".encode() + body
    digests = [hmac.new(secret, signed, hashlib.sha256).digest() for secret in SECRETS]
    expected = [b"v1," + base64.b64encode(digest) for digest in digests]
    given = request.headers.get("webhook-signature", "").encode().split(b" ")
    return any(hmac.compare_digest(one, other) for one in expected for other in given)


async def receive(request: web.Request) -> web.Response:
    """Process an event; after any answer but 2xx it is sent again."""
    body = await request.read()
    if not is_genuine(request, body):
        raise web.HTTPUnauthorized
    event_id = request.headers["webhook-id"]
    print(f"{event_id}: {'again' if event_id in seen else body.decode()}")
    seen.add(event_id)
    return web.Response(status=204)


if __name__ == "__main__":
    app = web.Application()
    app.add_routes([web.post("/", receive)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
