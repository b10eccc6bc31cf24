"""Names are looked up in threads of our own: whatever the host does with the loop's."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from stretto.runtime import lookups as lookups_module
from stretto.runtime.lookups import loop_with_own_lookups
from support.certificate import Authority
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

DEADLINE_SECONDS: Final = 20
FOUND: Final = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))]


class Names:
    """Stands for the system's resolver: an answer, an error, or none until it is let go."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.hanging: set[str] = set()
        self.answers: dict[str, Any] = {}
        self.let_go = threading.Event()

    def __call__(self, *question: Any) -> Any:
        self.asked.append(question)
        host = question[0]
        if host in self.hanging:
            self.let_go.wait(DEADLINE_SECONDS)
        answer = self.answers.get(host, FOUND)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    """Every name is known."""
    known = Names()
    monkeypatch.setattr(socket, "getaddrinfo", known)
    yield known
    known.let_go.set()


@asynccontextmanager
async def busy_host() -> AsyncIterator[None]:
    """The host keeps all of the loop's own threads busy."""
    end = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    work = loop.run_in_executor(None, end.wait, DEADLINE_SECONDS)
    try:
        yield
    finally:
        end.set()
        await work


@asynccontextmanager
async def server(**options: Any) -> AsyncIterator[int]:
    """Accept connections at a port of the loopback address, and say a word."""

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()

    listening = await asyncio.start_server(greet, "127.0.0.1", 0, **options)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()


class Heard(asyncio.Protocol):
    """What a server says."""

    def __init__(self) -> None:
        self.word: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.word.done():
            self.word.set_result(data)


async def heard(port: int, host: str = "localhost", **options: Any) -> bytes:
    """Connect by a name, and return what the server says."""
    loop = loop_with_own_lookups()
    transport, protocol = await loop.create_connection(Heard, host, port, **options)
    try:
        return await protocol.word
    finally:
        transport.close()


async def look(host: str) -> Any:
    """Look a name up."""
    return await loop_with_own_lookups().getaddrinfo(host, 80, type=socket.SOCK_STREAM)


async def test_a_busy_host_holds_no_connection_up() -> None:
    """Neither its lookup nor anything after it."""
    async with asyncio.timeout(DEADLINE_SECONDS), server() as port, busy_host():
        assert b"hello" == await heard(port)


async def test_an_address_needs_no_lookup(names: Names) -> None:
    """It goes to the loop as it is."""
    async with asyncio.timeout(DEADLINE_SECONDS), server() as port:
        assert b"hello" == await heard(port, "127.0.0.1")
    assert [] == [question for question in names.asked if question[1] == port]


async def test_all_who_ask_for_a_name_wait_for_one_lookup(names: Names) -> None:
    """However many they are, and whoever of them leaves; another name does not wait for it."""
    names.hanging.add("slow")
    async with asyncio.timeout(DEADLINE_SECONDS):
        waiting = [asyncio.create_task(look("slow")) for _ in range(3)]
        await until(lambda: names.asked)
        waiting[0].cancel()
        assert FOUND == await look("quick")
        assert 1 == sum(question[0] == "slow" for question in names.asked)
        names.let_go.set()
        assert [FOUND, FOUND] == await asyncio.gather(*waiting[1:])
        # It is asked anew each time: an address may change.
        assert FOUND == await look("slow")
    assert 2 == sum(question[0] == "slow" for question in names.asked)


async def test_what_the_resolver_raises_is_raised(names: Names) -> None:
    """For each who waits."""
    names.answers |= {"unknown": socket.gaierror(-2, "unknown"), "odd": UnicodeError("odd")}
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(socket.gaierror):
            await look("unknown")
        with pytest.raises(UnicodeError):
            await look("odd")


async def test_each_address_is_tried_in_turn(names: Names) -> None:
    """The first that answers serves; where none does, the error says why."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = (*FOUND[0][:4], unused.getsockname())
        async with asyncio.timeout(DEADLINE_SECONDS), server() as port:
            living = (*FOUND[0][:4], ("127.0.0.1", port))
            names.answers["db"] = [dead, living]
            assert b"hello" == await heard(port, "db")
            for answers, refused in (
                ([dead], ConnectionRefusedError),
                ([dead, dead], ConnectionRefusedError),
                (
                    [dead, (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("255.255.255.255", 1))],
                    OSError,
                ),
            ):
                names.answers["db"] = answers
                with pytest.raises(refused, match=r"refused|failed|Multiple"):
                    await heard(port, "db")


class Addresses:
    """Stands for the network: which addresses were tried, of which some stay silent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *silent: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        connect = loop.sock_connect
        self.tried: list[tuple[str, int]] = []
        self.left: list[socket.socket] = []

        async def connect_or_wait(connecting: socket.socket, address: tuple[str, int]) -> None:
            self.tried.append(address)
            if address in silent:
                self.left.append(connecting)
                await asyncio.Event().wait()
            await connect(connecting, address)

        monkeypatch.setattr(loop, "sock_connect", connect_or_wait)


async def test_a_silent_address_keeps_no_other_from_being_tried(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would use up all the time that its caller has; its socket is closed."""
    monkeypatch.setattr(lookups_module, "SILENT_SECONDS", 0.01)
    async with asyncio.timeout(DEADLINE_SECONDS), server() as port:
        living, silent = ("127.0.0.1", port), ("192.0.2.1", port)
        network = Addresses(monkeypatch, silent)
        names.answers["db"] = [(*FOUND[0][:4], address) for address in (silent, living)]
        assert b"hello" == await heard(port, "db")
    assert [silent, living] == network.tried
    assert [-1] == [each.fileno() for each in network.left]


async def test_a_cancellation_that_the_library_swallows_is_obeyed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does while it cancels the addresses that have lost; the connection is closed."""
    ours, others = socket.socketpair()
    begun = asyncio.Event()

    async def connect(*_: object, **__: object) -> socket.socket:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return ours

    monkeypatch.setattr(lookups_module, "start_connection", connect)
    loop: Any = loop_with_own_lookups()
    connecting = asyncio.create_task(loop.create_connection(asyncio.Protocol, "localhost", 1))
    await begun.wait()
    connecting.cancel()
    await asyncio.wait({connecting})
    assert connecting.cancelled()
    assert -1 == ours.fileno()
    others.close()


async def test_an_address_that_answers_has_no_rival(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a server is not called by all of its addresses; nor are silent ones left open."""
    monkeypatch.setattr(lookups_module, "SILENT_SECONDS", DEADLINE_SECONDS)
    async with asyncio.timeout(DEADLINE_SECONDS), server() as port:
        living, silent = ("127.0.0.1", port), ("192.0.2.1", port)
        network = Addresses(monkeypatch, silent)
        names.answers["db"] = [(*FOUND[0][:4], address) for address in (living, silent)]
        assert b"hello" == await heard(port, "db")
        assert [living] == network.tried
        monkeypatch.setattr(lookups_module, "SILENT_SECONDS", 0.01)
        names.answers["db"] = [(*FOUND[0][:4], silent)] * 2
        connecting = asyncio.create_task(heard(port, "db"))
        await until(lambda: len(network.left) == 2)
        connecting.cancel()
        await asyncio.wait({connecting})
    assert connecting.cancelled()
    assert [-1] * 2 == [each.fileno() for each in network.left]


async def test_tls_checks_the_name(tmp_path: Path, names: Names) -> None:
    """And not the address that was found for it."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("db")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(certificate, key)
    trusted = ssl.create_default_context(cafile=authority.certificate)
    async with asyncio.timeout(DEADLINE_SECONDS), server(ssl=own) as port:
        place = (*FOUND[0][:4], ("127.0.0.1", port))
        names.answers |= {"localhost": [place], "another.example": [place]}
        assert b"hello" == await heard(port, ssl=trusted)
        with pytest.raises(ssl.SSLCertVerificationError):
            await heard(port, "another.example", ssl=trusted)


async def test_a_machine_without_a_thread_is_one_that_cannot_connect(
    names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with any other resource; the next attempt asks again."""

    def fail(*_: Any, **__: Any) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    with monkeypatch.context() as patch:
        patch.setattr(lookups_module, "Thread", fail)
        with pytest.raises(OSError, match="no thread") as error:
            await look("db")
    assert errno.EAGAIN == error.value.errno
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert FOUND == await look("db")


def test_a_lookup_may_outlive_its_loop(names: Names) -> None:
    """Nobody waits for it any more, and it keeps no process from its end."""
    names.hanging.add("slow")
    threads: list[threading.Thread] = []

    async def leave() -> None:
        asking = asyncio.create_task(look("slow"))
        await until(lambda: names.asked)
        threads.extend(each for each in threading.enumerate() if each.name == "stretto lookup")
        asking.cancel()

    asyncio.run(leave())
    assert [True] == [each.daemon for each in threads]
    names.let_go.set()
    threads[0].join(DEADLINE_SECONDS)
    assert not threads[0].is_alive()


async def test_the_loop_knows_its_tasks_by_what_stands_for_it() -> None:
    """A driver asks which task runs: it would keep all that have ended."""
    loop = loop_with_own_lookups()
    assert asyncio.current_task() is asyncio.current_task(loop)
    assert (True, False) == (loop == asyncio.get_running_loop(), loop == object())
