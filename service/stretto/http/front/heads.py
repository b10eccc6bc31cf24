"""What the head of a request says about its connection: whether it is too large, or the last."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import hdrs
from aiohttp.web_protocol import _ErrInfo

if TYPE_CHECKING:
    from aiohttp.http import RawRequestMessage

EVENTS_PATH: Final = "/v1/events"
# A token of 8 KiB, and three times as much for the rest. aiohttp bounds each field and their
# number; together these would still allow a megabyte per connection.
HEAD_BYTES_MAX: Final = 32 * 1024


def head_bytes(message: RawRequestMessage) -> int:
    """Return the size of a complete head: it is bounded as one is that arrives in pieces.

    The parser has dropped blanks around values, and does not say where a head ends.
    """
    line = len(message.method) + len(message.path) + len("  HTTP/1.1\r\n\r\n")
    return line + sum(len(name) + len(value) + 4 for name, value in message.raw_headers)


def is_last(message: RawRequestMessage | _ErrInfo) -> bool:
    """Return whether nothing behind a message is read."""
    if isinstance(message, _ErrInfo):
        return True
    # A session goes on in another protocol, which has an end of its own.
    return _is_declined(message) or (message.should_close and not message.upgrade)


def _is_declined(message: RawRequestMessage) -> bool:
    """Return whether a message asks for a protocol that its target does not speak."""
    protocol = message.headers.get(hdrs.UPGRADE)
    if protocol is None:
        return message.method == hdrs.METH_CONNECT
    # Compared as the router does: a target may begin with a host, or spell letters as %XX.
    return message.url.path_safe != EVENTS_PATH or protocol.strip().lower() != "websocket"
