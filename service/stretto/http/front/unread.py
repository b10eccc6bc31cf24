"""Answers that wait in the process until their clients read them: bounded, of all clients together.

A client has one such answer at a time, and some 30 s to read it. But one page of groups may have
2 MB: a thousand connections of one user who reads none of them would take all of the memory.

The user whose answers hold most is cut off first (`fair_bytes.py`). By what is left to read alone,
one user could take all of the bound with answers of which it has read nearly all: each newcomer has
more to read.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from stretto.http.front.fair_bytes import ClientOfUser, FairBytes

if TYPE_CHECKING:
    from collections.abc import Iterable

# Of the largest pages, sixty. Other answers fit into the kernel's buffers.
UNREAD_BYTES_MAX: Final = 128 * 2**20
# Less is not counted: 10,000 connections have 40 MiB of it.
COUNTED_BYTES_MIN: Final = 4 * 1024
# About the largest page. Users who hold no more are equal: whose page is larger is chance.
USER_BYTES_MIN: Final = 2 * 2**20


class UnreadClient(ClientOfUser, Protocol):
    """A connection whose client has not read all."""

    @property
    def unread_bytes(self) -> int:
        """What waits in the process."""

    @property
    def held_bytes(self) -> int:
        """What is kept in memory for that."""

    def close_at_once(self) -> None:
        """Close and drop what waits."""


class UnreadAnswers(FairBytes[UnreadClient]):
    """The clients that have much to read; one that has read all is forgotten."""

    reason = "not_read"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            bytes_max, counted_bytes_min=COUNTED_BYTES_MIN, user_bytes_min=USER_BYTES_MIN
        )

    def note(self, client: UnreadClient) -> None:
        """Note that a client has not read all; where too much waits, cut some clients off."""
        self._count(client, client.held_bytes)

    def _sorted(self, clients: Iterable[UnreadClient]) -> list[UnreadClient]:
        """The one that has most to read first: a client that reads has less with time."""
        return sorted(clients, key=lambda each: each.unread_bytes, reverse=True)

    def _end(self, client: UnreadClient) -> None:
        # Not at once: this may be called while the answer to that very client is written.
        asyncio.get_running_loop().call_soon(client.close_at_once)
