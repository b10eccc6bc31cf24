"""Sheds creations at the door, while more of them wait than the writers get done.

Under three times the load that a process can bear, most of what it does is to say no. So no is said
before a request is even parsed: no token is verified, no body decoded, no task begun. That costs an
eighth of a creation. And no more is said in one turn of the loop than takes a part of a batch's time:
the writers have their turn in between, however many come.

Nothing but a plain creation is shed here. Whatever is asked in another way, or asks for something
else, goes its usual way; a creation is then shed where it would be queued.

Whoever is shed comes again, and where many were shed at once, those who come again would alone be
more than can be refused: an overload that nobody causes any more would not end. So the pause that
they are asked for grows while more are shed than let in.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp import hdrs
from aiohttp.helpers import rfc822_formatted_time

from stretto.errors import Overloaded
from stretto.http.answers import written
from stretto.http.problems import COMMON_FIELDS, problem_response

if TYPE_CHECKING:
    from collections.abc import Callable

# They take the loop 5 ms, a quarter of what a batch of 128 creations does.
ANSWERS_PER_TURN: Final = 256
SHED_STATUS: Final = HTTPStatus.SERVICE_UNAVAILABLE
PAUSE_SECONDS_MIN: Final = 1
PAUSE_SECONDS_MAX: Final = 16


class ShedClient(Protocol):
    """A connection whose request was shed."""

    def tell(self, answer: bytes) -> None:
        """Send it the answer, unless it has it or is gone."""


class LoadShedder:
    """Lets in as many creations as find room in the writers' mailbox, and answers the others."""

    def __init__(
        self,
        queued: Callable[[], int],
        queued_max: int,
        count: Callable[[], None],
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._untold: deque[ShedClient] = deque()
        self._queued = queued
        self._queued_max = queued_max
        self._count = count
        self._coming = 0
        """Creations that the parser has accepted, and that are not worked for yet: hundreds can be,
        since a loop reads all that has arrived before it works for any of it. Each connection counts
        one at most, and gives its place back when it begins to work or closes."""
        self._clock_seconds = clock_seconds
        self._pause_seconds = PAUSE_SECONDS_MIN
        self._judge_at = float("-inf")
        """When those who were told the pause last are back."""
        self._let_in = self._kept_out = 0
        """Creations, since the pause was last judged."""
        self._answer = _answer(self._pause_seconds)
        """What is told to whoever is shed, but for the date."""

    @property
    def answer(self) -> bytes:
        """What is told to whoever is shed, at this time."""
        return self._answer % rfc822_formatted_time().encode()

    def has_room(self) -> bool:
        """Return whether one more creation finds room in the mailbox."""
        return self._coming + self._queued() < self._queued_max

    def admit(self) -> None:
        """Count a creation that will be worked for, until `arrived` is called for it."""
        self._coming += 1
        self._let_in += 1

    def shed(self, client: ShedClient) -> None:
        """Have a client be told in its turn that there is no room."""
        self._count()
        self._kept_out += 1
        if not self._untold:
            self._loop.call_soon(self._tell_some)
        self._untold.append(client)

    def _tell_some(self) -> None:
        now = self._clock_seconds()
        if now >= self._judge_at:
            self._judge_pause(now)
        answer = self.answer
        for _ in range(min(ANSWERS_PER_TURN, len(self._untold))):
            self._untold.popleft().tell(answer)
        if self._untold:
            self._loop.call_soon(self._tell_some)

    def _judge_pause(self, now: float) -> None:
        """Ask for a longer pause while more are kept out than let in; for a shorter one again later."""
        if now > self._judge_at + self._pause_seconds:
            # Nobody was shed for a while: that was another overload.
            self._pause_seconds = PAUSE_SECONDS_MIN
        elif self._kept_out > self._let_in:
            self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)
        elif self._kept_out < self._let_in // 2:
            self._pause_seconds = max(self._pause_seconds // 2, PAUSE_SECONDS_MIN)
        self._answer = _answer(self._pause_seconds)
        self._let_in = self._kept_out = 0
        self._judge_at = now + self._pause_seconds

    def arrived(self) -> None:
        """Take note that a creation is worked for, or that its client has gone."""
        self._coming -= 1


def _answer(pause_seconds: int) -> bytes:
    """Return the answer as it is sent, with a place for its date: as any other that tells of overload."""
    response = problem_response(Overloaded(retry_after_seconds=pause_seconds))
    assert isinstance(response.body, bytes)
    # The rest comes in the order in which aiohttp and `connection.py` add it.
    fields: dict[str, object] = {**response.headers, **COMMON_FIELDS}
    fields[hdrs.CONTENT_LENGTH] = len(response.body)
    answer = written(SHED_STATUS, fields, response.body).replace(b"%", b"%%")
    return answer.replace(b"\r\n\r\n", b"\r\nDate: %b\r\n\r\n", 1)
