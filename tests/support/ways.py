"""Requests by the way that each takes to its answer: what every answer has, each of them has."""

from __future__ import annotations

from typing import Final

from support.api_client import token_of
from support.raw_client import creation

TOKEN: Final = token_of("alice")
# Where its success is remembered, the fast path replays it.
REPEAT: Final = creation(TOKEN, "known")
_HOST: Final = b"Host: x\r\nAuthorization: Bearer %b\r\n" % TOKEN.encode()
# The last two have a body that is never read.
WAYS: Final = {
    "replay": REPEAT,
    "new": creation(TOKEN, "new"),
    "routes": creation(TOKEN, "routes").replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"),
    "bad": creation(TOKEN, "bad", b"{"),
    "no token": creation("no token", "known"),
    "not found": b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
    "not allowed": b"DELETE /v1/groups HTTP/1.1\r\nHost: x\r\n\r\n",
    "head": b"HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "file": b"GET /docs/swagger-ui.css HTTP/1.1\r\nHost: x\r\n\r\n",
    "metrics": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "stream": b"GET /v1/events HTTP/1.1\r\n%bAccept: text/event-stream\r\n\r\n" % _HOST,
    "WebSocket": b"GET /v1/events HTTP/1.1\r\n%bConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n" % _HOST,
    "expectation": b"GET /livez HTTP/1.1\r\nHost: x\r\nExpect: more\r\n\r\n",
    "old and chunked": b"GET /livez HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
}
UNREADABLE: Final = {
    "no request": b"no request\r\n\r\n",
    "no version": b"GET /livez HTTP/2.0\r\nHost: x\r\n\r\n",
    "no host": b"GET http://[/ HTTP/1.1\r\nHost: x\r\n\r\n",
}


def with_lines(request: bytes, *lines: bytes) -> bytes:
    """Return a request that has these header fields before its own."""
    return request.replace(b"\r\n", b"\r\n" + b"".join(b"%b\r\n" % each for each in lines), 1)
