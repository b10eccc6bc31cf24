"""PostgreSQL's wire protocol, as far as a proxy needs it: frames, and which statement is run.

The protocol, version 3: https://www.postgresql.org/docs/current/protocol-message-formats.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

# Requests that come before the start-up message and have no answer but one byte.
SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
NO: Final = b"N"
READY_FOR_QUERY: Final = b"Z"
PARSE, BIND, QUERY, SYNC, FLUSH, TERMINATE = b"P", b"B", b"Q", b"S", b"H", b"X"
# What a client may send that the server answers at once, not only after a Sync.
_ENDS: Final = (SYNC, QUERY, FLUSH, TERMINATE, b"p", b"d", b"c", b"f")


@dataclass(frozen=True, slots=True)
class Message:
    """One frame: a letter, and all its bytes."""

    kind: bytes
    frame: bytes

    def strings(self, count: int) -> list[str]:
        """Return the zero-terminated strings that the body begins with."""
        return [part.decode() for part in self.frame[5:].split(b"\0", count)[:count]]


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a client sends in one go; `sql` where it runs a statement."""

    frames: bytes
    sql: str | None
    is_answered_by_ready: bool
    """Whether the server's answer ends with "ready for query"."""


@dataclass(slots=True)
class StatementReader:
    """Cuts what a client sends into exchanges; knows the statements that it has prepared."""

    _prepared: dict[str, str] = field(default_factory=dict)
    _frames: bytearray = field(default_factory=bytearray)
    _sql: str | None = None

    def feed(self, message: Message) -> Exchange | None:
        """Take a message; return the exchange that it completes."""
        if message.kind == PARSE:
            name, sql = message.strings(2)
            self._prepared[name] = sql
        elif message.kind == BIND:
            _, name = message.strings(2)
            self._sql = self._prepared.get(name)
        elif message.kind == QUERY:
            (self._sql,) = message.strings(1)
        self._frames += message.frame
        if message.kind not in _ENDS:
            return None
        exchange = Exchange(bytes(self._frames), self._sql, message.kind in (SYNC, QUERY))
        self._frames.clear()
        self._sql = None
        return exchange


async def read_startup(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one message without a letter: return its code and all its bytes."""
    head = await reader.readexactly(8)
    length, code = struct.unpack("!ii", head)
    return code, head + await reader.readexactly(length - len(head))


async def read_messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """Read messages until the stream ends; raises `IncompleteReadError` then."""
    while True:
        head = await reader.readexactly(5)
        (length,) = struct.unpack("!i", head[1:])
        yield Message(head[:1], head + await reader.readexactly(length - 4))
