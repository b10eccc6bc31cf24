"""Fixtures of the fault tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from chaos.server import OwnServer, own_server
from chaos.wire_proxy import WireProxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


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
