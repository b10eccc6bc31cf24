"""How many chunks a body may come in, what may stand around them, and where they end.

Each chunk costs as much as many bytes do.

A chunk costs the parser some 1.3 µs, whatever its size, and it takes about as much to know where it
ends. 4 KB in chunks of a byte cost the parser alone as much as 27 creations, and a few hundred clients that send such bodies would keep all others waiting for a second. No rate
of requests and no turn-taking bounds that: they count requests.

A line that gives a chunk's size may go on for ever, with extensions or zeros. Nothing of it comes into
the body, so nothing would stop reading it: 40 such clients would take all of a process's time.

A field behind the last chunk, a trailer, never reaches the parser: that keeps the last one, and puts it
into the head of the connection's next request. Behind a proxy, that is another client's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from aiohttp.streams import EMPTY_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohttp import StreamReader

# Of one body, whatever their size: clients that stream JSON send small ones. Together they cost
# about as much as one creation.
CHUNKS_MAX: Final = 256
# Of those beyond, on average. The largest body in such chunks has 4,096.
CHUNK_BYTES_MIN: Final = 64
# Of what stands around the chunks of a body, and a quarter of what is in them: sizes and
# extensions. The size of a chunk of 64 bytes takes six. No client of ours sends more.
FRAMING_BYTES_MAX: Final = 16 * 1024
# Parsed before they are counted: 85 chunks of a byte. One read of the socket has up to 43,000 of them:
# uvloop reads 256 KiB at once, whatever buffer a protocol offers it.
PART_BYTES: Final = 512
# Parsed at once if they have as many lines as few chunks. Chunks of 27 bytes and more always do, and
# smaller ones are too many after two of these.
LARGE_PART_BYTES: Final = 8 * 1024
# Of each that waits for its reader, beside its bytes: an object, its place in a list, and where it ends.
CHUNK_MEMORY: Final = 100
_LINE: Final = re.compile(rb"[0-9A-Fa-f]{1,8}\r\n")
_DIGITS: Final = re.compile(rb"[0-9A-Fa-f]*")
# The parser refuses larger ones.
_SIZE_MAX: Final = 2**64
_LINE_END: Final = b"\r\n"


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


def memory_of_body(body: StreamReader) -> int:
    """Return what a body takes in memory, as far as it has come."""
    return body.total_bytes + CHUNK_MEMORY * _waiting_chunks(body)


def _waiting_chunks(body: StreamReader) -> int:
    """Return how many chunks of a body wait for their reader."""
    if body is EMPTY_PAYLOAD:
        return 0
    # aiohttp keeps the end of each for its readers, and counts nothing else.
    return len(body._http_chunk_splits or ())  # noqa: SLF001


class Framing:
    """Where the chunks of one body end, in bytes that may be cut anywhere.

    It finds no error: the parser does, which gets all bytes up to the end, and up to a trailer.
    """

    __slots__ = ("_in_digits", "_in_line", "_is_last", "_left", "_size", "has_trailer")

    def __init__(self) -> None:
        self._size = 0
        """Of the chunk whose line is read, by the digits so far."""
        self._in_line = self._in_digits = True
        """Whether the next byte belongs to such a line, and may be a digit of the size."""
        self._left = 0
        """Bytes of a chunk's data that are still to come, with the end of their line."""
        self._is_last = False
        """Whether the size of the last chunk, which is 0, is complete."""
        self.has_trailer = False
        """Whether a field begins behind the last chunk."""

    def end_in(self, data: bytes) -> int:
        """Return how many of the next bytes belong to the body."""
        at = 0
        while at < len(data):
            if self._in_line:
                if self._in_digits and not self._size:
                    at = _behind_whole_chunks(data, at)
                at = self._read_line(data, at)
            elif not self._left:
                break
            elif self._is_last and self._left == len(_LINE_END) and data[at] != _LINE_END[0]:
                self.has_trailer = True
                break
            else:
                taken = min(self._left, len(data) - at)
                at += taken
                self._left -= taken
                self._in_line = self._in_digits = not (self._left or self._is_last)
        return at

    def _read_line(self, data: bytes, at: int) -> int:
        """Read a line that gives a size, as far as it has come; return where it ends."""
        if self._in_digits:
            digits = _DIGITS.match(data, at)
            assert digits is not None
            if digits[0]:
                size = self._size << (4 * len(digits[0])) | int(digits[0], 16)
                self._size = min(size, _SIZE_MAX)
                at = digits.end()
            self._in_digits = at == len(data)
        end = data.find(b"\n", at) + 1
        if not end:
            return len(data)
        self._in_line = False
        self._is_last = not self._size
        self._left = self._size + len(_LINE_END)
        self._size = 0
        return end


def _behind_whole_chunks(data: bytes, at: int) -> int:
    """Pass over chunks that are whole, without extensions: a third of the time that others take."""
    while line := _LINE.match(data, at):
        begin = line.end()
        # `int` takes the end of the line for a blank.
        size = int(data[at:begin], 16)
        end = begin + size + len(_LINE_END)
        if not size or end > len(data):
            break
        at = end
    return at


class ChunkCount:
    """The chunks of one body."""

    __slots__ = ("_body", "_chunks", "_received", "_unread", "framing")

    def __init__(self, body: StreamReader) -> None:
        self.framing = Framing()
        self._body = body
        self._chunks = 0
        self._received = 0
        """Bytes, with all that stands around the chunks."""
        self._unread = 0
        """Those that were not read when the parser began."""

    def begin(self, received: int) -> None:
        """Note that the parser begins to work, on so many bytes."""
        self._received += received
        self._unread = _waiting_chunks(self._body)

    def count(self) -> int:
        """Count what the parser has found since, while no reader ran; return how many chunks that are."""
        found = _waiting_chunks(self._body) - self._unread
        self._chunks += found
        return found

    def are_too_many(self) -> bool:
        """Return whether to refuse a body for its small chunks."""
        return self._chunks > CHUNKS_MAX + self._body.total_bytes // CHUNK_BYTES_MIN

    def is_framing_too_large(self) -> bool:
        """Return whether to refuse a body for what stands around its chunks, if it is not complete."""
        framing = self._received - self._body.total_bytes
        return framing > FRAMING_BYTES_MAX + self._body.total_bytes // 4
