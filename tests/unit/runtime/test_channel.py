"""Two ends of a socket, each of which may ask the other."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from stretto.runtime.channel import Channel
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# More than a socket's buffers hold, and than one read returns.
LARGE = bytes(range(256)) * 4096


class End(Channel):
    """Takes down what happens to it."""

    def __init__(self) -> None:
        self.questions = 0
        self.answers: list[bytes] = []
        self.ends = 0
        super().__init__(self.asked, lambda _, message: self.answers.append(message), self.ended)

    def asked(self, _: Channel) -> None:
        self.questions += 1

    def ended(self, _: Channel) -> None:
        self.ends += 1


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[End, End]]:
    """Connect two ends."""
    loop, ends = asyncio.get_running_loop(), (End(), End())
    for end, place in zip(ends, socket.socketpair(), strict=True):
        await loop.create_unix_connection(lambda end=end: end, sock=place)  # type: ignore[misc]
    try:
        yield ends
    finally:
        for end in ends:
            end.close()


async def test_each_side_may_ask_at_any_time() -> None:
    """Questions that cross are no answers, and an answer of any size comes whole."""
    async with connected() as (here, there), asyncio.timeout(20):
        asked, asked_back = here.ask(), there.ask()
        await until(lambda: here.questions and there.questions)
        there.answer(LARGE)
        here.answer(b"x")
        assert (LARGE, b"x") == (await asked, await asked_back)


async def test_one_question_is_under_way_at_a_time() -> None:
    """A side that does not answer is not sent any number of them."""
    async with connected() as (here, there), asyncio.timeout(20):
        assert here.ask() is here.ask()
        await until(lambda: there.questions)
        there.answer(b"1")
        there.answer(b"2")
        assert b"1" == await here.ask()
        await until(lambda: len(here.answers) == 2)
        again = here.ask()
        await until(lambda: there.questions == 2)
        assert not again.done()


async def test_a_ping_is_answered_without_a_callback() -> None:
    """Once for each; between questions and answers, of which it is neither."""
    async with connected() as (here, there), asyncio.timeout(20):
        asked, pinged = here.ask(), here.ping()
        assert here.ping() is pinged
        await pinged
        assert not asked.done()
        there.answer(LARGE)
        await here.ping()
        assert LARGE == await asked
        assert (1, 0, 0) == (there.questions, here.questions, len(there.answers))


async def test_messages_may_come_in_any_pieces() -> None:
    """Byte by byte, or several at once."""
    end = End()
    asked = end.ask()
    messages = [b"\xff\xff\xff\xff", b"\xff\xff\xff\xfe"]
    messages += [len(each).to_bytes(4, "big") + each for each in (b"", b"one", b"", b"two")]
    stream = b"".join(messages)
    for byte in stream:
        end.data_received(bytes([byte]))
    end.data_received(stream)
    assert (4, [b"one", b"two"] * 2) == (end.questions, end.answers)
    assert b"one" == await asked


async def test_the_end_of_one_side_is_the_end_of_the_other() -> None:
    """What was said before is heard; what was asked is cancelled. A side that closes is not called."""
    async with connected() as (here, there), asyncio.timeout(20):
        asked = here.ask()
        here.answer(b"last words")
        here.close()
        here.close()
        await until(lambda: there.ends)
        assert [b"last words"] == there.answers
        for question in (asked, here.ask(), there.ask(), here.ping(), there.ping()):
            with pytest.raises(asyncio.CancelledError):
                await question
        assert (0, 1) == (here.ends, there.ends)
        here.answer(b"never heard")
