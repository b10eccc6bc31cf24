"""Where heads and bodies in chunks end, however their bytes are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stretto.http.front.chunks import Framing
from stretto.http.front.heads import HeadEnds

if TYPE_CHECKING:
    from collections.abc import Callable

BODIES = {
    "one chunk": b"5\r\nhello\r\n0\r\n\r\n",
    "no chunk": b"0\r\n\r\n",
    "many": b"1\r\n0\r\n2\r\n\r\n\r\n0000c\r\n0\r\n\r\nX: y\r\n\r\n000\r\n\r\n",
    "letters": b"A\r\n0123456789\r\nb\r\n0123456789\n\r\n0\r\n\r\n",
    "a size of two digits": b"11\r\n0\r\n45678901234567\r\n0\r\n\r\n",
    "an extension of digits": b"5;1\r\nhello\r\n0\r\n\r\n",
    "extensions": b'3;a=1;b="0"\r\nabc\r\n0;a\r\n\r\n',
    "a size of many digits": b"0" * 40 + b"1\r\nx\r\n" + b"0" * 40 + b"\r\n\r\n",
}
BEHIND = b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n"


def taken(end_in: Callable[[bytes], int], pieces: list[bytes]) -> int:
    """Give the pieces, up to the one that is not taken in full; return how many bytes were taken."""
    count = 0
    for piece in pieces:
        end = end_in(piece)
        count += end
        if end < len(piece):
            break
    return count


def cuts(data: bytes) -> list[list[bytes]]:
    """Return the bytes whole, each by itself, and cut at every place."""
    single = [data[at : at + 1] for at in range(len(data))]
    return [[data], single, *([data[:at], data[at:]] for at in range(1, len(data)))]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_ends_at_its_end(body: bytes) -> None:
    """What comes behind it is none of it, and no trailer."""
    for pieces in cuts(body + BEHIND):
        framing = Framing()
        assert (len(body), False) == (taken(framing.end_in, pieces), framing.has_trailer)
        # Asked again, it takes no more.
        assert 0 == framing.end_in(BEHIND)


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_ends_before_its_first_trailer(body: bytes) -> None:
    """Whatever the first byte is that no line begins with."""
    for trailer in (b"X: y\r\n\r\n", b"0: y\r\n\r\n", b" \r\n", b"\n", b"\0"):
        for pieces in cuts(body[:-2] + trailer):
            framing = Framing()
            assert (len(body) - 2, True) == (taken(framing.end_in, pieces), framing.has_trailer)


def test_a_size_is_no_larger_than_the_parser_takes() -> None:
    """However many digits come, they take no memory."""
    framing = Framing()
    for _ in range(20):
        assert 1000 == framing.end_in(b"f" * 1000)
    assert framing._size == 2**64


def test_empty_lines_before_a_head_belong_to_none() -> None:
    """Behind its first byte they do."""
    head = b"GET / HTTP/1.1\r\n\r\n"
    for blanks in (b"\r\n", b"\n\r\r\n", b"\r"):
        for pieces in cuts(blanks + head + blanks):
            ends, blank, taken = HeadEnds(), 0, 0
            for piece in pieces:
                rest = piece
                while rest:
                    count = ends.blanks_in(rest)
                    end = count + ends.end_in(rest[count:])
                    blank, taken = blank + count, taken + end - count
                    rest = rest[end:]
            assert (2 * len(blanks), len(head)) == (blank, taken)
            assert (len(blanks), False) == (ends.blank_bytes, ends.is_in_head)


def test_a_head_ends_at_its_first_empty_line() -> None:
    """A line that ends otherwise does not end it."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\nX: \r\r\n\n\r\r\n\r\n"
    for pieces in cuts(head + head):
        ends, at, found = HeadEnds(), 0, []
        for piece in pieces:
            rest = piece
            while rest:
                count = ends.end_in(rest)
                at += count
                rest = rest[count:]
                if not ends._last:
                    found.append(at)
        assert [len(head), 2 * len(head)] == found
