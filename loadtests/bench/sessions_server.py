"""The service with a route to its hub: delivers events of any number and size at once."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from uuid import uuid4

import orjson
import uvloop
from aiohttp import web
from loadtests.bench.machinery import SECRET

from stretto.assembly.application import create_app
from stretto.assembly.settings import ComponentSettings
from stretto.events.log import CommittedEvent, LoggedEvent
from stretto.events.place import History
from stretto.events.settings import HubSettings
from stretto.http.front.serving import serving
from stretto.http.service import SERVICE
from stretto.http.settings import StreamSettings
from stretto.http.tokens.settings import TokenSettings

# Later than all that the sessions have had.
LATEST = History(2**31 - 1, "00000000")


async def deliver(request: web.Request) -> web.Response:
    """Deliver events to the first users; answer with the start time, on the monotonic clock."""
    query = request.query
    users = tuple(f"user-{number}" for number in range(int(query["users"])))
    envelope = orjson.dumps({"fill": "x" * int(query.get("bytes", 400))})
    began = time.monotonic()
    for _ in range(int(query.get("events", 1))):
        event = LoggedEvent(CommittedEvent(uuid4(), users, envelope), LATEST, 1)
        request.app[SERVICE].hub.deliver(event, "2.2147483647-00000000")
        await asyncio.sleep(0)
    return web.json_response({"began": began, "sessions": len(request.app[SERVICE].hub)})


async def main() -> None:
    """Serve on a free port until ended."""
    app = create_app(
        dsn=os.environ["STRETTO_DATABASE_URL"],
        tokens=TokenSettings(jwt_secret=SECRET),
        settings=ComponentSettings(hub=HubSettings()),
        # The listeners answer no pings, so none may be sent during a measurement.
        streams=StreamSettings(heartbeat_seconds=3600),
    )
    app.router.add_post("/deliver", deliver)
    async with serving(app, host="127.0.0.1", port=0) as port:
        sys.stderr.write(orjson.dumps({"event": "sessions.started", "port": port}).decode() + "\n")
        sys.stderr.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
