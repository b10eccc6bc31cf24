"""Which primary our connections lead to: those to one that a standby has replaced are cut.

A primary that goes on running after the promotion keeps the connections that it has, and answers reads
from them, without what was written since. The standby that replaced it has the same identifier, and
a timeline of a higher number. So our first connection there shows it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from stretto.postgres.driver_connection import is_lost, terminate
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.postgres.driver_connection import Connection

# While it refuses connections to an older primary, ours are tried again and again. A balancer that leads to
# both servers leads to the newer one by then; else that one is gone, or has frozen.
REFUSED_SECONDS: Final = 5.0
# From one refusal to the next: what was refused longer ago says nothing of now.
REFUSED_AGAIN_SECONDS: Final = 2.0
REPLACED: Final = "a standby has replaced this server as the primary; stop it, or lead here no more"


class Primary(NamedTuple):
    """What distinguishes a primary from the standby that replaces it."""

    system: str
    """The same in all physical copies of a server."""
    timeline: str
    """Eight hexadecimal digits, so that texts compare as numbers do."""

    def replaces(self, other: Primary) -> bool:
        """Whether this one was a standby of the other, or of one of its standbys."""
        return self.system == other.system and self.timeline > other.timeline


# Of a pooler's connection, whose server may be another one for each transaction, and of a server that does
# not say it.
UNKNOWN: Final = Primary("", "")


class OpenConnections:
    """Our connections, each with the primary that it was opened to."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._primaries: WeakKeyDictionary[Connection, Primary] = WeakKeyDictionary()
        self._refused_since = self._refused_at = float("-inf")
        """Since when connections are refused, and when the last one was."""

    def add(self, connection: Connection, primary: Primary) -> None:
        """Add a new connection, and cut those to a primary that this one replaces.

        Raises `Unreachable` while a connection lives to one that replaces this one: a balancer that
        leads to both must not have us change again and again. Without such a connection the newer
        one may be gone for good, as after a restore. So it may where nothing has led to it for
        `REFUSED_SECONDS`: a server that has frozen keeps its connections.
        """
        known = tuple(self._primaries.items())
        newer = [other for other, each in known if each.replaces(primary) and not is_lost(other)]
        if newer:
            self._require_gone()
        self._refused_at = float("-inf")
        for other in (*newer, *(other for other, each in known if primary.replaces(each))):
            terminate(other)
        self._primaries[connection] = primary

    def _require_gone(self) -> None:
        """Raise `Unreachable` unless connections have been refused for long, and none went through."""
        now = self._clock_seconds()
        if now - self._refused_at > REFUSED_AGAIN_SECONDS:
            self._refused_since = now
        self._refused_at = now
        if now - self._refused_since < REFUSED_SECONDS:
            raise Unreachable(REPLACED)

    def cut(self) -> None:
        """Cut every connection, idle or in use."""
        for connection in tuple(self._primaries):
            terminate(connection)
