"""Ports for the servers that tests start: no connection gets them, no two of a process are the same."""

from __future__ import annotations

import random
import socket
from contextlib import suppress
from typing import Final

# Below those that systems give to connections and to sockets that ask for any port: one of those would
# be taken now and then between the choice and its use, or while its server is down for a moment. And a
# client that asks there for a server that is down would in rare cases connect to itself.
PORTS: Final = (20_000, 32_000)
# Not the generator that tests seed: all workers of a run would choose the same.
_DICE: Final = random.SystemRandom()
_given: Final = set[int]()


def free_port() -> int:
    """Return a port that nothing listens on, and that was not returned before."""
    while True:
        port = _DICE.randrange(*PORTS)
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
