"""The floor: the same requests to a bare aiohttp handler without any work behind it."""

from __future__ import annotations

import asyncio
import sys

import orjson
import uvloop
from aiohttp import web

ANSWER = {
    "group_id": "2d8de0a2-59d5-5a04-87e0-a5be649c7114",
    "conversation_id": "01a1fc83-fd4c-771a-a6fa-15ce8d4e3372",
}


async def create(request: web.Request) -> web.Response:
    """Parse the body and answer."""
    orjson.loads(await request.read())
    return web.Response(status=201, body=orjson.dumps(ANSWER), content_type="application/json")


async def main() -> None:
    """Serve on a free port until ended."""
    app = web.Application()
    app.router.add_post("/v1/groups", create)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ready = {"event": "floor.started", "port": runner.addresses[0][1]}
    sys.stderr.write(orjson.dumps(ready).decode() + "\n")
    sys.stderr.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
