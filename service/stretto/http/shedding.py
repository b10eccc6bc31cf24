"""Sheds creations at the door, while more of them wait than the writers get done.

Under three times the load that a process can bear, most of what it does is to say no. So no is said
when a request has been read and before anything else is done with it: no token is verified, no body
decoded, no task begun. That costs a fifth of a creation. And no more is said in one turn of the loop
than takes about as long as a batch: the writers have their turn in between, however many come.

Nothing but a plain creation is shed here. Whatever is asked in another way, or asks for something
else, goes its usual way; a creation is then shed where it would be queued.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from stretto.errors import Overloaded
from stretto.http.problems import problem_response

if TYPE_CHECKING:
    from collections.abc import Callable

# About as long as what a batch of 128 takes of the loop, at a fifth of the price each.
ANSWERS_PER_TURN: Final = 256
SHED_STATUS: Final = HTTPStatus.SERVICE_UNAVAILABLE
RETRY_AFTER_SECONDS: Final = 1


class ShedClient(Protocol):
    """A connection whose request was shed."""

    def tell(self, answer: bytes) -> None:
        """Send it the answer, unless it has it or is gone."""


class LoadShedder:
    """Lets in as many creations as find room in the writers' mailbox, and answers the others."""

    def __init__(
        self, queued: Callable[[], int], queued_max: int, count: Callable[[], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._untold: deque[ShedClient] = deque()
        self._queued = queued
        self._queued_max = queued_max
        self._count = count
        self._coming = 0
        """Creations that were let in, and are not in the mailbox yet: hundreds can be, since a loop
        reads all that has arrived before it works for any of it."""
        self.answer = _answer()
        """What is told to whoever is shed."""

    def has_room_for(self, clients: int) -> bool:
        """Whether each of so many clients could ask now and still find room."""
        return self._queued() + clients < self._queued_max

    def admit(self) -> bool:
        """Let a creation in, if there is room, until `arrived` is called for it."""
        is_admitted = self._coming + self._queued() < self._queued_max
        self._coming += is_admitted
        return is_admitted

    def shed(self, client: ShedClient) -> None:
        """Have a client be told in its turn that there is no room."""
        self._count()
        if not self._untold:
            self._loop.call_soon(self._tell_some)
        self._untold.append(client)

    def _tell_some(self) -> None:
        for _ in range(min(ANSWERS_PER_TURN, len(self._untold))):
            self._untold.popleft().tell(self.answer)
        if self._untold:
            self._loop.call_soon(self._tell_some)

    def arrived(self) -> None:
        """Take note that a creation is worked for, or that its client has gone."""
        self._coming -= 1


def _answer() -> bytes:
    """Return the answer as it is sent: the same as any other that tells of overload."""
    response = problem_response(Overloaded(retry_after_seconds=RETRY_AFTER_SECONDS))
    head = [f"HTTP/1.1 {SHED_STATUS} {SHED_STATUS.phrase}"]
    head += [f"{name}: {value}" for name, value in response.headers.items()]
    assert isinstance(response.body, bytes)
    return (
        "\r\n".join([*head, f"Content-Length: {len(response.body)}", "", ""]).encode()
        + response.body
    )
