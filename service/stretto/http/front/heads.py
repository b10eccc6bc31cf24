"""What the head of a request says: whether it is too large or odd, or its connection's last."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs
from aiohttp.http_exceptions import BadHttpMessage, LineTooLong
from aiohttp.web_protocol import _ErrInfo

from stretto.http.front.plain_requests import HOST

if TYPE_CHECKING:
    from aiohttp.http import RawRequestMessage

EVENTS_PATH: Final = "/v1/events"
# A token of 8 KiB, and three times as much for the rest. aiohttp bounds each field and their
# number; together these would still allow a megabyte per connection.
HEAD_BYTES_MAX: Final = 32 * 1024
# Of the largest length that the parser takes.
_LENGTH_DIGITS_MAX: Final = 20
_END: Final = b"\r\n\r\n"
_HOST: Final = re.compile(HOST.decode())
_AUTHORIZATION: Final = re.compile(rb"\r\n[Aa]uthorization:[ \t]*([^\r\n]+)\r\n")
LINE_TOO_LARGE: Final = "A line of the request's head is too large."
FIELDS_TOO_MANY: Final = "The request's head has too many fields."
# aiohttp has no class of its own for it: with another text it would be answered 400, as any bytes
# that cannot be parsed.
_TOO_MANY: Final = "Too many headers received"


def authorization_in(data: bytes) -> str:
    """Return the first field of that name in bytes that may begin with a head; empty if there is none."""
    field = _AUTHORIZATION.search(data, 0, HEAD_BYTES_MAX)
    return "" if field is None else field[1].decode(errors="replace")


class HeadEnds:
    """Finds where the heads of a connection begin and end, in bytes that may be cut anywhere."""

    __slots__ = ("_last", "blank_bytes")

    def __init__(self) -> None:
        self._last = b""
        """The last bytes of the head that is not complete."""
        self.blank_bytes = 0
        """Of empty lines since the last head."""

    @property
    def is_in_head(self) -> bool:
        """Whether a head has begun that is not complete."""
        return bool(self._last)

    def blanks_in(self, data: bytes) -> int:
        """Return how many of the next bytes are empty lines before a head: they belong to none (RFC 9112, 2.2)."""
        count = 0 if self._last else len(data) - len(data.lstrip(b"\r\n"))
        self.blank_bytes += count
        return count

    def end_in(self, data: bytes) -> int:
        """Return how many of the next bytes belong to the same head."""
        joined = self._last + data
        at = joined.find(_END)
        if at < 0:
            self._last = joined[1 - len(_END) :]
            return len(data)
        count = at + len(_END) - len(self._last)
        self._last = b""
        self.blank_bytes = 0
        return count


def head_bytes(message: RawRequestMessage) -> int:
    """Return the size of a complete head: it is bounded as one is that arrives in pieces.

    The parser has dropped blanks around values, and does not say where a head ends.
    """
    line = len(message.method) + len(message.path) + len("  HTTP/1.1\r\n\r\n")
    return line + sum(len(name) + len(value) + 4 for name, value in message.raw_headers)


def too_large_part(error: BaseException | None) -> str | None:
    """Return what is too large of a head that the parser has refused; None if it was not for that."""
    if isinstance(error, LineTooLong):
        # aiohttp bounds each line of a head by itself.
        return LINE_TOO_LARGE
    if isinstance(error, BadHttpMessage) and error.message == _TOO_MANY:
        return FIELDS_TOO_MANY
    return None


def body_bytes(message: RawRequestMessage) -> int:
    """Return how long a body is, by its head; 0 if that does not say it. The rest of an odd one is zeros."""
    return int(message.headers.get(hdrs.CONTENT_LENGTH, "0")[-_LENGTH_DIGITS_MAX:])


def is_odd(message: RawRequestMessage) -> bool:
    """Return whether a head that was parsed is answered 400."""
    # A fragment is no part of any target (RFC 9112, 3.2). The parser cuts it off.
    return _is_host_odd(message) or _is_length_odd(message) or "#" in message.path


def _is_host_odd(message: RawRequestMessage) -> bool:
    """Return whether `Host` names no host: who reads it in another way serves another one.

    RFC 9112, 3.2, which lets it be empty. The parser refuses two of them, and none in HTTP/1.1.
    """
    host = message.headers.get(hdrs.HOST, "")
    return bool(host) and _HOST.fullmatch(host) is None


def _is_length_odd(message: RawRequestMessage) -> bool:
    """Return whether `Content-Length` has more digits than any: `int` raises for thousands of zeros."""
    return len(message.headers.get(hdrs.CONTENT_LENGTH, "")) > _LENGTH_DIGITS_MAX


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
