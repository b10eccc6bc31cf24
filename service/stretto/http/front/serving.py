"""Listens for clients and serves them an application, until the context ends."""

from __future__ import annotations

import errno
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from stretto.http.front.accepting import accepting, listening_sockets
from stretto.http.front.runner import ContractRunner
from stretto.http.settings import ConnectionLimits
from stretto.start_errors import ListenError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

# Longer than a load balancer's own time-out: the service must not close a connection on which the
# load balancer is just sending a request.
KEEP_ALIVE_SECONDS: Final = 75.0
# When the flights have ended, only answers are left to be sent.
HANDLERS_STOP_SECONDS: Final = 1.0


@asynccontextmanager
async def serving(
    app: web.Application,
    *,
    host: str,
    port: int,
    share_port: bool = False,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[int]:
    """Serve the application; yields the port. Raises `ListenError`."""
    runner = ContractRunner(
        app,
        limits or ConnectionLimits(),
        # A client that hangs up frees its waiter; the flight goes on without it.
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        shutdown_timeout=HANDLERS_STOP_SECONDS,
        access_log=None,
    )
    try:
        await runner.setup()
        try:
            sockets = await listening_sockets(host, port, share_port=share_port)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        assert runner.server is not None
        async with accepting(sockets, runner.server):
            yield sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


def cannot_listen(host: str, port: int, error: OSError) -> ListenError:
    """Return the error that says why the address cannot be listened on."""
    remedy = "choose another port (--port, STRETTO_PORT)"
    if error.errno == errno.EADDRINUSE:
        # Workers whose supervisor was killed answer what they have, and end.
        remedy += ", or try again in half a minute, should it be an earlier instance that ends"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        remedy = "set STRETTO_HOST to an address of this machine"
    return ListenError(f"cannot listen on {host}:{port} ({error.strerror}); {remedy}")
