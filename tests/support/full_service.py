"""A service whose mailbox is full of one owner's creations."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest.mock import patch

from stretto.assembly.application import create_app
from stretto.assembly.settings import ComponentSettings
from stretto.http.front.serving import serving
from stretto.http.service import SERVICE
from stretto.http.settings import StreamSettings
from stretto.http.tokens.settings import TokenSettings
from stretto.postgres import stalls, writes
from support.api_client import SECRET, Api, connected_api, token_of
from support.database import first_row, writes_held_up
from support.raw_client import RawClients, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aiohttp import web

    from support.database import Connection

DEADLINE_SECONDS = 60
QUEUED_MAX = 4
# The longest that a request may ask for: a browser on a busy machine takes its time.
WAIT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class FullService:
    """A service whose mailbox is full, until `released`."""

    api: Api
    raw: RawClients
    app: web.Application
    token: str
    """Of the one owner whose creations fill the mailbox; verified before."""
    waiting: list[asyncio.Task[int]]
    """The statuses of those who have found room."""
    release: Callable[[], Awaitable[None]]
    """Lets the writer go on."""


async def waiting_create(api: Api, key: str, user: str = "alice") -> int:
    """Create, and return the status."""
    return (await api.create(key, user=user, wait=WAIT_SECONDS)).status


@asynccontextmanager
async def full_service(
    database_url: str, connection: Connection, streams: StreamSettings | None = None
) -> AsyncIterator[FullService]:
    """Serve with one writer that is held up, and a mailbox that is full."""
    settings = ComponentSettings(writers=1, batch_max=1, mailbox_max=QUEUED_MAX)
    app = create_app(
        dsn=database_url,
        tokens=TokenSettings(jwt_secret=SECRET),
        settings=settings,
        streams=streams or StreamSettings(),
    )
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        serving(app, host="127.0.0.1", port=0) as port,
        connected_api(f"http://127.0.0.1:{port}") as api,
        raw_clients(f"http://127.0.0.1:{port}") as raw,
    ):
        assert (await api.create("known")).status == 201
        token = token_of("alice")
        headers = {"Authorization": f"Bearer {token}"}
        assert (await api.get("/v1/groups", headers=headers)).status == 200
        # However long a test takes, the clients that were asked to retry are not back yet.
        app[SERVICE].shedder._clock_seconds = lambda: 0.0
        # Nor is the write that is held up cut off, which would make room, or ended once it goes on.
        with (
            patch.object(writes, "WRITE_SECONDS", DEADLINE_SECONDS),
            patch.multiple(
                stalls, STALL_SECONDS=DEADLINE_SECONDS, PATIENCE_SECONDS=DEADLINE_SECONDS
            ),
        ):
            stack = AsyncExitStack()
            await stack.enter_async_context(writes_held_up(connection))
            waiting = [asyncio.create_task(waiting_create(api, "w"))]
            await first_row(connection, "SELECT 1 FROM attempt WHERE status = 'pending'")
            waiting += [
                asyncio.create_task(waiting_create(api, f"w{number}"))
                for number in range(QUEUED_MAX)
            ]
            await until(lambda: app[SERVICE].creator.flights > QUEUED_MAX)
            yield FullService(api, raw, app, token, waiting, stack.aclose)
            await stack.aclose()
            assert [201] * (1 + QUEUED_MAX) == await asyncio.gather(*waiting)
            assert (0, {}) == (app[SERVICE].shedder._coming, app[SERVICE].shedder._coming_of)
