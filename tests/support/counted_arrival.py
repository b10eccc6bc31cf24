"""What a service in this process counts of what its clients have sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.http.front.connection import ClientConnection
from support.waiting import until

if TYPE_CHECKING:
    import asyncio

    import pytest

    from stretto.http.front.arrived import ArrivedRequests

# Some times as long as a busy machine needs.
COUNTED_SECONDS = 15


class Counted:
    """The service's side of all connections."""

    def __init__(self) -> None:
        self.clients: list[ClientConnection] = []

    @property
    def arrived(self) -> ArrivedRequests:
        """What is counted of all of them."""
        return self.clients[0]._arrived

    async def until_all(self, count: int) -> None:
        """Wait until so many bytes are counted."""
        await until(lambda: bool(self.clients) and self.arrived.bytes == count, COUNTED_SECONDS)


def watched_connections(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Return the connections of a service that starts after this call."""
    seen = Counted()
    make = ClientConnection.connection_made

    def connection_made(client: ClientConnection, transport: asyncio.BaseTransport) -> None:
        make(client, transport)
        seen.clients.append(client)

    monkeypatch.setattr(ClientConnection, "connection_made", connection_made)
    return seen
