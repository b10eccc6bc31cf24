"""A webhook's endpoint for tests: records what comes, and answers as a test says."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence


class Receiver:
    """Answers 204, but for the answers that it is given, one each."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[Mapping[str, str], bytes]] = []
        self.answers: deque[dict[str, Any]] = deque()
        self.has_got = asyncio.Condition()
        self.is_held = False
        """Whether answers are kept back, until the client gives up."""
        self.pieces: Sequence[bytes] = ()
        """Of the body of each answer, if there are any: each is sent by itself."""
        self.keeps_open = False
        """Whether an answer has no end."""
        self.clients: set[object] = set()
        """The connections by which requests have come."""

    @property
    def ids(self) -> list[UUID]:
        """The events that have come, in their order."""
        return [UUID(headers["webhook-id"]) for headers, _ in self.requests]

    async def until(self, count: int) -> None:
        """Wait until so many requests have come."""
        async with self.has_got:
            await self.has_got.wait_for(lambda: len(self.requests) >= count)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Take a request down."""
        body = await request.read()
        assert request.transport is not None
        self.clients.add(request.transport.get_extra_info("peername"))
        async with self.has_got:
            self.requests.append((dict(request.headers), body))
            self.has_got.notify_all()
        if self.is_held:
            await asyncio.Event().wait()
        if self.answers:
            return web.Response(**self.answers.popleft())
        if self.pieces or self.keeps_open:
            response = web.StreamResponse()
            await response.prepare(request)
            for piece in self.pieces:
                await response.write(piece)
                # Until it has gone, and may have been read.
                await asyncio.sleep(0.01)
            if self.keeps_open:
                await response.write(b"...")
                await asyncio.Event().wait()
            return response
        return web.Response(status=204)


# Of a webhook's URL that no test calls.
URL_DIGEST = hashlib.sha256(b"https://example.com/events").digest()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """Run a receiver on the loopback, at any path."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook?token=hidden"
        yield receiver
    finally:
        await runner.cleanup()
