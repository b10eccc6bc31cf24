"""Runs the service as a process: one event loop, or several processes that share a port."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from stretto.assembly.application import create_app
from stretto.environment import environment_of
from stretto.http.front.serving import cannot_listen, serving
from stretto.http.routes.console import offer_tokens
from stretto.http.service import INSTANCE, SERVICE
from stretto.own_secret import token_settings
from stretto.provision import bus_place, database_connection, database_place
from stretto.reports import supervised
from stretto.runtime.memory import collecting
from stretto.runtime.stop import Stop
from stretto.start_errors import EmbeddedError
from stretto.supervisor import Supervisor
from stretto.telemetry.logs import flush_log, logger
from stretto.telemetry.trace_export import exporting
from stretto.welcome import welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiohttp.web import Application

    from stretto.config import Settings
    from stretto.http.tokens.settings import TokenSettings

# Files that are open beside the clients' connections: database, log, bus.
FILES_OWN: Final = 200
# The other connections are for health checks, creations and reads.
SESSIONS_SHARE: Final = 0.9


async def serve(settings: Settings, notify: Callable[[str], None], *, share_port: bool) -> None:
    """Serve until SIGTERM, SIGHUP or SIGINT; raises what keeps the service from starting.

    Raises `EmbeddedError` once a server of its own has ended by itself, unless what needs that fails
    first. A process that shares its port is a supervisor's worker.
    """
    stop = _stop_on_signals(settings.drain_seconds, is_worker=share_port)
    lost: list[str] = []

    def end(message: str) -> None:
        """Stop without a drain: what an embedded server has taken along cannot be served."""
        # A stop of a whole group of processes, as systemd's, ends that server too.
        if not stop.asked.is_set():
            lost.append(message)
        stop.take(signal.SIGINT)

    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        supervision = None
        if share_port:
            supervision = await enter(supervised(stop, sys.stdin.fileno()))
        place = await enter(database_place(settings, notify, is_service=True, on_lost=end))
        nats_url = await enter(bus_place(settings, end))
        tokens = token_settings(settings)
        # Wait for the database here, before any client is served.
        begins = await _database_answers(place.dsn, settings.component.db_schema, stop)
        has_workers = begins and settings.workers > 1
        if has_workers:
            await _supervise(settings, place.dsn, nats_url, tokens, notify, stop)
        elif begins:
            tracer_provider = stack.enter_context(exporting(os.environ))
            settings = _provided(settings, nats_url)
            app = create_app(
                dsn=place.dsn,
                tokens=tokens,
                settings=settings.component,
                streams=settings.streams,
                console=settings.has_console,
                tracer_provider=tracer_provider,
            )
            # With our own secret alone: tokens that an operator's secret signs may be good elsewhere.
            if settings.is_embedded and settings.has_console and not settings.tokens.ways:
                offer_tokens(app, tokens)
            if supervision is not None:
                app[INSTANCE] = supervision.instance_metrics
                supervision.join(lambda: app[SERVICE].metrics.report() if SERVICE in app else b"[]")
            await _serve_clients(app, settings, tokens, notify, stop, share_port=share_port)
    # Log what a thread has handed over during the stop.
    await asyncio.sleep(0)
    flush_log()
    if not has_workers:
        # Workers say it themselves.
        logger.info("service.stopped")
    if lost:
        raise EmbeddedError(lost[0])


async def _serve_clients(
    app: Application,
    settings: Settings,
    tokens: TokenSettings,
    notify: Callable[[str], None],
    stop: Stop,
    *,
    share_port: bool,
) -> None:
    """Serve until stopped, the drain included; raises `ListenError`."""
    async with serving(
        app,
        host=settings.host,
        port=settings.port,
        share_port=share_port,
        limits=settings.limits,
    ) as port:
        logger.info("service.started", host=settings.host, port=port, pid=os.getpid())
        if settings.is_embedded:
            notify(welcome(settings, port, tokens, shows_token=sys.stderr.isatty()))
        async with collecting(app[SERVICE].runner):
            await stop.asked.wait()
            app[SERVICE].draining.set()
            logger.info("service.draining", seconds=stop.drain_seconds)
            await stop.drain()
        logger.info("service.stopping")


async def _database_answers(dsn: str, schema: str, stop: Stop) -> bool:
    """Wait for the database, and return True; return False once a stop is asked for.

    Raises as `database_connection` does.
    """

    async def wait() -> None:
        # The operator's migration may still be at work, or begin in a moment.
        async with database_connection(dsn, schema, awaits_tables=True):
            pass

    waiting = asyncio.create_task(wait(), name="wait for the database")
    stopping = asyncio.create_task(stop.asked.wait(), name="stop of that wait")
    try:
        await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stop.asked.is_set():
            return False
        await waiting
        return True
    finally:
        waiting.cancel()
        stopping.cancel()
        await asyncio.wait((waiting, stopping))
        if not waiting.cancelled():
            # Retrieve it, or asyncio logs it as never retrieved.
            waiting.exception()


def _provided(settings: Settings, nats_url: str) -> Settings:
    """Return settings with the bus that is there, and as many connections as there are files for."""
    component, limits = settings.component, settings.limits
    limits = replace(limits, connections_max=_connections_max(limits.connections_max))
    sessions_max = _sessions_max(component.hub.sessions_max, limits.connections_max)
    component = replace(
        component, nats_url=nats_url, hub=replace(component.hub, sessions_max=sessions_max)
    )
    return replace(settings, component=component, limits=limits)


def _connections_max(wanted: int) -> int:
    """Return how many connections there are file descriptors for, after asking for enough."""
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
    """Return how many sessions leave room for other requests.

    A session is never closed for a new connection: if sessions had all connections, every health
    check and every creation would be closed unanswered. One session too many gets an answer that
    says so.
    """
    return max(1, min(wanted, int(connections_max * SESSIONS_SHARE)))


def _stop_on_signals(drain_seconds: float, *, is_worker: bool) -> Stop:
    """Return what SIGTERM and SIGINT ask for; one more signal than `Stop` takes cancels this task.

    A worker has its supervisor for that. It gets a terminal's signals twice: once from the
    terminal, and once from the supervisor, which gets them as well.
    """
    stop = Stop(drain_seconds, is_worker=is_worker)
    loop = asyncio.get_running_loop()
    serving_task = asyncio.current_task()
    assert serving_task is not None

    def on_signal(number: signal.Signals) -> None:
        if not stop.take(number) and not is_worker:
            serving_task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    # A terminal that closes sends SIGHUP to workers too; their supervisor passes it on. Under
    # `nohup` it stays ignored.
    if is_worker:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    elif signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, on_signal, signal.SIGHUP)
    return stop


async def _supervise(
    settings: Settings,
    dsn: str,
    nats_url: str,
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
                # What is provided here, the workers share.
                "STRETTO_DATABASE_URL": dsn,
                "STRETTO_NATS_URL": nats_url,
                "STRETTO_JWT_SECRET": tokens.jwt_secret,
                "STRETTO_CONSOLE": "on" if settings.has_console else "off",
            }
        )
        if settings.is_embedded:
            notify(welcome(settings, port, tokens, shows_token=sys.stderr.isatty()))
        command = (sys.executable, "-m", "stretto", "serve", "--share-port")
        await Supervisor(command, environment, stop).run(settings.workers)


@contextmanager
def _reserved_port(host: str, port: int) -> Iterator[int]:
    """Hold a port that our workers alone will share, without listening on it; 0 takes any free one.

    Raises `ListenError`, also where the supervisor of another service holds it.
    """
    with ExitStack() as stack:
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            found = stack.enter_context(socket.socket(family, kind, protocol))
            reserved = stack.enter_context(socket.socket(family, kind, protocol))
            # Connections of an earlier process may be in TIME_WAIT for a minute.
            for each in (found, reserved):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Linux keeps the port after the end of listening only where the bind has named it.
            found.bind(address)
            reserved.bind(found.getsockname())
            if sys.platform == "linux":
                # Only one of several sockets that do not share a port can listen.
                reserved.listen()
            # From here on only sockets that share the port can be bound to it: the workers'.
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            found.close()
            if sys.platform == "linux":
                # The socket stays bound, and takes no connections itself.
                reserved.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        yield reserved.getsockname()[1]
