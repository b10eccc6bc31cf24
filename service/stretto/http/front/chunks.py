"""How many chunks a body may come in, and how much may stand around them.

Each chunk costs as much as many bytes do.

A chunk costs some 1.3 µs, whatever its size. 4 KB in chunks of a byte cost as much as 27 creations,
and a few hundred clients that send such bodies would keep all others waiting for a second. No rate
of requests and no turn-taking bounds that: they count requests.

A line that gives a chunk's size may go on for ever, with extensions or zeros. Nothing of it comes into
the body, so nothing would stop reading it: 40 such clients would take all of a process's time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohttp import StreamReader

# Of one body, whatever their size: clients that stream JSON send small ones. Together they cost
# about as much as one creation.
CHUNKS_MAX: Final = 256
# Of those beyond, on average. The largest body in such chunks has 4,096.
CHUNK_BYTES_MIN: Final = 64
# Of what stands around the chunks of a body, and a quarter of what is in them: sizes, extensions and
# the fields behind the last one. The size of a chunk of 64 bytes takes six. No client of ours sends more.
FRAMING_BYTES_MAX: Final = 16 * 1024
# Parsed before they are counted: 85 chunks of a byte. One read of the socket has up to 43,000 of them:
# uvloop reads 256 KiB at once, whatever buffer a protocol offers it.
PART_BYTES: Final = 512
# Parsed at once if they have as many lines as few chunks. Chunks of 27 bytes and more always do, and
# smaller ones are too many after two of these.
LARGE_PART_BYTES: Final = 8 * 1024


def in_parts(data: bytes, whole_bytes: Callable[[], int]) -> Iterator[bytes]:
    """Yield bytes in parts with few chunks each.

    `whole_bytes` returns, before each part, how many bytes hold no chunks that would be parsed now.
    """
    at = 0
    while at < len(data):
        count = whole_bytes()
        if count < PART_BYTES:
            lines = data.count(b"\r\n", at, at + LARGE_PART_BYTES)
            count = PART_BYTES if lines > 2 * CHUNKS_MAX else LARGE_PART_BYTES
        yield data[at : at + count]
        at += count


class ChunkCount:
    """The chunks of one body."""

    __slots__ = ("_body", "_chunks", "_received", "_unread")

    def __init__(self, body: StreamReader) -> None:
        self._body = body
        self._chunks = 0
        self._received = 0
        """Bytes, without those that came with the head."""
        self._unread = 0
        """Those that were not read when the parser began."""

    def begin(self, received: int) -> None:
        """Note that the parser begins to work, on so many bytes."""
        self._received += received
        self._unread = self._unread_now()

    def are_too_many(self) -> bool:
        """Count what the parser has found since, while no reader ran; return whether to refuse."""
        self._chunks += self._unread_now() - self._unread
        return self._chunks > CHUNKS_MAX + self._body.total_bytes // CHUNK_BYTES_MIN

    def is_framing_too_large(self) -> bool:
        """Return whether to refuse a body for what stands around its chunks, if it is not complete."""
        framing = self._received - self._body.total_bytes
        return framing > FRAMING_BYTES_MAX + self._body.total_bytes // 4

    def _unread_now(self) -> int:
        # aiohttp keeps the end of each chunk for its readers, and counts nothing else.
        return len(self._body._http_chunk_splits or ())  # noqa: SLF001
