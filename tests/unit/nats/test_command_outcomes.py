"""A dead letter has the headers that the NATS client has read, by whatever names."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from nats.aio.msg import Msg
from nats.js.api import Header

from stretto.errors import RequestInvalid
from stretto.nats.command_outcomes import DeadLetterLost, dead_letter
from stretto.nats.connection import LimitOutdated
from support.nats_process import OURS


class Recorder:
    """Stands for a link and for its JetStream."""

    def __init__(self, bytes_max: int = 1024) -> None:
        self.jetstream = self
        self.letters: list[bytes] = []
        self.bytes_max = bytes_max

    def may_send(self, body_bytes: int, _: object) -> bool:
        return body_bytes <= self.bytes_max

    def require_known_limit(self) -> None:
        raise LimitOutdated("out of date")

    async def publish(self, _: str, letter: bytes, **__: object) -> None:
        self.letters.append(letter)


def command(headers: Any = None) -> Msg:
    """Return a command as a stream delivers it."""
    client: Any = None
    return Msg(client, "commands", "$JS.ACK.stream.consumer.1.7.7.1.0", b"{}", headers)


async def test_no_letter_is_too_large_by_a_limit_that_is_out_of_date() -> None:
    """One that is stored with less of its command needs no other limit."""
    shortened: Any = Recorder(300)
    await dead_letter(shortened, OURS, command({"x": "y" * 300}), RequestInvalid([]))
    (letter,) = map(orjson.loads, shortened.letters)
    assert {"sequence": 7} == letter["command"]
    nothing: Any = Recorder(10)
    with pytest.raises(DeadLetterLost, match="out of date"):
        await dead_letter(nothing, OURS, command(), RequestInvalid([]))


async def test_the_clients_own_name_of_a_header_is_one_like_any_other() -> None:
    """It has one for what follows a status in the first line, which old servers pass on."""
    link: Any = Recorder()
    await dead_letter(
        link,
        OURS,
        command({Header.STATUS.value: "500", Header.DESCRIPTION: "x"}),
        RequestInvalid([]),
    )
    (letter,) = map(orjson.loads, link.letters)
    assert {"Status": "500", "Description": "x"} == letter["command"]["headers"]
