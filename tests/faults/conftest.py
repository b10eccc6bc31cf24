"""Fixtures of the fault tests."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest_asyncio

from chaos.server import OwnServer, own_server
from chaos.wire_proxy import WireProxy
from support.nats_process import NatsProcess
from support.service_process import service_starter
from support.topology import Topology

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.database import Connection
    from support.service_process import StartService


@pytest_asyncio.fixture
async def proxy(database_url: str) -> AsyncIterator[WireProxy]:
    """A proxy before the test's database."""
    async with WireProxy(database_url) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def server() -> AsyncIterator[OwnServer]:
    """A server of this test alone, to be broken."""
    async with own_server() as server:
        yield server


@pytest_asyncio.fixture
async def beside(server: OwnServer) -> AsyncIterator[Connection]:
    """A connection of the test itself to that server."""
    connection = await server.connect()
    yield connection
    connection.terminate()


@pytest_asyncio.fixture
async def start_on_server(server: OwnServer) -> AsyncIterator[StartService]:
    """Starts real service processes on that server."""
    async with service_starter(server.dsn) as start:
        yield start


@pytest_asyncio.fixture
async def topology(
    start_service: StartService, tmp_path: Path, database_url: str
) -> AsyncIterator[Topology]:
    """Nothing started yet but a NATS of this test alone."""
    async with NatsProcess(tmp_path / "nats") as server, AsyncExitStack() as stack:
        yield Topology(stack, start_service, server, database_url)
