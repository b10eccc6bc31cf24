"""Reach: whether connections to the webhook's endpoint can be opened from this process.

While they cannot, a sender begins one try at a time: another process may reach the endpoint, and must
find the events due. A connection that opens ends that, whatever becomes of its request: the endpoint
may hang for some owners' events. Nothing here sends anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.webhook.rules import Cut, Unreached

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.webhook.ports import Endpoint
    from stretto.webhook.rules import Verdict

# After so many connections in a row that could not be opened, the endpoint is away.
UNREACHED_MAX: Final = 8


class Reach:
    """What a sender's tries show of the way to its endpoint."""

    def __init__(
        self, endpoint: Endpoint, clock_seconds: Callable[[], float], *, try_seconds: float
    ) -> None:
        """Take how long other processes need to find an event due."""
        self._endpoint = endpoint
        self._clock_seconds = clock_seconds
        self._try_seconds = try_seconds
        self._unreached = 0
        """How many of the newest tries in a row have not reached the endpoint."""
        self._opened_before = 0
        """How many connections were opened before the last of these."""
        self._tried_at = float("-inf")

    @property
    def is_away(self) -> bool:
        """Whether one try at a time is enough."""
        return self._unreached >= UNREACHED_MAX and not self._has_opened

    @property
    def may_try(self) -> bool:
        """Whether an endpoint that is away may be tried now."""
        return self._clock_seconds() >= self._tried_at + self._try_seconds

    @property
    def _has_opened(self) -> bool:
        return self._endpoint.connections_opened > self._opened_before

    def note_begun(self) -> None:
        """Note that a try begins."""
        self._tried_at = self._clock_seconds()

    def note(self, verdict: Verdict) -> None:
        """Note how a try has ended."""
        match verdict:
            case Cut():
                # It may have been waiting for its connection.
                pass
            case Unreached():
                self._unreached = 1 if self._has_opened else self._unreached + 1
                self._opened_before = self._endpoint.connections_opened
                # Also now: another process needs that long to find the event due.
                self._tried_at = self._clock_seconds()
            case _:
                self._unreached = 0
