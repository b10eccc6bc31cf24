"""Which requests are looked at, at the door."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpRequestParser

from stretto.http.door import DoorParser, is_plain_creation

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


def parser(answer: Any) -> DoorParser:
    """A parser as aiohttp makes one."""
    loop = asyncio.get_running_loop()
    real = HttpRequestParser(
        BaseProtocol(loop), loop, 2**16, payload_exception=ValueError, max_msg_queue_size=16
    )
    return DoorParser(real, answer)


async def test_a_plain_creation_is_kept_back_once_it_was_answered() -> None:
    """However many come, one after the other."""
    seen = []

    def answer(message: Any, body: Any) -> bool:
        seen.append(message.path)
        return is_plain_creation(message, body)

    reader = parser(answer)
    for _ in range(100):
        assert ((), False, b"") == reader.feed_data(PLAIN)
    assert ["/v1/groups"] * 100 == seen
    # The parser counts those that are under way, and stops between two where they are many.
    assert len(reader.feed_data(PLAIN * 2)[0]) == 2


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
async def test_anything_else_goes_its_way(data: bytes) -> None:
    """So does what is not alone: its answer must not overtake another's."""
    messages, _, _ = parser(is_plain_creation).feed_data(data)
    assert len(messages) == data.count(b"HTTP/1.")
