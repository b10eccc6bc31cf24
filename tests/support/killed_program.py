"""An example that is killed again and again, and a wire on which its last word may be lost."""

from __future__ import annotations

import asyncio
import random
import signal
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from support.example_process import EXAMPLES, started
from support.waiting import until

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

# Conditions in the examples of consumers.
INBOX: Final = 'await INBOX.first_time(connection, UUID(event["id"]))'
CREATED: Final = 'event["type"] == "group.created"'
# How often a program is killed when it has committed and nobody has learned of it.
LOST_RATIO: Final = 0.2
LIFE_SECONDS_MAX: Final = 3.0
CHUNK_BYTES: Final = 64 * 1024


def without(condition: str, example: str, folder: Path) -> Path:
    """Return a copy of the example that takes the condition for true."""
    text = (EXAMPLES / example).read_text()
    assert text.count(f"if {condition}:") == 1
    copy = folder / example
    copy.write_text(text.replace(condition, "True"))
    return copy


class KilledProgram:
    """Runs an example, and starts it again whenever it was killed."""

    def __init__(self, example: str | Path, seed: int) -> None:
        self._example = example
        self._random = random.Random(seed)
        self._process: asyncio.subprocess.Process | None = None
        self._is_spared = self._is_over = False
        self.words_lost = 0

    def is_lost(self, chunk: bytes, last_word: bytes) -> bool:
        """Kill the program as it sends its last word on an event, which is lost.

        At the first event, and now and then.
        """
        if last_word not in chunk or (self.words_lost and self._random.random() > LOST_RATIO):
            return False
        self.words_lost += 1
        self._kill()
        return True

    def spare(self) -> None:
        """Kill it at random instants no more."""
        self._is_spared = True

    @asynccontextmanager
    async def running(self, *arguments: str, **settings: str) -> AsyncIterator[None]:
        """Run it until the block is left; raises `AssertionError` if it has ended by itself."""
        running = asyncio.create_task(self._run(arguments, settings), name="killed program")
        try:
            yield
        finally:
            self._is_over = True
            self._kill()
            await running

    def _kill(self) -> None:
        """Kill it once: a second signal would look for its end first, and take that from who waits."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    async def _run(self, arguments: tuple[str, ...], settings: dict[str, str]) -> None:
        while not self._is_over:
            async with started(self._example, *arguments, **settings) as process:
                self._process = process
                if self._is_over:
                    self._kill()
                killing = asyncio.create_task(self._kill_some_time(), name="killer")
                assert process.stdout is not None
                output = await process.stdout.read()
                killing.cancel()
                assert -signal.SIGKILL == await process.wait(), output.decode()

    async def _kill_some_time(self) -> None:
        await asyncio.sleep(self._random.uniform(0, LIFE_SECONDS_MAX))
        if not self._is_spared:
            self._kill()


@asynccontextmanager
async def wire(port: int, is_lost: Callable[[bytes], bool]) -> AsyncIterator[int]:
    """Pass connections on to a port, once something listens there; yields its own port.

    A chunk that is lost ends its connection.
    """

    async def pass_on(reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            while (chunk := await reader.read(CHUNK_BYTES)) and not is_lost(chunk):
                writer.write(chunk)
                await writer.drain()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        try:
            beyond = await until(lambda: _connected(port))
            assert beyond is not None
            ways = [
                asyncio.create_task(pass_on(reader, beyond[1])),
                asyncio.create_task(pass_on(beyond[0], writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                beyond[1].close()
                writer.close()
                await asyncio.gather(*ways)
        finally:
            writer.close()

    serving: set[asyncio.Task[None]] = set()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


async def _connected(port: int) -> tuple[StreamReader, StreamWriter] | None:
    with suppress(OSError):
        return await asyncio.open_connection("127.0.0.1", port)
    return None
