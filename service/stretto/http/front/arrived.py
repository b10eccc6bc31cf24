"""Requests that have arrived and are not worked on yet: bounded, of all clients together.

A body has 256 KiB at most, but thousands of them may be under way at once: some thousand connections
of one user that never send the last byte, or send all at once and wait for their turns to be parsed,
would take all of the memory. Beyond the bound, requests are refused, first those of the user whose
bodies hold most (`fair_bytes.py`).

Counted is all that a connection has for requests that no work has taken over: the body that is being
read, also as it is decompressed, what is queued behind it, and what is not parsed. Heads count until
they are answered, with what they take in memory: a stranger may send thousands of 30 KB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from stretto.codec import BODY_BYTES_MAX, LARGE_BODY_BYTES
from stretto.http.front.fair_bytes import ClientOfUser, FairBytes

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of the largest bodies, 512. In memory they take a tenth more.
ARRIVED_BYTES_MAX: Final = 128 * 2**20
# Less is not counted: 10,000 connections have 80 MiB of it. Nearly all creations are smaller.
COUNTED_BYTES_MIN: Final = LARGE_BODY_BYTES
# Users who hold no more are equal: one with a body or two is not refused for another one's hundreds.
USER_BYTES_MIN: Final = 2 * BODY_BYTES_MAX


class ArrivingClient(ClientOfUser, Protocol):
    """A connection on which requests arrive."""

    @property
    def arrived_bytes(self) -> int:
        """What has arrived and is not worked on yet."""

    @property
    def is_in_head(self) -> bool:
        """Whether the rest of a head is all that is waited for."""

    def refuse_arrived(self) -> None:
        """Answer that with an error, and drop it."""


class ArrivedRequests(FairBytes[ArrivingClient]):
    """The clients of which much has arrived."""

    reason = "too_many_bodies"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            bytes_max, counted_bytes_min=COUNTED_BYTES_MIN, user_bytes_min=USER_BYTES_MIN
        )

    def note(self, client: ArrivingClient) -> None:
        """Note how much a client has sent; where that is too much in all, refuse some."""
        self._count(client, client.arrived_bytes)

    def _sorted(self, clients: Iterable[ArrivingClient]) -> list[ArrivingClient]:
        """Those that wait for the rest of a head, the first one first; then the one that came last first.

        Whose head they are is not known yet. A user's is complete soon, even over a slow link, and others
        wait for as long as they may. A body takes longer: if the first ones gave way, no slow one
        would come to its end while there are too many.
        """
        in_head = [client for client in clients if client.is_in_head]
        return in_head + [client for client in reversed([*clients]) if not client.is_in_head]

    def _end(self, client: ArrivingClient) -> None:
        # At once: in one turn of the loop, thousands of connections may be read.
        client.refuse_arrived()
