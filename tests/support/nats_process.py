"""A real nats-server process on a port of its own, to be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import nats
import orjson
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NoStreamResponseError

from stretto.embedded.nats import nats_program
from stretto.nats.deployment import Deployment
from stretto.postgres.connections import Database
from stretto.postgres.log import origin
from support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.client import Client
    from nats.aio.msg import Msg

DEADLINE_SECONDS = 20
# The names that a deployment has without a setting, and a database of no test in particular.
OURS = Deployment("stretto", "0a1b2c3d")


class NatsProcess:
    """Serves one folder at one address, as often as it is started."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def start(self) -> None:
        """Start the server; it takes connections afterwards."""
        self.process = await asyncio.create_subprocess_exec(
            *(str(nats_program()), "--addr", "127.0.0.1", "--port", str(self.port)),
            *("--jetstream", "--store_dir", str(self.folder), *self.options),
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        lines = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while b"Server is ready" not in (line := await self.process.stderr.readline()):
                lines.append(line)
                assert line, b"".join(lines).decode()
        self._reloaded = asyncio.Event()
        # Read on, or the server would wait for us one day.
        self._reading = asyncio.create_task(self._read_on(self.process.stderr))

    async def _read_on(self, log: asyncio.StreamReader) -> None:
        async for line in log:
            if b"Reloaded server configuration" in line:
                self._reloaded.set()

    async def reload(self) -> None:
        """Have it read its file of settings again (`--config` of the options)."""
        assert self.process is not None
        self._reloaded.clear()
        self.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._reloaded.wait()

    async def kill(self) -> None:
        """End the server as a crash does."""
        if self.process is not None:
            if self.process.returncode is None:
                self.process.send_signal(signal.SIGCONT)
                self.process.kill()
            await self.process.wait()
            await self._reading
            self.process = None

    async def stop(self) -> None:
        """End the server in order: what it leads is handed over before it goes."""
        assert self.process is not None
        self.process.terminate()
        await self.process.wait()

    async def freeze(self) -> None:
        """Stop the server in its tracks; its connections stay."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(os.waitid, os.P_PID, self.process.pid, os.WSTOPPED)

    def thaw(self) -> None:
        """Let it go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def nats_client(url: str) -> AsyncIterator[Client]:
    """Connect as another program than stretto."""
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def deployment_of(database_url: str, prefix: str = OURS.prefix) -> Deployment:
    """Return what a service with this database goes by on NATS."""
    async with Database(database_url) as database:
        return Deployment(prefix, await origin(database))


async def stored(client: Client, stream: str) -> list[Msg]:
    """Return all that a stream holds, as a consumer of its own reads it."""
    jetstream = client.jetstream()
    messages = (await jetstream.stream_info(stream)).state.messages
    config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE)
    subscription = await jetstream.subscribe(">", stream=stream, config=config)
    found = [await subscription.next_msg(DEADLINE_SECONDS) for _ in range(messages)]
    await subscription.unsubscribe()
    return found


async def publish_raw(
    server: NatsProcess, subject: bytes, headers: bytes, body: bytes = b"{}"
) -> None:
    """Publish a block of headers as it is, as a program may that uses no client."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    sizes = b"%d %d" % (len(headers), len(headers) + len(body))
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\nHPUB ' + subject + b" " + sizes)
    writer.write(b"\r\n" + headers + body + b"\r\nPING\r\n")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await reader.readuntil(b"PONG")
    writer.close()
    await writer.wait_closed()


async def commanded(
    client: Client, key: str, document: object, subject: str = OURS.command_subject, **more: str
) -> Msg:
    """Ask for a group of alice's, as soon as there is a stream for commands; return the outcome."""
    inbox = client.new_inbox()
    outcome = await client.subscribe(inbox)
    headers = {"Idempotency-Key": key, "Stretto-Owner": "alice", "Stretto-Reply-To": inbox} | more
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                await client.jetstream().publish(subject, orjson.dumps(document), headers=headers)
            except NoStreamResponseError:
                continue
            break
    return await outcome.next_msg(DEADLINE_SECONDS)
