"""What is shed at the door, and what is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser

from stretto.http.shedding import ANSWERS_PER_TURN, LoadShedder, SheddingParser, is_plain_creation

BODY = b'{"name": "Team"}'
HEAD = b"POST /v1/groups HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n" % len(BODY)
PLAIN = HEAD + b"\r\n" + BODY
OTHERS = {
    "other method": b"GET /v1/groups HTTP/1.1\r\nHost: x\r\n\r\n",
    "other path": PLAIN.replace(b"/v1/groups", b"/livez"),
    "other version": PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
    "last of its connection": HEAD + b"Connection: close\r\n\r\n" + BODY,
    "body still to come": HEAD + b"\r\n{",
    "two at once": PLAIN * 2,
}


def parser(shed: Any) -> SheddingParser:
    """A parser as aiohttp makes one."""
    loop = asyncio.get_running_loop()
    real = HttpRequestParser(
        BaseProtocol(loop), loop, 2**16, payload_exception=ValueError, max_msg_queue_size=16
    )
    return SheddingParser(real, lambda: True, shed)


async def test_a_plain_creation_is_kept_back_once_it_was_answered() -> None:
    """However many come, one after the other."""
    seen = []

    def shed(message: Any, body: Any) -> bool:
        seen.append(message.path)
        return is_plain_creation(message, body)

    reader = parser(shed)
    for _ in range(100):
        assert ((), False, b"") == reader.feed_data(PLAIN)
    assert ["/v1/groups"] * 100 == seen


async def test_nothing_is_asked_while_there_is_room_for_all() -> None:
    """What every request comes by must cost nothing then."""
    may_be_full = [False, True]
    reader = parser(is_plain_creation)
    reader._may_be_full = lambda: may_be_full.pop(0)
    assert [1, 0] == [len(reader.feed_data(PLAIN)[0]) for _ in range(2)]
    shedder = LoadShedder(lambda: 2, 5, lambda: None)
    assert [True, False] == [shedder.has_room_for(clients) for clients in (2, 3)]


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
async def test_anything_else_goes_its_way(data: bytes) -> None:
    """So does what is not alone: its answer must not overtake another's."""
    messages, _, _ = parser(is_plain_creation).feed_data(data)
    assert len(messages) == data.count(b"HTTP/1.")


async def test_what_is_on_its_way_to_the_mailbox_takes_room_in_it() -> None:
    """A loop reads all that has arrived before it works for any of it."""
    queued = [0]
    shedder = LoadShedder(lambda: queued[0], 3, lambda: None)
    assert [True] * 3 + [False] * 2 == [shedder.admit() for _ in range(5)]
    queued[0] = 1
    shedder.arrived()
    assert not shedder.admit()
    # One that has arrived, but did not end up in the mailbox.
    shedder.arrived()
    assert shedder.admit()


async def test_everybody_who_is_shed_is_told_in_turns_that_leave_room_for_others() -> None:
    """However many they are, the loop goes round in between."""
    told: list[int] = []
    counted: list[int] = []

    class Client:
        def tell(self, answer: bytes) -> None:
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            told.append(1)

    shedder = LoadShedder(lambda: 0, 0, lambda: counted.append(1))
    for _ in range(2 * ANSWERS_PER_TURN + 1):
        shedder.shed(Client())
    turns = []
    while len(told) < len(counted):
        await asyncio.sleep(0)
        turns.append(len(told))
    assert [ANSWERS_PER_TURN, 2 * ANSWERS_PER_TURN, 2 * ANSWERS_PER_TURN + 1] == turns[-3:]
