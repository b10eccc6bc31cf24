"""A client's frames are few, whatever they are."""

from __future__ import annotations

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


def test_what_is_too_much_is_dropped_unread() -> None:
    """From the first byte of it on, also when as much might come again."""
    now, floods, reader = 0.0, 0, Recorder()

    def flood() -> None:
        nonlocal floods
        floods += 1

    frames = FewFrames(reader, flood, lambda: now)
    frames.feed_data(b"x" * FRAME_BYTES_MAX)
    assert (FRAME_BYTES_MAX, 0) == (len(reader.data), floods)
    frames.feed_data(b"y" * 100_000)
    now += 2 * FRAME_SECONDS
    frames.feed_data(b"y")
    assert (b"x" * FRAME_BYTES_MAX, 1) == (reader.data, floods)
    frames.feed_eof()
    assert reader.is_over


def test_as_much_may_come_again_after_a_while() -> None:
    """Not before: the time counts from the first byte of the last while."""
    now, floods, reader = 0.0, 0, Recorder()

    def flood() -> None:
        nonlocal floods
        floods += 1

    frames = FewFrames(reader, flood, lambda: now)
    for _ in range(10):
        now += FRAME_SECONDS
        frames.feed_data(b"x" * FRAME_BYTES_MAX)
    assert (10 * FRAME_BYTES_MAX, 0) == (len(reader.data), floods)
    now += FRAME_SECONDS - 1
    frames.feed_data(b"x")
    assert floods == 1
