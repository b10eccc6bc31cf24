"""Requests to a consumer that the server ends at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from stretto.nats import pull as pull_module
from stretto.nats.pull import CONFLICT_SECONDS, Pull

if TYPE_CHECKING:
    from stretto.nats.connection import Link


class Server:
    """Stands for the NATS client, and answers each request with a status."""

    def __init__(self, status: str) -> None:
        self.status = status
        self.requests = 0

    def new_inbox(self) -> str:
        return "inbox"

    async def subscribe(self, _: str) -> Any:
        return SimpleNamespace(pending_msgs=0, next_msg=self._answer, unsubscribe=self._end)

    async def publish(self, *_: object, **__: object) -> None:
        self.requests += 1

    async def _answer(self, _: float) -> Msg:
        headers = {"Status": self.status, "Description": "Exceeded MaxWaiting"}
        return Msg(cast("Any", None), "inbox", "", b"", headers)

    async def _end(self) -> None:
        pass


@pytest.mark.parametrize(
    ("expected", "status"), [([CONFLICT_SECONDS], "409"), ([], "404"), ([], "408")]
)
async def test_a_request_that_is_ended_at_once_is_followed_by_a_pause(
    expected: list[float], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them wait than the consumer allows: the next one would be ended as well, and again."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(pull_module, "asyncio", SimpleNamespace(sleep=sleep))
    server = Server(status)
    async with Pull(cast("Link", SimpleNamespace(client=server)), "s", "c", 5.0) as pull:
        assert await pull.next() is None
    assert (expected, 1) == (slept, server.requests)


async def test_any_other_status_is_an_error() -> None:
    """The consumer is gone."""
    server = Server("503")
    async with Pull(cast("Link", SimpleNamespace(client=server)), "s", "c", 5.0) as pull:
        with pytest.raises(NatsError, match="JetStream answers 503 Exceeded"):
            await pull.next()
