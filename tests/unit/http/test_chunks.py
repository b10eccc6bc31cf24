"""In which parts bytes are parsed: few chunks in each, and few parts."""

from __future__ import annotations

import sys

import pytest

from stretto.http.front.chunks import CHUNKS_MAX, LARGE_PART_BYTES, PART_BYTES, in_parts

READ_BYTES = 256 * 1024
SENT = {
    "nothing": b"",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "few lines": b" " * READ_BYTES,
    "chunks of a byte": b"1\r\nx\r\n" * (READ_BYTES // 6),
    "chunks of 26 bytes": b"1a\r\n%026d\r\n" * (READ_BYTES // 32) % (*range(READ_BYTES // 32),),
    "lines at the end": b" " * READ_BYTES + b"\r\n" * 10_000,
}


@pytest.mark.parametrize("data", SENT.values(), ids=SENT)
def test_the_parts_are_all_that_came_and_have_few_chunks(data: bytes) -> None:
    """Whatever it is."""
    parts = [*in_parts(data, lambda: 0)]
    assert data == b"".join(parts)
    assert max((part.count(b"\r\n") for part in parts), default=0) <= 2 * CHUNKS_MAX


@pytest.mark.parametrize(
    ("data", "part_bytes"),
    [("few lines", LARGE_PART_BYTES), ("chunks of a byte", PART_BYTES)],
)
def test_few_lines_are_parsed_in_few_parts(data: str, part_bytes: int) -> None:
    """And many lines in more of them."""
    parts = [*in_parts(SENT[data], lambda: 0)]
    assert part_bytes == len(parts[0])
    assert len(parts) <= -(-len(SENT[data]) // part_bytes)


def test_what_holds_no_chunks_is_one_part() -> None:
    """It is asked anew before each part: what has just been parsed decides it."""
    whole = iter([0, 5000, PART_BYTES - 1, sys.maxsize])
    data = SENT["chunks of a byte"]
    parts = [*in_parts(data, lambda: next(whole))]
    assert [PART_BYTES, 5000, PART_BYTES] == [len(part) for part in parts[:-1]]
    assert data == b"".join(parts)
