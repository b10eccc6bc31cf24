"""Live events over server-sent events, resumed for as long as the service has what was missed."""

from __future__ import annotations

from asyncio import sleep
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson

from stretto.client.calls import Tries, reply_of
from stretto.client.connections import NoConnectionError
from stretto.client.replies import ClientError, foreign, refuse
from stretto.errors import Retry

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping

    from stretto.client.calls import Calls

# The service sends a sign of life every 25 s, unless its operator has chosen otherwise.
SILENCE_SECONDS: Final = 90.0
# A call that is not answered gives its connection back within 15 s. One that is not free after twice as
# long is not waited for behind such calls: others hold it that have no end, as sessions do.
CONNECTION_SECONDS_MAX: Final = 30.0
# Until the service says how long its clients wait.
RECONNECT_SECONDS: Final = 2.0
# A change of 1,000 members, whose ids have 128 characters, is a third of it.
EVENT_BYTES_MAX: Final = 2**20
_POSITION_LOST: Final = 4410
_EVENT_STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Received:
    """An event, and the position to resume from after it; without an event, the position alone."""

    position: str
    event: Mapping[str, Any] | None


@dataclass(slots=True)
class _Block:
    """The fields of one server-sent event (WHATWG HTML, 9.2.6)."""

    kind: str = "message"
    position: str | None = None
    data: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any] | None:
        """Return the data, if there is any; raises `ClientError` for what no stretto sends."""
        try:
            document = orjson.loads("\n".join(self.data)) if self.data else None
        except orjson.JSONDecodeError:
            raise foreign(HTTPStatus.OK) from None
        if not isinstance(document, dict | None):
            raise foreign(HTTPStatus.OK)
        return document


class Session:
    """Receives the events of one user, from a position on or from now on."""

    def __init__(self, calls: Calls, position: str | None, silence_seconds: float) -> None:
        self._calls = calls
        self._position = position
        self._pause_seconds = RECONNECT_SECONDS
        self._times = aiohttp.ClientTimeout(
            total=None, connect=CONNECTION_SECONDS_MAX, sock_read=silence_seconds
        )

    async def received(self) -> AsyncGenerator[Received, None]:
        """Yield events until the caller stops; connect again and resume after each end.

        Raises `ClientError` where that does not help: the history at the position is lost
        (`position_lost`), the token is refused, or what comes is no event (`http_200`);
        `TimeoutError` where the caller's own session has no connection left for it, and does not
        get one; and what the token's function raises.
        """
        while True:
            async with AsyncExitStack() as connection:
                opening = partial(self._open, connection)
                response = await Tries().until_it_answers(opening)
                # One that ends without a word is resumed as well.
                with suppress(aiohttp.ClientError, TimeoutError):
                    async for block in self._blocks(response):
                        document = block.document()
                        if block.kind == "close":
                            self._judge(document or {})
                        elif block.position is not None:
                            self._position = block.position
                            yield Received(block.position, document)
            await sleep(self._pause_seconds)

    async def _open(self, connection: AsyncExitStack) -> aiohttp.ClientResponse:
        headers = {"Accept": _EVENT_STREAM}
        if self._position is not None:
            headers["Last-Event-ID"] = self._position
        opened = self._calls.opened("GET", "events", headers=headers, params={}, times=self._times)
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(opened)
            except NoConnectionError as error:
                message = f"no connection within {self._times.connect:g} s ({error})"
                raise TimeoutError(message) from error
            stack.callback(_hang_up, response)
            if response.status != HTTPStatus.OK:
                refuse(await reply_of(response))
            # As in browsers (WHATWG HTML, 9.2.3): a page would look like a session without events.
            if response.content_type != _EVENT_STREAM:
                raise foreign(response.status)
            # From here on the session closes it.
            connection.push_async_exit(stack.pop_all())
        return response

    async def _blocks(self, response: aiohttp.ClientResponse) -> AsyncIterator[_Block]:
        """Yield the blocks that have ended; the connection may break inside the last one."""
        block = _Block()
        async for text in _lines(response):
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if not text:
                yield block
                block = _Block()
            elif name == "data":
                block.data.append(value)
            # As in browsers; others are no header field of the next connection.
            elif name == "id" and value.isprintable():
                block.position = value
            elif name == "event":
                block.kind = value
            elif name == "retry" and value.isascii() and value.isdigit():
                # The service spreads its clients with it.
                self._pause_seconds = int(value[:6]) / 1000

    @staticmethod
    def _judge(why: Mapping[str, Any]) -> None:
        """Raise `ClientError` if the service's reason to end the session will last."""
        if why.get("code") == _POSITION_LOST:
            raise ClientError("position_lost", str(why.get("reason")), Retry.NEVER)


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """End a connection whose response goes on.

    aiohttp would only end its half of TLS, and wait for the other half: until then, a proxy keeps the
    session.
    """
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    """Yield lines without their ends; raises `ClientError` for one that no stretto sends."""
    content = response.content
    try:
        # Not by iteration: a line would be bounded by how much the caller's session reads ahead.
        while line := await content.readuntil(max_size=EVENT_BYTES_MAX):
            # What is no UTF-8 is replaced, as browsers do.
            yield line.decode(errors="replace").rstrip("\r\n")
    except aiohttp.http_exceptions.HttpProcessingError:
        raise foreign(HTTPStatus.OK) from None
