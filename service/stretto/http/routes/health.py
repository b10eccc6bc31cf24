"""Routes for operators: liveness, readiness, metrics."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from stretto.errors import DatabaseUnavailable, Overloaded
from stretto.http.problems import drop_frames
from stretto.http.service import INSTANCE, SERVICE, json_response
from stretto.store_errors import Unreachable
from stretto.telemetry.logs import logger

# The route needs no token, and the cause may name roles and tables: it is for the log alone.
DATABASE_UNREADY: Final = (
    "The database does not answer, is read-only, has no connection left, or lacks a table or a"
    " right; `cause` of request.database_unavailable in the log says which."
)
# Load balancers wait for a check for some two seconds, and take an instance for hung that says nothing.
PING_SECONDS: Final = 1.5
KEYS_UNKNOWN: Final = (
    "The token issuer's keys were not fetched yet; `cause` of issuer.keys_not_fetched in the log"
    " says why."
)


async def livez(_: web.Request) -> web.Response:
    """`GET /livez`: 200 as long as the event loop runs."""
    return json_response({"status": "alive"})


async def readyz(request: web.Request) -> web.Response:
    """`GET /readyz`: 503 if the process stops, knows no key, or nothing can be read or written.

    An issuer that goes away changes nothing while its keys are known: another instance would have
    none.

    An actor that no request waits for, such as the relay, is named and changes nothing: another
    instance would not mend it (ADR 0023).
    """
    service = request.app[SERVICE]
    if service.draining.is_set() or service.creator.is_stopping:
        raise Overloaded.while_stopping()
    if not service.authenticator.has_keys():
        raise Overloaded(KEYS_UNKNOWN, retry_after_seconds=1)
    # Before the database is asked: the reader that asks it may be down.
    if down := service.runner.down:
        raise Overloaded(f"Not running: {', '.join(down)}.", retry_after_seconds=1)
    try:
        async with asyncio.timeout(PING_SECONDS):
            await service.reads.ping()
    except (Unreachable, TimeoutError) as error:
        cause = str(error) or "no answer to a health check yet"
        logger.warning("request.database_unavailable", cause=cause)
        drop_frames(error)
        raise DatabaseUnavailable(DATABASE_UNREADY, retry_after_seconds=1) from None
    idle = sorted(name for name, running in service.runner.up.items() if not running)
    return json_response({"status": "ready", **({"not_running": idle} if idle else {})})


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`: of this instance, in Prometheus' text format.

    It takes milliseconds to write, and needs no token: all that ask meanwhile get the next one.
    """
    service = request.app[SERVICE]
    body = await service.exposition.get(request.app.get(INSTANCE, service.own_exposition))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
