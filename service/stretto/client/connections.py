"""A request over the caller's session, and whether that has a connection left for it.

Its connector allows so many, aiohttp's 100.

A request that gets none waits unseen in the connector, and nothing of it reaches the service. A session
of events holds a connection for as long as it lasts, so waiting for one may never end.
"""

from __future__ import annotations

from asyncio import timeout
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from stretto.client.replies import TryAgainError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp


class NoConnectionError(TryAgainError):
    """Nothing was sent: all connections that the session's connector allows are in use."""


@asynccontextmanager
async def replying(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    head_seconds: float | None,
    **options: Any,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """Send a request as `session.request` does; raise `TimeoutError` if no reply begins in time.

    The wait for a connection is a part of that time. aiohttp itself measures a silence only once it has
    handed the whole body over, which a connection that is lost never takes.
    """
    async with timeout(head_seconds) as scope, session.request(method, url, **options) as response:
        scope.reschedule(None)
        yield response


def shortage(session: aiohttp.ClientSession, url: str) -> str:
    """Return in words which limit of the session's connector is reached for this URL; "" if none is.

    Ask at once after a request has failed: one that had a connection has then returned it.
    """
    connector = session.connector
    if connector is None:
        return ""
    # aiohttp offers no other way: a wait for a connection ends in the same error as one for a host.
    if 0 < connector.limit <= len(connector._acquired):  # noqa: SLF001
        return _in_words("limit", connector.limit)
    host = session._build_url(url).raw_host  # noqa: SLF001 it may be relative to the session's own
    in_use = (
        len(connections)
        for key, connections in connector._acquired_per_host.items()  # noqa: SLF001
        if key.host == host
    )
    if 0 < connector.limit_per_host <= max(in_use, default=0):
        return _in_words("limit_per_host", connector.limit_per_host)
    return ""


def _in_words(name: str, limit: int) -> str:
    return (
        f"all connections that the session's connector allows are in use ({name}={limit}), one by each "
        "events() and by each request under way: give the session an aiohttp.TCPConnector with a higher "
        f"{name}, or events() a session of its own"
    )
