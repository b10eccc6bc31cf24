"""How many connections there are file descriptors for, what signals do."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import sys
from contextlib import asynccontextmanager
from signal import default_int_handler
from typing import TYPE_CHECKING

import pytest

from stretto.config import Settings
from stretto.http.front.serving import cannot_listen
from stretto.http.tokens.settings import TokenSettings
from stretto.provision import Place
from stretto.runtime.stop import Stop
from stretto.server import (
    FILES_OWN,
    _connections_max,
    _database_answers,
    _reserved_port,
    _sessions_max,
    _stop_on_signals,
    serve,
)
from stretto.start_errors import EmbeddedError, ListenError
from stretto.telemetry.logs import logger
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("expected", "set_to", "limits"),
    [
        (1000, None, (2000, 2000)),
        (1000, None, (ANY, ANY)),
        (1000, (1000 + FILES_OWN, 2000), (256, 2000)),
        (1000, (1000 + FILES_OWN, ANY), (256, ANY)),
        (500, (500 + FILES_OWN, 500 + FILES_OWN), (256, 500 + FILES_OWN)),
        (1, (100, 100), (100, 100)),
    ],
)
def test_as_many_descriptors_as_needed_are_asked_for(
    expected: int,
    set_to: tuple[int, int] | None,
    limits: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither more than needed, nor more connections than there can be descriptors."""
    asked: list[tuple[int, int] | None] = [None]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: asked.append(both))
    assert (expected, set_to) == (_connections_max(1000), asked[-1])


@pytest.mark.parametrize(
    ("expected", "wanted", "connections_max"), [(9, 20_000, 10), (5, 5, 10), (1, 5, 1)]
)
def test_sessions_leave_connections_to_other_requests(
    expected: int, wanted: int, connections_max: int
) -> None:
    """One in ten at least; also where there are fewer descriptors than connections were wanted."""
    assert expected == _sessions_max(wanted, connections_max)


@pytest.mark.parametrize("is_worker", [True, False], ids=["worker", "service"])
async def test_one_signal_more_than_there_are_steps_ends_a_service_but_no_worker(
    is_worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker gets a terminal's signals twice, and has a supervisor that ends it by force."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    taken: list[signal.Signals] = []
    take = Stop.take

    def note(stop: Stop, number: signal.Signals) -> bool:
        taken.append(number)
        return take(stop, number)

    monkeypatch.setattr(Stop, "take", note)

    async def serve() -> None:
        _stop_on_signals(10, is_worker=is_worker)
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
            await until(lambda: len(taken) >= count)  # noqa: B023 awaited in this turn
        await asyncio.sleep(0)

    serving = asyncio.create_task(serve())
    await asyncio.wait((serving,))
    assert is_worker is not serving.cancelled()
    # A closing terminal sends this one to workers too: their supervisor passes it on.
    assert is_worker is (signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else default_int_handler)


async def test_a_service_under_nohup_outlives_its_terminal() -> None:
    """What its parent has had it ignore stays ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _stop_on_signals(10, is_worker=False)
    assert signal.SIG_IGN is signal.getsignal(signal.SIGHUP)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().remove_signal_handler(number)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


async def test_a_stop_ends_the_wait_for_a_database_that_never_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Long before the wait would end by itself."""
    began, ended = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def never(*_: object, **__: object) -> AsyncIterator[None]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        yield

    monkeypatch.setattr("stretto.server.database_connection", never)
    stop = Stop(drain_seconds=0)
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(_database_answers("", "stretto", stop))
        await began.wait()
        stop.asked.set()
        assert not await waiting
    assert ended.is_set()


@pytest.mark.parametrize("is_lost", [True, False])
async def test_a_service_that_loses_its_server_before_it_serves_ends_with_that(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that serves does; the twin is stopped by a signal first, which may end that server, too."""
    losing: list[Callable[[str], object]] = []
    logged: list[str] = []

    @asynccontextmanager
    async def embedded(
        *_: object, on_lost: Callable[[str], object], **__: object
    ) -> AsyncIterator[Place]:
        losing.append(on_lost)
        yield Place("", None)
        logged.append("the server is closed")

    @asynccontextmanager
    async def never(*_: object, **__: object) -> AsyncIterator[None]:
        if is_lost:
            losing[0]("it has ended by itself")
        else:
            os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
            yield
        finally:
            if not is_lost:
                losing[0]("it has been stopped as well")

    monkeypatch.setattr("stretto.server.database_place", embedded)
    monkeypatch.setattr("stretto.server.database_connection", never)
    monkeypatch.setattr("stretto.server.flush_log", lambda: logged.append("flushed"))
    monkeypatch.setattr(logger, "info", lambda event, **_: logged.append(event))
    settings = Settings(port=0, tokens=TokenSettings(jwt_secret="s" * 44))
    try:
        async with asyncio.timeout(5):
            serving = serve(settings, lambda _: None, share_port=False)
            if is_lost:
                with pytest.raises(EmbeddedError, match="has ended by itself"):
                    await serving
            else:
                await serving
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().remove_signal_handler(number)
    assert ["the server is closed", "flushed", "service.stopped"] == logged


def test_a_port_is_reserved_by_one_service_alone() -> None:
    """Before any worker listens on it too; its own workers may, and they alone take connections."""
    with _reserved_port("127.0.0.1", 0) as port:
        with pytest.raises(ListenError, match="in use"), _reserved_port("127.0.0.1", port):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        with (
            socket.create_server(("127.0.0.1", port), reuse_port=True),
            socket.create_server(("127.0.0.1", port), reuse_port=True),
            socket.create_connection(("127.0.0.1", port)),
            pytest.raises(ListenError, match="in use"),
            _reserved_port("127.0.0.1", port),
        ):
            pass
    with _reserved_port("127.0.0.1", port) as again:
        assert port == again


@pytest.mark.parametrize(("expected", "as_pid"), [(143, 1), (-signal.SIGTERM, 2)])
async def test_sigterm_ends_pid_1_while_the_rest_is_loaded(expected: int, as_pid: int) -> None:
    """The kernel drops it there without a handler; any other process ends as by default."""
    program = f"""
import os, signal, sys, time, types
pid, cli = os.getpid(), types.ModuleType("stretto.cli")
os.getpid = lambda: {as_pid}
cli.main = lambda: [os.kill(pid, signal.SIGTERM), time.sleep(20)]
sys.modules["stretto.cli"] = cli
from stretto.__main__ import main
main()
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert expected == await process.wait()


@pytest.mark.parametrize(
    ("expected", "begin"),
    [
        ((130, b"stretto: interrupted\n"), ""),
        # Ignored, as in a shell's background.
        ((0, b""), "signal.signal(signal.SIGINT, signal.SIG_IGN)"),
    ],
)
async def test_an_interrupt_while_the_program_loads_ends_it_in_words(
    expected: tuple[int, bytes], begin: str
) -> None:
    """Without a traceback that shows where the loading was."""
    program = f"""
import os, signal, sys, types
class Loading(types.ModuleType):
    @property
    def main(self):
        os.kill(os.getpid(), signal.SIGINT)
        return lambda: None
{begin}
handler = signal.getsignal(signal.SIGINT)
sys.modules["stretto.cli"] = Loading("stretto.cli")
from stretto.__main__ import main
main()
assert handler == signal.getsignal(signal.SIGINT)
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    assert expected == (process.returncode, errors)


async def test_an_interrupt_after_loading_reaches_the_command() -> None:
    """It puts its things in order before it ends."""
    program = """
import os, signal, sys, types
cli = types.ModuleType("stretto.cli")
cli.main = lambda: os.kill(os.getpid(), signal.SIGINT)
sys.modules["stretto.cli"] = cli
from stretto.__main__ import main
try:
    main()
except KeyboardInterrupt:
    sys.exit(7)
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert 7 == await process.wait()


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ("set STRETTO_HOST to an address", socket.gaierror(socket.EAI_NONAME, "Name not known")),
        ("set STRETTO_HOST to an address", OSError(errno.EADDRNOTAVAIL, "Cannot assign address")),
        (
            "STRETTO_PORT), or try again in half",
            OSError(errno.EADDRINUSE, "Address already in use"),
        ),
        ("choose another port", OSError(errno.EACCES, "Permission denied")),
    ],
)
def test_the_remedy_is_for_what_cannot_be_listened_on(expected: str, error: OSError) -> None:
    """Another port does not help where the host is wrong."""
    assert expected in str(cannot_listen("host", 80, error))
