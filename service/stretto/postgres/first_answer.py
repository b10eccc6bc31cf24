"""Gives a connection to the driver once a host has answered as PostgreSQL does.

Every message of PostgreSQL's begins with a letter. The driver reads one that begins with a zero, as another
program sends it, for ever, in one turn of the event loop. Nothing of this is left once a host has answered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from stretto.runtime.lookups import LoopWithOwnLookups

if TYPE_CHECKING:
    from collections.abc import Callable


def drivers_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop for the driver: with lookups of our own, and this guard."""
    return cast("asyncio.AbstractEventLoop", _Loop(asyncio.get_running_loop()))


class _FirstAnswer(asyncio.Protocol):
    """Stands for the driver's protocol until the host has answered."""

    def __init__(self, driver: asyncio.Protocol) -> None:
        self.driver = driver

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.driver.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if data[:1].isalpha():
            self._transport.set_protocol(self.driver)
            self.driver.data_received(data)
        else:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.driver.connection_lost(error)


class _Loop(LoopWithOwnLookups):
    async def create_connection(
        self, protocol_factory: Callable[[], asyncio.Protocol], *place: Any, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        transport, guard = await super().create_connection(
            lambda: _FirstAnswer(protocol_factory()), *place, **options
        )
        return transport, cast("_FirstAnswer", guard).driver
