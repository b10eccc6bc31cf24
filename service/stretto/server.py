"""Runs the service as a process: one event loop, or several processes that share a port."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
import sys
import uuid
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stretto.assembly import ComponentSettings, create_app, serving
from stretto.config import environment_of
from stretto.domain import UserId
from stretto.errors import ListenError
from stretto.http.event_streams import StreamSettings
from stretto.http.front.limits import ConnectionLimits
from stretto.http.service import SERVICE
from stretto.http.tokens.authenticator import make_token
from stretto.provision import bus_place, database_connection, database_place, token_settings
from stretto.runtime.memory import collecting
from stretto.runtime.stop import Stop
from stretto.supervisor import Supervisor
from stretto.telemetry.logs import flush_log, logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stretto.config import Settings
    from stretto.http.tokens.authenticator import TokenSettings

# Database, log, bus, and whatever else is open beside the clients' connections.
FILES_OWN: Final = 200
# The others are for what comes and goes: health checks, creations, reads.
SESSIONS_SHARE: Final = 0.9
WELCOME_TOKEN_SECONDS: Final = 24 * 3600


async def serve(settings: Settings, notify: Callable[[str], None], *, share_port: bool) -> None:
    """Serve until SIGTERM, SIGHUP or SIGINT; raises what keeps the service from starting.

    A process that shares its port is a supervisor's worker.
    """
    stop = _stop_on_signals(settings.drain_seconds, is_worker=share_port)
    async with AsyncExitStack() as stack:
        if share_port:
            stack.enter_context(_stop_without_supervisor(stop, sys.stdin.fileno()))
        place = await stack.enter_async_context(database_place(settings, notify))
        nats_url = await stack.enter_async_context(bus_place(settings))
        settings = settings.model_copy(update={"nats_url": nats_url})
        tokens = token_settings(settings)
        component = ComponentSettings.of(settings)
        # Wait for the database here, where it is known that nobody is served yet.
        async with database_connection(place.dsn, settings.db_schema):
            pass
        if settings.workers > 1:
            await _supervise(settings, place.dsn, tokens, notify, stop)
            return
        connections_max = _connections_max(settings.connections_max)
        sessions_max = _sessions_max(settings.sessions_max, connections_max)
        app = create_app(
            dsn=place.dsn,
            tokens=tokens,
            settings=replace(component, hub=replace(component.hub, sessions_max=sessions_max)),
            streams=StreamSettings.of(settings),
        )
        limits = ConnectionLimits(
            connections_max=connections_max,
            read_seconds=settings.read_timeout_seconds,
        )
        async with serving(
            app, host=settings.host, port=settings.port, share_port=share_port, limits=limits
        ) as port:
            logger.info("service.started", host=settings.host, port=port)
            if settings.is_embedded:
                notify(_welcome(settings.host, port, tokens, shows_token=sys.stderr.isatty()))
            async with collecting(app[SERVICE].runner):
                await stop.asked.wait()
                app[SERVICE].draining.set()
                logger.info("service.draining", seconds=stop.drain_seconds)
                await stop.drain()
            logger.info("service.stopping")
    flush_log()
    logger.info("service.stopped")


def _connections_max(wanted: int) -> int:
    """Return for how many connections there are file descriptors, after asking for enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + FILES_OWN
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    if hard != resource.RLIM_INFINITY and hard < files:
        files = hard
        logger.warning("server.few_files", files=files, wanted=wanted + FILES_OWN)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(1, files - FILES_OWN)


def _sessions_max(wanted: int, connections_max: int) -> int:
    """Return for how many sessions there is room beside other requests.

    A session is never closed for a newcomer: if sessions had all connections, every health check
    and every creation would be closed unanswered. One session too many is told so.
    """
    return max(1, min(wanted, int(connections_max * SESSIONS_SHARE)))


def _stop_on_signals(drain_seconds: float, *, is_worker: bool) -> Stop:
    """Return what SIGTERM and SIGINT ask for; one that asks for more than to stop ends this task.

    A worker has its supervisor for that. It gets a terminal's signals twice: once by itself, and
    once from the supervisor, which gets them as well.
    """
    stop = Stop(drain_seconds)
    loop = asyncio.get_running_loop()
    serving_task = asyncio.current_task()
    assert serving_task is not None

    def on_signal(number: signal.Signals) -> None:
        if not stop.take(number) and not is_worker:
            serving_task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    # A terminal that closes sends it to workers too, whose supervisor passes it on; `nohup` ignores it.
    if is_worker:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, on_signal, signal.SIGHUP)
    return stop


@contextmanager
def _stop_without_supervisor(stop: Stop, lifeline: int) -> Iterator[None]:
    """Begin the drain when the supervisor is gone: it alone holds the other end of the pipe.

    A worker that outlived its supervisor would serve for good, and no service could end it.
    """
    loop = asyncio.get_running_loop()

    def on_end() -> None:
        loop.remove_reader(lifeline)
        logger.warning("worker.orphaned")
        stop.take(signal.SIGTERM)

    # Nothing is ever written to it: that it can be read means its end.
    loop.add_reader(lifeline, on_end)
    try:
        yield
    finally:
        loop.remove_reader(lifeline)


async def _supervise(
    settings: Settings,
    dsn: str,
    tokens: TokenSettings,
    notify: Callable[[str], None],
    stop: Stop,
) -> None:
    """Keep `settings.workers` processes running on one port until stopped.

    Raises `ListenError` and `WorkersError`.
    """
    with _reserved_port(settings.host, settings.port) as port:
        environment = environment_of(
            {
                "STRETTO_WORKERS": "1",
                "STRETTO_HOST": settings.host,
                "STRETTO_PORT": str(port),
                "STRETTO_DATABASE_URL": dsn,
                "STRETTO_NATS_URL": settings.nats_url,
                "STRETTO_JWT_SECRET": tokens.secret,
            }
        )
        if settings.is_embedded:
            notify(_welcome(settings.host, port, tokens, shows_token=sys.stderr.isatty()))
        command = (sys.executable, "-m", "stretto", "serve", "--share-port")
        await Supervisor(command, environment, stop).run(settings.workers)


@contextmanager
def _reserved_port(host: str, port: int) -> Iterator[int]:
    """Hold a port that our workers alone will share, without listening on it; 0 takes any free one.

    Raises `ListenError`, also where another service's supervisor holds it.
    """
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            found = stack.enter_context(socket.socket(family, kind, protocol))
            reserved = stack.enter_context(socket.socket(family, kind, protocol))
            # Beside connections of an earlier process that are in TIME_WAIT for a minute.
            for each in (found, reserved):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Linux keeps a port beyond the end of listening where it was named at the bind.
            found.bind(address)
            reserved.bind(found.getsockname())
            if sys.platform == "linux":
                # Of sockets that do not share a port one alone can listen.
                reserved.listen()
            # From here on only a socket that shares the port can be bound to it, as the workers' do.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            found.close()
            if sys.platform == "linux":
                # It stays bound, and takes no connections itself.
                reserved.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            message = f"cannot listen on {host}:{port} ({error.strerror}); choose another port"
            raise ListenError(message) from error
        yield reserved.getsockname()[1]


def _welcome(host: str, port: int, tokens: TokenSettings, *, shows_token: bool) -> str:
    """Return a line to paste, for a service that verifies tokens with a secret it knows.

    Without a terminal the text ends in a log, where a token has no place: the line makes its own.
    """
    url = f"http://{host}:{port}"
    if not tokens.secret:
        return f"stretto listens on {url}"
    quote, source = '"', "$(stretto token alice)"
    shown = "A token of the user alice: stretto token alice"
    if shows_token:
        source = make_token(
            tokens.secret,
            UserId("alice"),
            lifetime_seconds=WELCOME_TOKEN_SECONDS,
            audience=tokens.audience,
            issuer=tokens.issuer,
        )
        quote, shown = "'", f"A token of the user alice, good for a day:\n\n  {source}"
    return f"""
stretto listens on {url} (the API: {url}/docs)

{shown}

Create a group; send it again and it is still one group:

  curl -i {url}/v1/groups \\
    -H {quote}Authorization: Bearer {source}{quote} \\
    -H 'Idempotency-Key: {uuid.uuid4()}' \\
    -H 'Content-Type: application/json' \\
    -d '{{"name": "Team", "members": ["bob", "carol"]}}'
"""
