"""Answers that wait in the process until their clients read them: bounded, of all clients together.

A client has one such answer at a time, and some 30 s to read it. But one page of groups may have
2 MB: a thousand connections of one user who reads none of them would take all of the memory.

The user whose answers hold most is cut off first. By what is left to read alone, one user could take
all of the bound with answers of which it has read nearly all: each newcomer has more to read.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from stretto.domain import UserId

# Of the largest pages, sixty. Other answers fit into the kernel's buffers.
UNREAD_BYTES_MAX: Final = 128 * 2**20
# Less is not counted: the number of connections bounds it. A session's client has less.
COUNTED_BYTES_MIN: Final = 64 * 1024
# How much is left when some were cut off: to find those that have most takes a look at all.
LEFT_SHARE: Final = 0.75
# About the largest page. Users who hold no more are equal: whose page is larger is chance.
USER_BYTES_MIN: Final = 2 * 2**20


class UnreadClient(Protocol):
    """A connection whose client has not read all."""

    @property
    def user(self) -> UserId | None:
        """Whose answer it is; None if its request has no token that is known."""

    @property
    def unread_bytes(self) -> int:
        """What waits in the process."""

    @property
    def held_bytes(self) -> int:
        """What is kept in memory for that."""

    def close_at_once(self) -> None:
        """Close and drop what waits."""


class UnreadAnswers:
    """The clients that have much to read."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes_of: dict[UnreadClient, int] = {}
        """What is kept for each; those that have waited longest first."""
        self._bytes = 0
        """All of that."""

    def note(self, client: UnreadClient) -> None:
        """Note that a client has not read all; where too much waits, cut some clients off."""
        count = client.held_bytes
        if count < COUNTED_BYTES_MIN:
            return
        self._bytes_of[client] = count
        self._bytes += count
        if self._bytes > self._bytes_max:
            self._cut_off()

    def forget(self, client: UnreadClient) -> None:
        """Note that a client has read all, or has gone."""
        self._bytes -= self._bytes_of.pop(client, 0)

    def _cut_off(self) -> None:
        """Cut clients off until enough is free."""
        for client in self._in_order():
            if self._bytes <= self._bytes_max * LEFT_SHARE:
                return
            logger.info("request.cut_off", reason="not_read")
            self.forget(client)
            # Not at once: this may be called while the answer to that very client is written.
            asyncio.get_running_loop().call_soon(client.close_at_once)

    def _in_order(self) -> list[UnreadClient]:
        """Return all in the order to cut them off: at each step, one of the user who holds most.

        Of one user's, and of all whose users hold little, it is the one that has most to read: a
        client that reads has less with time.
        """
        clients = sorted(self._bytes_of, key=lambda each: each.unread_bytes, reverse=True)
        held_by: Counter[UserId | None] = Counter()
        beyond: dict[UnreadClient, int] = {}
        for client in reversed(clients):
            # All without a user count as one. What they get is small, but thousands of connections
            # that count one by one could fill the bound, and cut each user off who gets a page.
            held_by[client.user] += self._bytes_of[client]
            beyond[client] = max(held_by[client.user] - USER_BYTES_MIN, 0)
        # Where that is equal, the order stays.
        return sorted(clients, key=beyond.__getitem__, reverse=True)
