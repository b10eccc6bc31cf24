"""What health checks are answered, by the routes and on the fast path alike.

One question to the database is for all who ask before it begins: any client may ask, and needs no token.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from stretto.errors import DatabaseUnavailable, Overloaded
from stretto.http.problems import drop_frames, problem_response
from stretto.http.service import json_response
from stretto.store_errors import Unreachable
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from stretto.http.service import Service

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


def alive() -> web.Response:
    """Return the answer to `GET /livez`."""
    return json_response({"status": "alive"})


def refusal(service: Service) -> web.Response | None:
    """Return the 503 of a process that is not ready, whatever its database is; None if it may be."""
    if service.draining.is_set() or service.creator.is_stopping:
        return problem_response(Overloaded.while_stopping())
    if not service.authenticator.has_keys():
        return problem_response(Overloaded(KEYS_UNKNOWN, retry_after_seconds=1))
    # Before the database is asked: the reader that asks it may be down.
    if down := service.runner.down:
        detail = f"Not running: {', '.join(down)}."
        return problem_response(Overloaded(detail, retry_after_seconds=1))
    return None


def asking(service: Service) -> Callable[[], Awaitable[bool]]:
    """Return what asks the database, for `Service.database_asked`.

    Its time runs from now, also while it waits for another question's answer.
    """
    deadline = asyncio.get_running_loop().time() + PING_SECONDS
    return partial(_ask, service, deadline)


async def _ask(service: Service, deadline: float) -> bool:
    try:
        async with asyncio.timeout_at(deadline):
            await service.reads.ping()
    except (Unreachable, TimeoutError) as error:
        cause = str(error) or "no answer to a health check yet"
        logger.warning("request.database_unavailable", cause=cause)
        drop_frames(error)
        return False
    return True


def answer(service: Service, *, does_database_answer: bool) -> web.Response:
    """Return the answer to `GET /readyz`, once the database was asked."""
    if not does_database_answer:
        return problem_response(DatabaseUnavailable(DATABASE_UNREADY, retry_after_seconds=1))
    idle = sorted(name for name, running in service.runner.up.items() if not running)
    return json_response({"status": "ready", **({"not_running": idle} if idle else {})})
