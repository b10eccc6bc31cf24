"""Takes a refused batch apart, by halves: it is not said which of its requests was refused.

A half without a refused request is written together. What was led in vain is charged to the owners
of the refused requests (`breakers.py`). After `APART_SECONDS_MAX` the rest makes room for others that
wait.

Owners of whom none was refused lately are the first half. So a newcomer does not wait until those
are found who are refused again and again. In the other half, the owner comes first whose last
refusal is the longest ago.

If the last refused batch had no time for all, many are refused: after the first half one request
is led alone, and after each success twice as many. So each refused one costs one statement.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from stretto.creation.apart import APART_SECONDS_MAX
from stretto.creation.ports import Led, SettledAsFailed
from stretto.creation.requests import age_order, has_several_owners, lead_order, result_of
from stretto.store_errors import HookError, RefusedAgain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stretto.creation.breakers import OwnerBreakers
    from stretto.creation.ports import Write, WriteRequest, WriteResult
    from stretto.domain import UserId
    from stretto.runtime.mailbox import Mailbox


class Halves:
    """Yields parts of a batch to lead, and the halves of each part that is refused; use once."""

    def __init__(
        self,
        batch: Sequence[WriteRequest],
        started: float,
        breakers: OwnerBreakers,
        mailbox: Mailbox[Write, WriteResult],
    ) -> None:
        """Take the time at which the lead of the whole batch began; the mailbox as `OneByOne` does."""
        self._batch = batch
        self._breakers = breakers
        self._mailbox = mailbox
        self._began = breakers.clock_seconds()
        self._since = started
        self._wasted_seconds = 0.0
        self._refusable = self._count_refusable()
        self._parts: list[Sequence[WriteRequest]] = []
        self._part: Sequence[WriteRequest]
        self._part, unrefused = self._in_turn()
        """The part that is being led; empty once it is split."""
        # 0, so split in the middle, if all or none of the owners were refused lately.
        self.split(unrefused % len(batch))
        self._has_unrefused = 0 < unrefused < len(batch)
        self._are_many = breakers.are_many_refused

    def __iter__(self) -> Iterator[Sequence[WriteRequest]]:
        size, is_first = 1, self._has_unrefused
        while self._parts and not self._is_late():
            self._since = self._breakers.clock_seconds()
            part = self._parts.pop()
            if self._are_many and not is_first and size < len(part):
                self._parts.append(part[size:])
                part = part[:size]
            self._part = part
            yield sorted(part, key=lead_order)
            if isinstance(result_of(part[0]), SettledAsFailed):
                self._wasted_seconds += self._breakers.clock_seconds() - self._since
                size = 1
            elif self._part and not is_first:
                size = 2 * len(part)
            is_first = False
        self._breakers.are_many_refused = bool(self._parts)

    def rest(self) -> list[WriteRequest]:
        """Return the requests for which no time was left, those first that would be led next."""
        return list(chain.from_iterable(reversed(self._parts)))

    def split(self, middle: int = 0) -> None:
        """Replace the part that was refused by its halves, or by what is before `middle` and after."""
        self._wasted_seconds += self._breakers.clock_seconds() - self._since
        middle = middle or len(self._part) // 2
        self._parts += [self._part[middle:], self._part[:middle]]
        self._part = []

    def charge(self) -> None:
        """Charge the owners of refused requests with the time lost, if they had neighbours."""
        if not has_several_owners(self._batch):
            return
        results = [(request.message, result_of(request)) for request in self._batch]
        refused = [(write, it.is_veto) for write, it in results if isinstance(it, SettledAsFailed)]
        for write, is_veto in refused:
            kind = HookError if is_veto else RefusedAgain
            error = kind("groups of this owner are refused again and again")
            self._breakers.charge(write, self._wasted_seconds / len(refused), error)

    def _is_late(self) -> bool:
        """Whether the requests that are left must make room for others that wait.

        Not before one is answered that was not led: the same rest would be refused again and again.
        """
        is_over = self._breakers.clock_seconds() - self._began >= APART_SECONDS_MAX
        return is_over and len(self._mailbox) > 0 and self._count_refusable() < self._refusable

    def _count_refusable(self) -> int:
        """Count the requests that were led, or have no answer yet."""
        return sum(
            not request.answered.done() or isinstance(result_of(request), Led)
            for request in self._batch
        )

    def _in_turn(self) -> tuple[list[WriteRequest], int]:
        """Return the requests in the order of their turns, and of how many the owner was not refused.

        By the last refusal; then of each owner its first request, then of each its second; the
        oldest first. In the order of the groups' ids, a high one would be put back for as long as
        others are refused.
        """
        ranks: Counter[UserId] = Counter()
        order: list[tuple[float, int, WriteRequest]] = []
        for request in sorted(self._batch, key=age_order):
            owner = request.message.new_group.owner
            order.append((self._breakers.refused_at(owner), ranks[owner], request))
            ranks[owner] += 1
        order.sort(key=lambda each: each[:2])
        return [each[2] for each in order], sum(math.isinf(each[0]) for each in order)
