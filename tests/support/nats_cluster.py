"""Three real nats-servers that replicate streams, to be killed or stopped one by one."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, Self

import nats
from nats.errors import Error

from support.nats_process import NatsProcess
from support.ports import free_port
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.client import Client

SERVERS: Final = 3
ELECTION_SECONDS: Final = 30
LOOK_SECONDS: Final = 0.1


class NatsCluster:
    """Its servers share no folder; `client` is of no deployment, and lives as long as one server."""

    client: Client

    def __init__(self, folder: Path) -> None:
        routes = [f"nats://127.0.0.1:{free_port()}" for _ in range(SERVERS)]
        self.servers = {
            name: NatsProcess(
                folder / name,
                *("--server_name", name, "--cluster_name", "test"),
                *("--cluster", route, "--routes", ",".join(routes)),
            )
            for name, route in zip("abc", routes, strict=True)
        }

    @property
    def url(self) -> str:
        """All servers, as settings name them."""
        return ",".join(server.url for server in self.servers.values())

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for server in self.servers.values():
                await stack.enter_async_context(server)
            self.client = await nats.connect(
                [server.url for server in self.servers.values()],
                error_cb=_ignore,
                reconnect_time_wait=LOOK_SECONDS,
                max_reconnect_attempts=-1,
            )
            stack.push_async_callback(self.client.close)
            await until(self._has_all, ELECTION_SECONDS)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def leader(self, stream: str, *not_: str, consumer: str = "") -> str:
        """Wait until the stream, or its consumer, has a leader that is none of those; return it."""

        async def look() -> str | None:
            jetstream = self.client.jetstream(timeout=LOOK_SECONDS)
            try:
                info = await (
                    jetstream.consumer_info(stream, consumer)
                    if consumer
                    else jetstream.stream_info(stream)
                )
            except (Error, OSError):
                return None
            return info.cluster.leader if info.cluster and info.cluster.leader not in not_ else None

        leader = await until(look, ELECTION_SECONDS)
        assert leader is not None
        return leader

    async def _has_all(self) -> bool:
        """Whether a stream that all servers keep can be made."""
        jetstream = self.client.jetstream(timeout=1)
        try:
            await jetstream.add_stream(name="probe", subjects=["probe"], num_replicas=SERVERS)
            return await jetstream.delete_stream("probe")
        except (Error, OSError):
            return False


async def _ignore(_: Exception) -> None:
    """Take no note of an error: that of a server that a test has ended."""
