"""Paces: how quickly the host's `authorize` has answered for an owner the last time.

A host may ask a service that is slow for some of its owners, and yet in time. A thousand of their requests
would take every call that a process may have under way. So owners for whom it was slow leave half
of the calls to the others, and owners of whom nothing is known leave a quarter to those for whom it was
quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stretto.domain import UserId

# With all calls taken for so long each, more requests would be allowed than a process can create groups.
SLOW_SECONDS: Final = 0.5
# Owners of either kind, who are forgotten apart: the slow ones may be many. Each costs some 100 bytes.
OWNERS_MAX: Final = 16_384


class Paces:
    """Owners, in a bounded number."""

    def __init__(self) -> None:
        self._quick: dict[UserId, None] = {}
        self._slow: dict[UserId, None] = {}
        """The latest at the end, of both."""

    def note(self, owner: UserId, seconds: float) -> None:
        """Note that the host has said something in that time, whatever it was."""
        self._quick.pop(owner, None)
        self._slow.pop(owner, None)
        alike = self._slow if seconds >= SLOW_SECONDS else self._quick
        alike[owner] = None
        if len(alike) > OWNERS_MAX:
            del alike[next(iter(alike))]

    def left_to_others(self, owner: UserId, calls: int) -> int:
        """Return how many of so many calls this owner leaves to owners who are quicker."""
        if owner in self._quick:
            return 0
        return calls // 2 if owner in self._slow else calls // 4
