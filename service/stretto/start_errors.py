"""What keeps a component or a service from starting."""

from __future__ import annotations

from typing import Final

# How a process ends that cannot reach its database, or NATS. Another start may.
EXIT_UNREACHED: Final = 3
# And one whose settings, schema or rights do not fit.
EXIT_UNFIT: Final = 2


class ConfigurationError(Exception):
    """The service cannot start with these settings, or on this schema; the message lists every error."""


class ListenError(Exception):
    """The service cannot listen on the address; the message says which and why."""


class BusError(Exception):
    """NATS does not answer, or refuses us; the message says why."""


class WorkersError(Exception):
    """No worker process can be started; the message says how the last one ended."""


class EmbeddedError(Exception):
    """An embedded PostgreSQL or NATS cannot run here; the message says what to do."""
