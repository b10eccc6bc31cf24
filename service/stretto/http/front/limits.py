"""The limits of a server's clients, and what its connections share.

A connection knows its server by this module alone: the server (`runner.py`) makes connections.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from stretto.setting import setting

if TYPE_CHECKING:
    from stretto.http.service import Service

# Read of one connection in one turn of the loop. The 256 KiB that asyncio and uvloop would read
# hold 43,000 chunks of a byte each, or 130,000 frames of a WebSocket: too much work for one turn.
READ_BYTES_MAX: Final = 32 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections a server has, and how long its clients may take."""

    connections_max: int = setting(
        10_000, "clients' connections to one process", ge=10, le=1_000_000
    )
    """An idle one costs about 15 KiB."""
    read_timeout_seconds: float = setting(
        30.0, "after this long a request must have arrived in full", ge=0.1, le=3600
    )
    """A request that takes longer to arrive is cut off; one of 256 KiB needs 70 kbit/s."""
    write_seconds: float = 30.0
    """A client that needs longer to read what waits for it is cut off: 64 KiB need 18 kbit/s."""


class LimitedServer(web.Server):
    """A server as its connections see it: limits, the service, whether it drains."""

    def __init__(
        self, handle: Any, limits: ConnectionLimits, service: Service | None, **options: Any
    ) -> None:
        super().__init__(handle, **options)
        self.limits = limits
        self.service = service
        self.arriving = memoryview(bytearray(READ_BYTES_MAX))
        """The buffer into which each connection reads, one after the other."""
        self._is_stopping = False

    @property
    def is_draining(self) -> bool:
        """Whether each connection ends with its next answer that has no request behind it."""
        return self._is_stopping or (self.service is not None and self.service.draining.is_set())
