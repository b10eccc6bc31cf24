"""A client's frames are few, whatever they are."""

from __future__ import annotations

import pytest

from stretto.events.close_codes import CloseCode
from stretto.http.few_frames import FRAME_BYTES_MAX, FRAME_SECONDS, FewFrames


class Recorder:
    """A reader that keeps what it gets."""

    def __init__(self) -> None:
        self.data = b""
        self.is_over = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        self.is_over = True


def masked(content: bytes, first: int = 0x89) -> bytes:
    """Return a frame with a mask of zeros, so that its content is what it looks like."""
    size = len(content)
    length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return bytes([first]) + length + bytes(4) + content


# The largest frame of all that may be sent, and its beginning.
LARGE = masked(b"x" * (FRAME_BYTES_MAX - 8))


def test_what_is_too_much_is_dropped_unread() -> None:
    """From the first byte of it on, also when as much might come again."""
    now, reader = 0.0, Recorder()
    ends: list[CloseCode] = []
    frames = FewFrames(reader, ends.append, lambda: now)
    frames.feed_data(LARGE)
    assert (FRAME_BYTES_MAX, []) == (len(reader.data), ends)
    frames.feed_data(masked(b"") * 10_000)
    now += 2 * FRAME_SECONDS
    frames.feed_data(masked(b""))
    assert (LARGE, [CloseCode.TOO_MANY_FRAMES]) == (reader.data, ends)
    frames.feed_eof()
    assert reader.is_over


def test_as_much_may_come_again_after_a_while() -> None:
    """Not before: the time counts from the first byte of the last while."""
    now, reader = 0.0, Recorder()
    ends: list[CloseCode] = []
    frames = FewFrames(reader, ends.append, lambda: now)
    for _ in range(10):
        now += FRAME_SECONDS
        frames.feed_data(LARGE)
    assert (10 * FRAME_BYTES_MAX, []) == (len(reader.data), ends)
    now += FRAME_SECONDS - 1
    frames.feed_data(masked(b""))
    assert [CloseCode.TOO_MANY_FRAMES] == ends


GOOD = masked(b"") + masked(b"x" * 125) + masked(b"\x89\0" * 70) + masked(b"hi", 0x81)


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("bad", [b"\x89\0", b"\x81\x02hi", b"\x88\x02\x03\xe8", b"\x81\x7e\x01\0"])
def test_a_frame_without_a_mask_is_not_read(bad: bytes, piece_bytes: int) -> None:
    """However the bytes are cut; all before it is, and nothing behind it (RFC 6455, 5.1)."""
    reader = Recorder()
    ends: list[CloseCode] = []
    frames = FewFrames(reader, ends.append, lambda: 0.0)
    data = GOOD + bad + GOOD
    for start in range(0, len(data), piece_bytes):
        frames.feed_data(data[start : start + piece_bytes])
    assert [CloseCode.BAD_FRAME] == ends
    # Of the bad one no more than its first byte, which says nothing yet.
    assert reader.data in (GOOD, GOOD + bad[:1])


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 1000])
def test_frames_with_masks_are_read(piece_bytes: int) -> None:
    """The twin, with bytes in their content that look like heads without a mask."""
    reader = Recorder()
    ends: list[CloseCode] = []
    frames = FewFrames(reader, ends.append, lambda: 0.0)
    data = (GOOD + masked(b"\x89\0" * 60)) * 3
    for start in range(0, len(data), piece_bytes):
        frames.feed_data(data[start : start + piece_bytes])
    assert (data, []) == (reader.data, ends)
