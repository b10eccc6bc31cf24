"""The limits of a server's clients, and what its connections share.

A connection knows its server by this module alone: the server (`runner.py`) makes connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from stretto.http.front.arrived import ARRIVED_BYTES_MAX, ArrivedRequests
from stretto.http.front.health_checks import HealthChecks
from stretto.http.front.reading_turns import ReadingTurns
from stretto.http.front.unread import UNREAD_BYTES_MAX, UnreadAnswers
from stretto.runtime.turns import Turns

if TYPE_CHECKING:
    from stretto.http.service import Service
    from stretto.http.settings import ConnectionLimits

# Answers to what is refused before any handler has it, that begin in one turn of the loop. Each takes 0.3 ms, and where
# too much has arrived, a thousand are refused at once.
REFUSALS_PER_TURN: Final = 12


class LimitedServer(web.Server):
    """A server as its connections see it: limits, the service, whether it drains."""

    def __init__(
        self, handle: Any, limits: ConnectionLimits, service: Service | None, **options: Any
    ) -> None:
        super().__init__(handle, **options)
        self.limits = limits
        self.service = service
        self.unread = UnreadAnswers(UNREAD_BYTES_MAX)
        self.arrived = ArrivedRequests(ARRIVED_BYTES_MAX)
        self.reading_turns = ReadingTurns()
        self.checks = None if service is None else HealthChecks(service)
        self.turns_of_refusals = Turns(REFUSALS_PER_TURN)
        self._is_stopping = False
        if service is not None:
            service.authenticator.bound_waits(limits.connections_max)

    @property
    def is_draining(self) -> bool:
        """Whether each connection ends with its next answer that has no request behind it."""
        return self._is_stopping or (self.service is not None and self.service.draining.is_set())
