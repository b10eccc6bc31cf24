"""DeletionOrder: whose deletion is next, where a turn has no time for all.

There are two kinds of owners. Known are those who have had a deletion lately. The one whose last is
longest ago comes first: so who asks again at once comes after those who were left meanwhile. The
others come in the order of the mailbox, newcomers before what was put back: so a newcomer waits for
one turn, however many others are slow.

While both kinds wait, each has half of the time. If known owners had all of it, what was put back
would never be done. If the others had, a known owner would wait for each of many who are slow.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stretto.domain import UserId

Work = TypeVar("Work")


class DeletionOrder(Generic[Work]):
    """The work of one turn after the other."""

    def __init__(self, known_seconds: float) -> None:
        """Take for how long an owner is known after a deletion: as long as another may wait."""
        self._known_seconds = known_seconds
        self._last_at: dict[UserId, float] = {}
        """Of known owners, when their last deletion has ended; the latest at the end."""
        self._known: list[tuple[float, int, UserId, Work]] = []
        """A heap of their work, with its place in the batch; the owner may have had another since."""
        self._others: deque[tuple[int, Work]] = deque()
        """The work of others."""
        self._lead_seconds = 0.0
        """How much more time known owners have had than others, while both have waited."""
        self._lead_sign = 0
        """Of the work that was taken last: 1 or -1, and 0 where one kind waits alone."""

    def __bool__(self) -> bool:
        return bool(self._known or self._others)

    def begin(self, batch: Iterable[tuple[UserId, Work]], now: float) -> None:
        """Begin a turn with the work of a batch."""
        while self._last_at:
            owner, last_at = next(iter(self._last_at.items()))
            if last_at > now - self._known_seconds:
                break
            del self._last_at[owner]
        self._known, self._others = [], deque()
        for place, (owner, work) in enumerate(batch):
            if owner in self._last_at:
                self._known.append((self._last_at[owner], place, owner, work))
            else:
                self._others.append((place, work))
        heapify(self._known)

    def take(self) -> Work:
        """Remove and return what is next, if there is anything."""
        if not (self._known and self._others):
            self._lead_seconds, self._lead_sign = 0.0, 0
        else:
            self._lead_sign = -1 if self._lead_seconds > 0 else 1
        if not self._known or self._lead_sign < 0:
            return self._others.popleft()[1]
        while True:
            since, place, owner, work = self._known[0]
            last_at = self._last_at[owner]
            if since == last_at:
                heappop(self._known)
                return work
            heapreplace(self._known, (last_at, place, owner, work))

    def note(self, owner: UserId, began: float, ended: float) -> None:
        """Note that a deletion of this owner has ended, whatever its result."""
        self._last_at.pop(owner, None)
        self._last_at[owner] = ended
        self._lead_seconds += (ended - began) * self._lead_sign

    def take_rest(self) -> list[Work]:
        """Remove and return what this turn has no time for, in the order of the batch."""
        rest = dict(self._others)
        rest |= {place: work for _, place, _, work in self._known}
        self._known, self._others = [], deque()
        return [rest[place] for place in sorted(rest)]
