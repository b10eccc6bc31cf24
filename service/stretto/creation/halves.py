"""Takes a refused batch apart, by halves: it is not said which of its requests was refused.

A half without a refused request is written together. What was led in vain is charged to the owners
of the refused requests (`breakers.py`). After `APART_SECONDS_MAX` the rest makes room for others that
wait, and after `OWNER_SECONDS_MAX` for owners who are reliable: each refusal may take long.

Owners of whom none was refused lately come first. So a newcomer does not wait until those are found
who are refused again and again. Among these, the owner comes first whose last refusal is the longest
ago. Where ever new owners are refused, that does not distinguish them. So the owners who are
known, or else those who are proven (`proofs.py`), are a part of their own, before the newcomers.

If the last refused batch had no time for all, many are refused: the next one is not led as a whole
(`batch.py`). After the part of the proven one request is led alone, and after each success twice as
many, up to a few. So each refused one costs one statement. The same is done where the refusal of the whole batch
took long: by halves, it would take several times as long to find one. Then the newest come first in
every other batch: an innocent newcomer does not wait for all who came before and are refused.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Final

from stretto.creation.apart import APART_SECONDS_MAX
from stretto.creation.breakers import OWNER_SECONDS_MAX
from stretto.creation.ports import Led, SettledAsFailed
from stretto.creation.requests import age_order, has_several_owners, lead_order, result_of
from stretto.store_errors import HookError, RefusedAgain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stretto.creation.breakers import OwnerBreakers
    from stretto.creation.ports import Write, WriteRequest, WriteResult
    from stretto.domain import UserId
    from stretto.runtime.mailbox import Mailbox

# While requests go one by one. A refused one among them is found after four refusals, each of which may
# take long, and others cannot have their turn before.
TOGETHER_MAX: Final = 8


class Halves:
    """Yields parts of a batch to lead, and the halves of each part that is refused; use once."""

    def __init__(
        self,
        batch: Sequence[WriteRequest],
        started: float | None,
        breakers: OwnerBreakers,
        mailbox: Mailbox[Write, WriteResult],
    ) -> None:
        """Take the time at which the lead of the whole batch began, if it was led as a whole.

        Take the mailbox as `OneByOne` does.
        """
        self._batch = batch
        self._breakers = breakers
        self._mailbox = mailbox
        self._began = self._since = breakers.clock_seconds()
        self._wasted_seconds = 0.0 if started is None else self._began - started
        is_slow = self._wasted_seconds >= OWNER_SECONDS_MAX
        self._is_one_by_one = breakers.are_many_refused or is_slow
        breakers.are_newest_first = self._is_one_by_one and not breakers.are_newest_first
        self._refusable = self._count_refusable()
        self._parts: list[Sequence[WriteRequest]] = []
        self._part: Sequence[WriteRequest]
        self._part, best, unrefused = self._in_turn()
        """The part that is being led; empty once it is split."""
        bounds = sorted({best, unrefused} - {0, len(batch)})
        if not bounds and started is not None:
            # Nothing distinguishes the owners.
            best, bounds = 0, [] if self._is_one_by_one else [len(batch) // 2]
        first_owner = self._part[0].message.new_group.owner
        self._has_proven = best > 0 and breakers.proofs.is_proven(first_owner)
        """Whether the first part is led together in any case."""
        self._divide(bounds)

    def __iter__(self) -> Iterator[Sequence[WriteRequest]]:
        size, is_first = 1, self._has_proven
        while self._parts and not self._is_late():
            self._since = self._breakers.clock_seconds()
            part = self._parts.pop()
            if self._is_one_by_one and not is_first and size < len(part):
                self._parts.append(part[size:])
                part = part[:size]
            self._part = part
            yield sorted(part, key=lead_order)
            result = result_of(part[0])
            if isinstance(result, SettledAsFailed):
                self._wasted_seconds += self._breakers.clock_seconds() - self._since
            if self._part and not is_first:
                size = min(2 * len(part), TOGETHER_MAX) if isinstance(result, Led) else 1
            is_first = False
        self._breakers.are_many_refused = bool(self._parts)

    def rest(self) -> list[WriteRequest]:
        """Return the requests for which no time was left, those first that would be led next."""
        return list(chain.from_iterable(reversed(self._parts)))

    def split(self) -> None:
        """Replace the part that was refused by its halves."""
        self._wasted_seconds += self._breakers.clock_seconds() - self._since
        self._divide([len(self._part) // 2])

    def _divide(self, bounds: Sequence[int]) -> None:
        """Replace the part by what is between these bounds."""
        ends = 0, *bounds, len(self._part)
        self._parts += reversed([self._part[start:end] for start, end in pairwise(ends)])
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
        seconds = self._breakers.clock_seconds() - self._began
        if seconds < OWNER_SECONDS_MAX or self._count_refusable() == self._refusable:
            return False
        if seconds < APART_SECONDS_MAX:
            return self._mailbox.has_any(self._breakers.is_reliable)
        return len(self._mailbox) > 0

    def _count_refusable(self) -> int:
        """Count the requests that were led, or have no answer yet."""
        return sum(
            not request.answered.done() or isinstance(result_of(request), Led)
            for request in self._batch
        )

    def _in_turn(self) -> tuple[list[WriteRequest], int, int]:
        """Return the requests in the order of their turns, and where the first two parts of them end.

        The first part is of the best owners, both together of those not refused lately. The order is by
        the last refusal; then by what proves the owner; then of each owner its first request, then of each
        its second; by age. In the order of the groups' ids, a high one would be put back for as long as
        others are refused.
        """
        ranks: Counter[UserId] = Counter()
        order: list[tuple[float, bool, bool, int, WriteRequest]] = []
        proofs = self._breakers.proofs
        is_newest_first = self._breakers.are_newest_first
        for request in sorted(self._batch, key=age_order, reverse=is_newest_first):
            owner = request.message.new_group.owner
            is_new, is_unproven = not proofs.is_known(owner), not proofs.is_proven(owner)
            refused_at = self._breakers.refused_at(owner)
            order.append((refused_at, is_new, is_unproven, ranks[owner], request))
            ranks[owner] += 1
        order.sort(key=lambda each: each[:4])
        unrefused = sum(math.isinf(each[0]) for each in order)
        best = sum(each[:3] == order[0][:3] for each in order[:unrefused])
        return [each[4] for each in order], best, unrefused
