"""Takes a batch apart that has failed together, so that no request fails its neighbours.

Halves: where some were refused, such as by a host's veto, a half without one is written together.
OneByOne: after any other error each request is written alone and answered with its own error.

The owners whose writes have gone through of late come first. What takes long ends this, whatever
its result: no more is tried of an owner whose failures have taken too long, or whose successes take
much longer than its neighbours', and after `APART_SECONDS_MAX` the rest goes back to the mailbox if
others wait. What an owner's failures, refusals or slow successes have cost others is charged to
that owner (`breakers.py`). So is the time of the requests that go through alone, because without
the failures one statement would have written them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Final, TypeVar

from stretto.creation.breakers import OWNER_SECONDS_MAX, OwnerBreakers
from stretto.creation.ports import Led, SettledAsFailed
from stretto.store_errors import (
    HookEnded,
    HookError,
    Locked,
    Misconfigured,
    OutcomeUnknown,
    Stalled,
    StoreError,
    Unreachable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from stretto.creation.ports import Write, WriteRequest, WriteResult
    from stretto.domain import UserId
    from stretto.runtime.mailbox import Mailbox

Result = TypeVar("Result")

# While requests are written alone, those in the mailbox wait. Several times as long as a hook may
# hang for one of them (`postgres/hook_patience.py`).
APART_SECONDS_MAX: Final = 1.0
# An owner is slow whose writes take so many times as long as its neighbours'.
SLOW_RATIO: Final = 5.0


class _RowLocked(Locked):
    """A row beside the attempts, such as a host's, was locked, and no table: others can be written.

    Its name keeps it out of telemetry: it is reported as `Locked` (`WriteFailed.kind`).
    """


def is_away(error: StoreError) -> bool:
    """Whether the database cannot be reached: every other request would meet the same."""
    return isinstance(error, Unreachable) and not isinstance(error, Misconfigured)


def is_own(error: StoreError, started: float, breakers: OwnerBreakers) -> bool:
    """Whether a failure since `started` is its owner's own: a lock on a row, or the host's hook.

    A write or a hook that was ended may have been slow because all are. So it is its owner's own
    only where another write has gone through meanwhile.
    """
    if isinstance(error, Stalled | HookEnded):
        return breakers.has_led_since(started)
    return isinstance(error, HookError | _RowLocked)


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


class Halves:
    """Yields parts of a batch to lead, and the halves of each part that is refused; use once."""

    def __init__(
        self, batch: Sequence[WriteRequest], started: float, breakers: OwnerBreakers
    ) -> None:
        """Take the time at which the lead of the whole batch began."""
        self._batch = batch
        self._breakers = breakers
        self._since = started
        self._wasted_seconds = 0.0
        self._parts: list[Sequence[WriteRequest]] = []
        self.split(batch)

    def __iter__(self) -> Iterator[Sequence[WriteRequest]]:
        while self._parts:
            self._since = self._breakers.clock_seconds()
            yield self._parts.pop()

    def split(self, part: Sequence[WriteRequest]) -> None:
        """Replace a part that was refused by its halves."""
        self._wasted_seconds += self._breakers.clock_seconds() - self._since
        middle = len(part) // 2
        self._parts += [part[middle:], part[:middle]]

    def charge(self) -> None:
        """Charge the owners of refused requests with the time lost, if they had neighbours."""
        if not _has_several_owners(self._batch):
            return
        refused = [
            request.message
            for request in self._batch
            if isinstance(result_of(request), SettledAsFailed)
        ]
        for write in refused:
            error = HookError("groups of this owner are refused again and again")
            self._breakers.charge(write, self._wasted_seconds / len(refused), error)


def result_of(request: WriteRequest) -> WriteResult | None:
    """Return a request's result; None if it has no answer, an error, or a sender that has left."""
    answered = request.answered
    if not answered.done() or answered.cancelled() or answered.exception() is not None:
        return None
    return answered.result()


def _has_several_owners(batch: Sequence[WriteRequest]) -> bool:
    return len({request.message.new_group.owner for request in batch}) > 1


class OneByOne:
    """Writes the requests of one batch, each alone; use once."""

    def __init__(
        self,
        batch: Sequence[WriteRequest],
        mailbox: Mailbox[Write, WriteResult],
        breakers: OwnerBreakers,
        forget_bug: Callable[[Exception], Awaitable[None]],
    ) -> None:
        """Take the mailbox only to see whether others wait; `forget_bug` reports a bug."""
        self._batch = batch
        self._mailbox = mailbox
        self._breakers = breakers
        self._forget_bug = forget_bug
        self._failing: dict[UserId, _Failures] = {}
        self._successes: dict[UserId, _Successes] = {}

    async def write(
        self, step: Callable[[WriteRequest], Awaitable[Result]]
    ) -> tuple[list[Result], list[WriteRequest]]:
        """Take a step for each request; return the results, and the requests that had no time.

        Raises what ends it before all had their turn: the database is away, or every request has
        met a bug.
        """
        results: list[Result] = []
        untried: list[WriteRequest] = []
        clock_seconds, failing = self._breakers.clock_seconds, self._failing
        started, bugs, is_late = clock_seconds(), 0, False
        left = self._proven_first()
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
                    if isinstance(result_of(request), Led):
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
            untried += self._fail_failing(left)
            self._charge(started, others_passed=bool(results))
        finally:
            # Each error refers to this frame by its traceback.
            failing.clear()
        return results, untried

    def _proven_first(self) -> list[WriteRequest]:
        """Return the requests in an order to be taken from the end.

        First come the owners whose last write has gone through. Among those, and among the others,
        owners take turns: of each its first request, then of each its second.
        """
        ranks: Counter[UserId] = Counter()
        order: list[tuple[bool, int, WriteRequest]] = []
        for request in self._batch:
            owner = request.message.new_group.owner
            order.append((not self._breakers.is_proven(owner), ranks[owner], request))
            ranks[owner] += 1
        order.sort(key=lambda each: each[:2])
        return [request for _, _, request in reversed(order)]

    def _is_late(self, started: float, left: Sequence[WriteRequest]) -> bool:
        """Whether the requests that are left must make room for others that wait."""
        if self._breakers.clock_seconds() - started < APART_SECONDS_MAX:
            return False
        return len(self._mailbox) > 0 or _has_several_owners(left)

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
        self._breakers.forget_proof(owner)

    def _fail_failing(self, left: list[WriteRequest]) -> list[WriteRequest]:
        """Fail the requests of owners with failures, by the owner's error; return the others."""
        rest = []
        for request in reversed(left):
            failing = self._failing.get(request.message.new_group.owner)
            if failing is None:
                rest.append(request)
            else:
                request.fail(failing.error)
        return rest

    def _charge(self, started: float, *, others_passed: bool) -> None:
        """Charge owners with what taking the batch apart has cost, where they had neighbours.

        Each pays the time of its own failures, and by their number a part of all other time:
        failures that come at once have the whole batch taken apart as well. Slow successes cost as
        much as failures: each pays what they took longer than those of its neighbours.

        A failure that is the owner's own is charged (`is_own`). Any other is charged only if the
        step of some request did not fail (`others_passed`).
        """
        if not _has_several_owners(self._batch) and not len(self._mailbox):
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
            if others_passed or is_own(each.error, started, self._breakers):
                cost = each.seconds + shared_seconds * each.count / count
                self._breakers.charge(each.write, cost, each.error)


def slow() -> StoreError:
    """Return the error of an owner whose writes succeed, but keep others waiting: it is paused."""
    return Stalled("writes of this owner take long while others wait")
