"""How clients are connected, and how sessions are opened and kept alive."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.setting import setting


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """How sessions are opened and kept alive."""

    heartbeat_seconds: float = setting(
        25.0, "how often a silent session is given a sign of life", ge=1, le=3600
    )
    """Below the minute after which proxies drop an idle connection. A position goes with it."""
    origins: frozenset[str] = setting(
        frozenset(),
        "origins whose pages may call the service (CORS), beside its own, such as"
        " https://chat.example, separated by commas; *: any origin",
    )
    """As browsers send them: in lower case, without a slash at the end or a default port."""
