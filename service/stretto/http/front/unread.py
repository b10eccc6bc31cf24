"""Answers that wait in the process until their clients read them: bounded, of all clients together.

A client has one such answer at a time, and some 30 s to read it. But one page of groups may have
2 MB: a thousand connections of one user who reads none of them would take all of the memory.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from stretto.telemetry.logs import logger

# Of the largest pages, sixty. Other answers fit into the kernel's buffers.
UNREAD_BYTES_MAX: Final = 128 * 2**20
# Less is not counted: the number of connections bounds it. A session's client has less.
COUNTED_BYTES_MIN: Final = 64 * 1024
# How much is left when some were cut off: to find those that have most takes a look at all.
LEFT_SHARE: Final = 0.75


class UnreadClient(Protocol):
    """A connection whose client has not read all."""

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
        """What is kept for each; the longest wait first."""
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
        """Cut those off that have most to read: a client that reads has less with time."""
        for client in sorted(self._bytes_of, key=lambda each: each.unread_bytes, reverse=True):
            if self._bytes <= self._bytes_max * LEFT_SHARE:
                return
            logger.info("request.cut_off", reason="not_read")
            self.forget(client)
            # Not at once: this may be called while the answer to that very client is written.
            asyncio.get_running_loop().call_soon(client.close_at_once)
