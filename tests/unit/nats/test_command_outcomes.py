"""A dead letter has the headers that the NATS client has read, by whatever names."""

from __future__ import annotations

from typing import Any

import orjson
from nats.aio.msg import Msg
from nats.js.api import Header

from stretto.errors import RequestInvalid
from stretto.nats.command_outcomes import dead_letter
from stretto.nats.deployment import Deployment


class Recorder:
    """Stands for a link and for its JetStream."""

    def __init__(self) -> None:
        self.jetstream = self
        self.letters: list[bytes] = []

    def may_send(self, *_: object) -> bool:
        return True

    async def publish(self, _: str, letter: bytes, **__: object) -> None:
        self.letters.append(letter)


async def test_the_clients_own_name_of_a_header_is_one_like_any_other() -> None:
    """It has one for what follows a status in the first line, which old servers pass on."""
    headers: Any = {Header.STATUS.value: "500", Header.DESCRIPTION: "x"}
    client: Any = None
    message = Msg(client, "commands", "$JS.ACK.stream.consumer.1.7.7.1.0", b"{}", headers)
    link: Any = Recorder()
    await dead_letter(link, Deployment("stretto", "0a1b2c3d"), message, RequestInvalid([]))
    (letter,) = map(orjson.loads, link.letters)
    assert {"Status": "500", "Description": "x"} == letter["command"]["headers"]
