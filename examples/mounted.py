"""stretto mounted on an aiohttp application, with the application's own connection pool.

The database must have the tables (`stretto migrate`). Give its URL, as an argument or in
STRETTO_DATABASE_URL, and a port if 8080 is taken:

    python examples/mounted.py postgresql://chat:secret@localhost/chat 8080
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Final

import asyncpg
from aiohttp import web

import stretto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# The token issuer signs with it; a real one comes from the host's configuration.
SECRET: Final = os.environ.get("TOKEN_SECRET", "a secret that only this example uses")
# Each writer keeps one connection; the others serve stretto's short reads and the host.
WRITERS: Final = 2
CONNECTIONS_MAX: Final = WRITERS + 8

POOL: Final = web.AppKey("POOL", asyncpg.Pool)


def make_app(dsn: str) -> web.Application:
    """Return the host: a route of its own, and stretto's whole contract below /chat."""
    app = web.Application()

    async def open_pool(app: web.Application) -> AsyncIterator[None]:
        # stretto's tables first, then the host's.
        async with asyncpg.create_pool(
            dsn,
            min_size=WRITERS,
            max_size=CONNECTIONS_MAX,
            server_settings={"search_path": "stretto,public"},
        ) as pool:
            app[POOL] = pool
            yield
        # Closing waits for every connection. stretto has released its own by now: it stops in the
        # application's shutdown, before every clean-up and before handlers of `on_shutdown`.

    app.cleanup_ctx.append(open_pool)
    app.add_routes([web.get("/teams", count_teams)])
    stretto.setup(
        app,
        "/chat",
        # Called when the application starts: the pool does not exist earlier.
        pool=lambda: app[POOL],
        tokens=stretto.TokenSettings(jwt_secret=SECRET),
        settings=stretto.ComponentSettings(writers=WRITERS),
    )
    return app


async def count_teams(request: web.Request) -> web.Response:
    """`GET /teams`: a route of the host that reads stretto's tables."""
    teams = await request.app[POOL].fetchval("SELECT count(*) FROM chat_group")
    return web.json_response({"teams": teams})


def main(dsn: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    web.run_app(
        make_app(dsn),
        host="127.0.0.1",
        port=port,
        # If a client hangs up, its handler ends; the creation goes on.
        handler_cancellation=True,
    )


if __name__ == "__main__":
    main(
        sys.argv[1] if len(sys.argv) > 1 else os.environ["STRETTO_DATABASE_URL"],
        int(sys.argv[2]) if len(sys.argv) > 2 else 8080,
    )
