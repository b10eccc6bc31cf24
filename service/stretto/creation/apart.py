"""Takes a batch apart that has failed together, so that no request fails its neighbours.

OneByOne: each request is written alone and answered with its own error. So are the requests of
suspects (`suspects.py`), without a try together. A batch of which some were refused is taken apart
by halves first (`halves.py`).

Owners take turns, and in each turn those whose writes go through quickly come first. What takes long
ends this, whatever its result: no more is tried of an owner whose failures have taken too long, or
whose successes take much longer than its neighbours', and after `APART_SECONDS_MAX` the rest goes back
to the mailbox if others wait. Where a write has hung meanwhile, the owners of that rest become suspects.

What an owner's failures, refusals or slow successes have cost others is charged to that owner
(`breakers.py`). So is the time of the requests that go through alone, because without the failures
one statement would have written them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Final, TypeVar

from stretto.creation.blame import is_away, is_own, note_hang, slow
from stretto.creation.breakers import OWNER_SECONDS_MAX, OwnerBreakers
from stretto.creation.ports import Led, NotLed
from stretto.creation.requests import age_order, has_several_owners, result_of
from stretto.creation.suspects import HANG_RATIO
from stretto.store_errors import OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.creation.ports import Write, WriteRequest, WriteResult
    from stretto.domain import UserId
    from stretto.runtime.mailbox import Mailbox

Result = TypeVar("Result")

# While requests are written alone, those in the mailbox wait. Several times as long as a hook may
# hang for one of them (`postgres/hook_patience.py`).
APART_SECONDS_MAX: Final = 1.0
# An owner is slow whose writes take so many times as long as its neighbours'.
SLOW_RATIO: Final = 5.0


@dataclass(slots=True)
class _Failures:
    """An owner's failures in this batch."""

    write: Write
    error: StoreError
    seconds: float = 0.0
    """What the failures themselves have taken."""
    count: int = 0


@dataclass(slots=True)
class _Successes:
    """What an owner's successes in this batch have taken."""

    write: Write
    seconds: float = 0.0
    count: int = 0


class OneByOne:
    """Writes the requests of one batch, each alone; use once."""

    def __init__(
        self,
        batch: Sequence[WriteRequest],
        mailbox: Mailbox[Write, WriteResult],
        breakers: OwnerBreakers,
        forget_bug: Callable[[Exception], Awaitable[None]],
        since: float | None = None,
    ) -> None:
        """Take the mailbox only to see whether others wait; `forget_bug` reports a bug.

        With `since`, all are of suspects or of newcomers; other requests of their batch were written
        from then on.
        """
        self._batch = batch
        self._mailbox = mailbox
        self._breakers = breakers
        self._forget_bug = forget_bug
        self._failing: dict[UserId, _Failures] = {}
        self._successes: dict[UserId, _Successes] = {}
        self._is_led_apart = since is not None
        self._since = breakers.clock_seconds() if since is None else since
        self._hang_seconds = 0.0
        """The longest time for which one of them has hung alone."""

    async def write(
        self,
        step: Callable[[WriteRequest], Awaitable[Result]],
        *,
        hang_seconds: float = 0.0,
    ) -> tuple[list[Result], list[WriteRequest]]:
        """Take a step for each request; return the results, and the requests that had no time.

        `hang_seconds`: after how long the batch was ended when tried together; 0 if it was not.

        Raises what ends it before all had their turn: the database is away, or every request has
        met a bug.
        """
        results: list[Result] = []
        untried: list[WriteRequest] = []
        clock_seconds, failing = self._breakers.clock_seconds, self._failing
        started, bugs, is_late, others_passed = clock_seconds(), 0, False, False
        left = self._quick_first()
        try:
            while left and not is_late:
                request, since = left.pop(), clock_seconds()
                owner = request.message.new_group.owner
                if owner in failing and failing[owner].seconds >= OWNER_SECONDS_MAX:
                    request.fail(failing[owner].error)
                    continue
                if self._excess_seconds(owner) >= OWNER_SECONDS_MAX:
                    untried.append(request)
                    continue
                try:
                    results.append(await step(request))
                    result = result_of(request)
                    # An attempt that is another's has not come as far.
                    others_passed |= not isinstance(result, NotLed)
                    if isinstance(result, Led):
                        self._note_success(request, clock_seconds() - since)
                except StoreError as error:
                    self._fail(request, error, clock_seconds() - since)
                    if is_away(error):
                        raise
                except Exception as error:
                    bugs += 1
                    if bugs == len(self._batch):
                        raise
                    await self._forget_bug(error)
                    unknown = OutcomeUnknown("the writer has met a bug")
                    self._fail(request, unknown, clock_seconds() - since)
                is_late = self._is_late(started, left)
            untried += self._fail_failing(left, hang_seconds)
            self._charge(started, others_passed=others_passed)
        finally:
            # Each error refers to this frame by its traceback.
            failing.clear()
        return results, untried

    def _quick_first(self) -> list[WriteRequest]:
        """Return the requests in an order to be taken from the end.

        Owners take turns: of each its first request, then of each its second. Last come those of whom
        one has hung alone, who take turns among themselves. In a turn the quickest come first: behind
        the many requests of one who is slow, no other would ever have time. While there are suspects,
        of owners alike the newest requests come first: newcomers have come after those who hang. In
        every other batch that is led apart, the oldest do.
        """
        ranks: Counter[UserId] = Counter()
        order: list[tuple[bool, int, float, int, WriteRequest]] = []
        suspects, proofs = self._breakers.suspects, self._breakers.proofs
        sign = suspects.next_age_sign() if self._is_led_apart else -1 if suspects else 0
        for request in self._batch:
            owner, age = request.message.new_group.owner, sign * age_order(request)
            has_hung = suspects.error_of(owner) is not None
            seconds = proofs.expected_seconds(owner)
            order.append((has_hung, ranks[owner], seconds, age, request))
            ranks[owner] += 1
        order.sort(key=lambda each: each[:4])
        return [each[4] for each in reversed(order)]

    def _is_late(self, started: float, left: Sequence[WriteRequest]) -> bool:
        """Whether the requests that are left must make room for others that wait."""
        seconds = self._breakers.clock_seconds() - started
        suspects, mailbox = self._breakers.suspects, self._mailbox
        if self._is_led_apart and seconds >= OWNER_SECONDS_MAX:
            # After one hang of a suspect, a newcomer does not wait for the next one. While newcomers
            # are led alone and none has hung, only known owners count as waiting.
            are_alike = suspects.are_newcomers_apart and not self._hang_seconds
            is_known = self._breakers.proofs.is_known
            if mailbox.has_any(is_known) if are_alike else mailbox.has_besides(suspects):
                return True
        if seconds < APART_SECONDS_MAX:
            return False
        return len(mailbox) > 0 or has_several_owners(left)

    def _note_success(self, request: WriteRequest, seconds: float) -> None:
        owner = request.message.new_group.owner
        successes = self._successes.setdefault(owner, _Successes(request.message))
        successes.seconds += seconds
        successes.count += 1

    def _excess_seconds(self, owner: UserId) -> float:
        """Return how much longer an owner's successes have taken than as many of its neighbours'.

        It is 0 below `SLOW_RATIO` times their time: such an owner is not slow.
        """
        own = self._successes.get(owner)
        usual = [each.seconds / each.count for key, each in self._successes.items() if key != owner]
        if own is None or not usual:
            return 0.0
        # A slow server is slow for the neighbours too.
        usual_seconds = median_low(usual)
        if own.seconds < SLOW_RATIO * usual_seconds * own.count:
            return 0.0
        return own.seconds - usual_seconds * own.count

    def _fail(self, request: WriteRequest, error: StoreError, seconds: float) -> None:
        """Answer a request that has failed alone, and note what it has cost its neighbours."""
        request.fail(error)
        owner = request.message.new_group.owner
        failing = self._failing.setdefault(owner, _Failures(request.message, error))
        failing.write, failing.error = request.message, error
        failing.seconds += seconds
        failing.count += 1
        if note_hang(self._breakers, request.message, error, seconds):
            self._hang_seconds = max(self._hang_seconds, seconds)
        self._breakers.proofs.forget(owner)

    def _fail_failing(
        self, left: list[WriteRequest], together_seconds: float
    ) -> list[WriteRequest]:
        """Fail the requests of owners with failures, by the owner's error; return the others.

        If a write has hung, and the successes were much quicker, the owners of the others become
        suspects: all if it has hung alone, else those not proven. Otherwise, where the proven alone
        take all the time, the same batch would hang again and again.
        """
        rest, suspects = [], self._breakers.suspects
        alone_seconds = self._telling(self._hang_seconds)
        together_seconds = self._telling(together_seconds)
        for request in reversed(left):
            owner = request.message.new_group.owner
            failing = self._failing.get(owner)
            error = suspects.error_of(owner) if failing is None else failing.error
            if error is not None:
                request.fail(error)
                continue
            rest.append(request)
            is_proven = self._breakers.proofs.is_proven(owner)
            if hang_seconds := alone_seconds or (0.0 if is_proven else together_seconds):
                suspects.note_untried(owner, hang_seconds)
        return rest

    def _telling(self, hang_seconds: float) -> float:
        """Return the time of a hang; 0 if the quickest success took nearly as long: all are slow."""
        usual = (each.seconds / each.count for each in self._successes.values())
        quickest = min(usual, default=0.0)
        return hang_seconds if hang_seconds >= HANG_RATIO * quickest else 0.0

    def _charge(self, started: float, *, others_passed: bool) -> None:
        """Charge owners with what taking the batch apart has cost, where they had neighbours.

        Each pays the time of its own failures, and by their number a part of all other time:
        failures that come at once have the whole batch taken apart as well. Slow successes cost as
        much as failures: each pays what they took longer than those of its neighbours.

        A failure that is the owner's own is charged (`is_own`). Any other is charged only if some step
        neither failed nor ended in `NotLed` (`others_passed`).
        """
        if not has_several_owners(self._batch) and not len(self._mailbox):
            return
        seconds = self._breakers.clock_seconds() - started
        for owner, successes in self._successes.items():
            if excess_seconds := self._excess_seconds(owner):
                seconds -= excess_seconds
                self._breakers.charge(successes.write, excess_seconds, slow())
        failing = self._failing.values()
        shared_seconds = seconds - sum(each.seconds for each in failing)
        count = sum(each.count for each in failing)
        for each in failing:
            if others_passed or is_own(each.error, self._since, self._breakers):
                cost = each.seconds + shared_seconds * each.count / count
                self._breakers.charge(each.write, cost, each.error)
