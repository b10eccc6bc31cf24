"""Looks host names up in threads of our own.

An event loop does so in its default threads, which are the host's as well. Where the host keeps those
busy (`asyncio.to_thread`), a lookup waits behind its work, and no connection is made in time although
all is well.

A lookup that hangs cannot be ended. So there is one at a time of a name, in a thread that keeps no
process from its end.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from weakref import WeakKeyDictionary

from aiohappyeyeballs import start_connection

from stretto.runtime.cancelling import cancellations, is_cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

_Question: TypeAlias = tuple[Any, ...]
_Found: TypeAlias = list[tuple[Any, ...]]
"""As `socket.getaddrinfo` returns them."""

# An address that drops what it is sent is silent for as long as its caller waits, 2 s or more. One that
# lives answers within some milliseconds, or round trips over an ocean.
SILENT_SECONDS: Final = 0.25

# By loop. An answer refers to its loop, so it is kept only while it is awaited.
_UNDER_WAY: Final[
    WeakKeyDictionary[
        asyncio.AbstractEventLoop, dict[_Question, asyncio.Future[_Found | Exception]]
    ]
] = WeakKeyDictionary()


def loop_with_own_lookups() -> asyncio.AbstractEventLoop:
    """Return the running loop, for a library that takes one, with lookups in threads of our own."""
    return cast("asyncio.AbstractEventLoop", LoopWithOwnLookups(asyncio.get_running_loop()))


class LoopWithOwnLookups:
    """A loop: equal to the one that it stands for, whose tasks are known by it.

    What is not about names is that one's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._under_way = _UNDER_WAY.setdefault(loop, {})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def __eq__(self, other: object) -> bool:
        return other is self._loop or other is self

    def __hash__(self) -> int:
        return hash(self._loop)

    async def getaddrinfo(
        self,
        host: str | None,
        port: str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 the loop's own name
        proto: int = 0,
        flags: int = 0,
    ) -> _Found:
        """Return what `socket.getaddrinfo` does; raises what it raises."""
        question = host, port, family, type, proto, flags
        answer = self._under_way.get(question) or self._ask(question)
        # Others may wait for it: who leaves does not cancel it.
        await asyncio.wait({answer})
        found = answer.result()
        if isinstance(found, Exception):
            raise found
        return found

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to the first address of the host that answers; raises `OSError`.

        Each is tried as soon as the one before has failed, or has been silent for `SILENT_SECONDS`.
        """
        if host is None or _is_address(host):
            options |= {"host": host, "port": port}
            return await self._loop.create_connection(protocol_factory, **options)
        found = await self.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        since = cancellations()
        connected = await start_connection(
            found, happy_eyeballs_delay=SILENT_SECONDS, interleave=0, loop=self._loop
        )
        if is_cancelled(since):
            # The library swallows one that comes while it cancels the addresses that have lost.
            connected.close()
            raise asyncio.CancelledError
        if options.get("ssl"):
            options.setdefault("server_hostname", host)
        try:
            return await self._loop.create_connection(protocol_factory, sock=connected, **options)
        except BaseException:
            connected.close()
            raise

    def _ask(self, question: _Question) -> asyncio.Future[_Found | Exception]:
        answer: asyncio.Future[_Found | Exception] = self._loop.create_future()
        work = partial(self._look, question, answer)
        try:
            Thread(target=work, name="stretto lookup", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, "no thread can be started") from error
        self._under_way[question] = answer
        answer.add_done_callback(lambda _: self._under_way.pop(question))
        return answer

    def _look(self, question: _Question, answer: asyncio.Future[_Found | Exception]) -> None:
        """Answer the question, in a thread."""
        found: _Found | Exception
        try:
            found = socket.getaddrinfo(*question)
        except Exception as error:  # noqa: BLE001 raised where it is awaited
            found = error
        # The loop may have been closed meanwhile.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_answer, answer, found)


def _answer(answer: asyncio.Future[_Found | Exception], found: _Found | Exception) -> None:
    if not answer.done():
        answer.set_result(found)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
