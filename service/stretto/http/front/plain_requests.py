"""Reads plain requests: complete ones, in a form that every reader understands in the same way.

The fast path (`fast_path.py`) answers some requests before aiohttp's parser has seen them. A second
reader must never treat part of a body as a request: that would be request smuggling. So this reader
returns a request only while it knows where requests begin. It knows that as long as every head of
the connection had the strict form below and came in one piece, and its length says where its body
ends. After anything else it returns nothing for the rest of the connection; the parser then reads
alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# Narrower than RFC 9112 throughout: one space behind each colon, printable ASCII, 1 to 64 fields.
_FIELD: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++: [ -~]*+"
_HEAD: Final = re.compile(
    rb"((?:GET|HEAD|OPTIONS|POST) /[!-~]*) HTTP/1\.1\r\n(%b(?:\r\n%b){0,63}+)\r\n\r\n"
    % (_FIELD, _FIELD)
)
# What the parser accepts of a single line.
_HEAD_BYTES_MAX: Final = 8_190
_LENGTH: Final = re.compile(rb"0|[1-9][0-9]{0,8}")
# They decide where a request ends, what its body is, what follows it, or whether it is a request.
_UNUSUAL: Final = frozenset(
    {
        b"content-encoding",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-connection",
        b"sec-websocket-key1",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Health checks: these may say that they are the last of their connection, as haproxy's and the kubelet's do.
CHECKS: Final = {b"GET /livez": "/livez", b"GET /readyz": "/readyz"}
# A name or an address, and a port. Off the fast path as well, an odd one is refused (`heads.py`).
HOST: Final = rb"[0-9A-Za-z._-]+(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](?::[0-9]{1,5})?"
_HOST: Final = re.compile(HOST)
# Proxies add lines of their own to these; any other field stands at most once.
_REPEATED: Final = frozenset({b"forwarded", b"via", b"x-forwarded-for"})


@dataclass(slots=True)
class PlainRequest:
    """A request as it was sent."""

    begins: bytes
    """Method and target, with a space between."""
    fields: dict[bytes, bytes]
    """By name in lower case; of a repeated field, the last value."""
    body: bytes

    @property
    def is_last(self) -> bool:
        """Whether nothing can follow it on its connection."""
        # There is no other value than `keep-alive`.
        return self.fields.get(b"connection", b"").lower() == b"close"

    @property
    def authorization(self) -> str | None:
        """The field that has its token."""
        field = self.fields.get(b"authorization")
        return None if field is None else field.decode()


class PlainRequests:
    """The requests of one connection."""

    __slots__ = ("_missing",)

    def __init__(self) -> None:
        self._missing: int | None = 0
        """Bytes of a body that are still to come; None if it is not known what comes next."""

    def read(self, data: bytes) -> PlainRequest | None:
        """Return the plain request that exactly these bytes are, or None.

        All bytes of a connection must pass through this method.
        """
        if not data or self._missing is None:
            return None
        if self._missing > 0:
            self._expect(self._missing - len(data))
            return None
        head = _HEAD.match(data)
        if head is None or head.end() > _HEAD_BYTES_MAX or (fields := _fields(head)) is None:
            self._missing = None
            return None
        body = data[head.end() :]
        length = fields.get(b"content-length", b"0")
        if length == b"%d" % len(body):
            request = PlainRequest(head[1], fields, body)
            if request.is_last:
                self._missing = None
            return request
        self._expect(int(length) - len(body) if _LENGTH.fullmatch(length) else -1)
        return None

    def _expect(self, missing: int) -> None:
        """Note how many bytes are missing; a negative number means that another request began."""
        self._missing = missing if missing >= 0 else None


def _fields(head: re.Match[bytes]) -> dict[bytes, bytes] | None:
    """Return the fields of a head, if they leave no room for interpretation."""
    fields: dict[bytes, bytes] = {}
    for line in head[2].split(b"\r\n"):
        name, _, value = line.partition(b": ")
        name = name.lower()
        if name in fields and name not in _REPEATED:
            return None
        fields[name] = value
    if not _UNUSUAL.isdisjoint(fields) or not _HOST.fullmatch(fields.get(b"host", b"")):
        return None
    connection = fields.get(b"connection", b"keep-alive").lower()
    if connection == b"keep-alive" or (connection == b"close" and head[1] in CHECKS):
        return fields
    return None
