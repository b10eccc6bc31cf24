"""Which primary our connections lead to: those to one that a standby has replaced are cut.

A primary that goes on running after the promotion keeps the connections that it has, and answers reads
from them, without what was written since. The standby that replaced it has the same identifier, and
a timeline of a higher number. So our first connection there shows it.

The older one serves again only where the newer one shows no life: it opens no connection of ours, answers
no statement, and refuses none as a server does that lives. Such a server is full, or has other passwords.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary

from stretto.postgres.driver_connection import is_lost, terminate
from stretto.postgres.driver_errors import is_refusal
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stretto.postgres.driver_connection import DriverConnection
    from stretto.postgres.host_failures import Host

# While connections to an older primary are refused, ours are tried again and again. A newer one that lives
# has shown it by then; else it is gone, or has frozen.
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


def replaced_last(primaries: Mapping[Host, Primary]) -> list[Host]:
    """Return the hosts in their order, but last those whose primary another one has replaced."""

    def is_replaced(host: Host) -> bool:
        return any(each.replaces(primaries[host]) for each in primaries.values())

    return sorted(primaries, key=is_replaced)


class OpenConnections:
    """Our connections, each with the primary that it was opened to."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._primaries: WeakKeyDictionary[DriverConnection, Primary] = WeakKeyDictionary()
        self._leads_to: dict[Host, Primary] = {}
        """Where each host has led last, also with a connection that was refused here."""
        self._lived_at: dict[Primary, float] = {}
        """When each primary has last opened a connection, refused one, or answered one that was lost."""
        self._refused_since = self._refused_at = float("-inf")
        """Since when connections are refused, and when the last one was."""
        self.losses = 0
        """How many connections have ended, for whatever reason."""

    def add(self, connection: DriverConnection, primary: Primary, host: Host) -> None:
        """Add a new connection, and cut those to a primary that this one replaces.

        Raises `Unreachable` while a primary lives that replaces this one: a balancer that leads to
        both must not have us change again and again. It may be gone for good, as after a restore: so
        it counts as gone where it has shown no life for `REFUSED_SECONDS`. A server that has frozen
        keeps its connections: they are asked.
        """
        self._leads_to[host] = primary
        known = tuple(self._primaries.items())
        newer = [other for other, each in known if each.replaces(primary)]
        signs = [at for each, at in self._lived_at.items() if each.replaces(primary)]
        self._require_gone(newer, [*signs, *(other.answered_at for other in newer)])
        for other in (*newer, *(other for other, each in known if primary.replaces(each))):
            terminate(other)
        self._primaries[connection] = primary
        self._lived_at[primary] = self._clock_seconds()
        # It is given a pool's handle of the connection.
        connection.add_termination_listener(lambda _: self._note_losses())

    @property
    def newer_seen(self) -> Primary | None:
        """The newest primary seen that replaces one to which a connection leads; None where none does."""
        serving = self._serving()
        replacing = (each for each in self._lived_at if any(map(each.replaces, serving)))
        return max(replacing, default=None)

    def are_replaced_by(self, primary: Primary) -> bool:
        """Whether a connection leads to a primary that this one replaces."""
        return any(map(primary.replaces, self._serving()))

    def note_failure(self, host: Host, error: Exception) -> None:
        """Note why a host gives no connection: a server that lives may refuse it.

        After any other failure it may be another server, whose refusals say nothing of the one before.
        """
        if not is_refusal(error):
            self._leads_to.pop(host, None)
        elif host in self._leads_to:
            self._lived_at[self._leads_to[host]] = self._clock_seconds()

    def _require_gone(self, newer: list[DriverConnection], lived_at: list[float]) -> None:
        """Raise `Unreachable` if newer primaries, to which these lead, have lived within the last seconds."""
        now = self._clock_seconds()
        if newer:
            if now - self._refused_at > REFUSED_AGAIN_SECONDS:
                self._refused_since = now
            self._refused_at = now
            lived_at.append(self._refused_since)
            for other in newer:
                other.ask()
        if any(now - at < REFUSED_SECONDS for at in lived_at):
            raise Unreachable(REPLACED)

    def _serving(self) -> set[Primary]:
        """Return the primaries to which living connections lead."""
        # One that was cut is removed in the next turn of the event loop.
        known = tuple(self._primaries.items())
        return {primary for connection, primary in known if not is_lost(connection)}

    def _note_losses(self) -> None:
        self.losses += 1
        for connection, primary in tuple(self._primaries.items()):
            if is_lost(connection):
                del self._primaries[connection]
                self._lived_at[primary] = max(self._lived_at[primary], connection.answered_at)

    def cut(self) -> None:
        """Cut every connection, idle or in use."""
        for connection in tuple(self._primaries):
            terminate(connection)
