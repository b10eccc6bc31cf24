"""Fixtures of the integration tests."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
import pytest_asyncio

from stretto.postgres.connections import Database
from support.database import login_role, seen_by
from support.hooked_stores import HOST_TABLES, open_stores
from support.nats_process import NatsProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.database import Connection
    from support.hooked_stores import Stores


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The source of connections of the parts under test."""
    async with Database(database_url) as database:
        yield database


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsProcess]:
    """A NATS server of this test alone."""
    async with NatsProcess(tmp_path / "nats") as server:
        yield server


@pytest_asyncio.fixture
async def role(connection: Connection) -> AsyncIterator[str]:
    """A role that may log in, and nothing else."""
    async with login_role(connection, f"app_{uuid4().hex}") as role:
        yield role


@pytest.fixture
def role_url(role: str, database_url: str) -> str:
    """The database as that role sees it."""
    return seen_by(role, database_url)


@pytest_asyncio.fixture
async def tables(connection: Connection) -> None:
    """Tables of the host's."""
    await connection.execute(HOST_TABLES)


@pytest_asyncio.fixture
async def stores(database_url: str) -> AsyncIterator[Stores]:
    """Stores on connections of the component's own."""
    async with open_stores(database_url, is_hosts_pool=False) as stores:
        yield stores
