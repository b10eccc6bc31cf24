"""OwnerBreakers: owners whose writes are paused, because they have cost others their time.

An owner's row that stays locked, or a hook or trigger that hangs for one owner, costs a time-out
in each batch that has a write of that owner, however often it is repeated. So failures are charged
to their owner. An owner who has cost too much is paused: its requests are answered with the error
of its last write, before anything is claimed. After the pause one of them is a probe: tried alone,
after the others (`probes.py`). If the probe goes through, the owner shares batches again; if not, the
next pause is longer.

After a lock or another passing conflict the pause stays short: the owner may be the one that waits
for a lock, and not the one that holds it. So is the first pause after a write that was ended, or was
slow: it may have waited for a lock. Its probe shows which.

Shared by the writers of a process. The writer decides which failures are an owner's own.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stretto.creation.probes import ProbeTurns, Standing
from stretto.creation.proofs import QUICK_SECONDS, Proofs
from stretto.creation.suspects import Suspects, copy_of
from stretto.observations import Observer, OwnerPaused, OwnerResumed
from stretto.runtime.backoff import Backoff
from stretto.store_errors import HookCutOff, HookEnded, Stalled, Transient
from stretto.telemetry.request_context import request_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.creation.ports import Write, WriteResult
    from stretto.domain import UserId
    from stretto.runtime.mailbox import Mailbox
    from stretto.store_errors import StoreError

# What one owner's failures may cost the batches of others at once: less than one hasty lock
# time-out, more than a few errors that the server gives at once.
OWNER_SECONDS_MAX: Final = QUICK_SECONDS
# A pause lasts so many times what it follows has cost: the rest of the time is left for the others.
PAUSE_RATIO: Final = 10.0
# Between probes that fail. A client that was asked to wait half a minute still has its user.
PAUSE: Final = Backoff(1.0, 30.0)
# The longest pause of an owner who may be the victim of a lock that another owner holds: what a hasty
# lock time-out costs, at `PAUSE_RATIO`.
VICTIM_PAUSE_SECONDS_MAX: Final = 2.5
# A client that obeys `Retry-After` is back so long after that time at the latest.
RETURN_SECONDS: Final = 1.0
# A paused owner who sends nothing is forgotten this long after the pause.
STALE_SECONDS: Final = 60.0
# In a refused batch, owners of whom a write was refused so lately are led after the others. So is an
# owner over its quota who comes back after the longest pause, or a minute later.
REFUSED_SECONDS: Final = 60.0
# As many as several batches hold; each costs some 500 bytes.
OWNERS_MAX: Final = 4096


@dataclass(slots=True)
class _Breaker:
    """An owner who is paused."""

    error: StoreError
    until: float
    cost: float
    """What its pause follows, in seconds."""
    failures: int = 0
    """Probes that have failed in a row since it opened, without conflicts."""
    awaited_until: float = -math.inf
    """By then its clients are back that were asked to wait."""

    @property
    def standing(self) -> Standing:
        """What is known of its owner."""
        if isinstance(self.error, Transient):
            return Standing.IN_CONFLICT
        return Standing.CULPRIT if self.failures else Standing.UNPROBED


class OwnerBreakers:
    """Owners, for a bounded time and number; true while any is paused."""

    def __init__(
        self,
        observe: Observer,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observe = observe
        self.clock_seconds = clock_seconds
        self.suspects = Suspects(clock_seconds)
        self._open: OrderedDict[UserId, _Breaker] = OrderedDict()
        self._costs: OrderedDict[UserId, tuple[float, float]] = OrderedDict()
        """What failures have cost and is not forgiven yet, in seconds, and the time of that sum."""
        self._turns = ProbeTurns(clock_seconds)
        self._led_at = self._led_quickly_at = -math.inf
        self.proofs = Proofs(clock_seconds)
        self._refused: dict[UserId, float] = {}
        """When a write of the owner was last refused; the latest at the end."""
        self.are_many_refused = False
        """Whether the last refused batch had no time for all (`halves.py`)."""
        self.are_newest_first = False
        """Whether the newest requests came first in it."""

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, owner: object) -> bool:
        return owner in self._open

    def charge(self, write: Write, seconds: float, error: StoreError) -> None:
        """Add to what the owner of this write has cost others; pause the owner if it is too much.

        The sum is forgiven over time: one second of it every `PAUSE_RATIO` seconds. A pause that is
        short, as the owner may be a victim, leaves a debt: with that, the next one is long.
        """
        now, owner = self.clock_seconds(), write.new_group.owner
        debt, at = self._costs.pop(owner, (0.0, now))
        debt = max(0.0, debt - (now - at) / PAUSE_RATIO)
        cost, breaker = debt + seconds, self._open.get(owner)
        may_be_victim = isinstance(error, HookCutOff | HookEnded | Stalled) and (
            debt < OWNER_SECONDS_MAX or breaker is not None
        )
        if cost < OWNER_SECONDS_MAX or may_be_victim:
            self._costs[owner] = cost, now
            if len(self._costs) > OWNERS_MAX:
                self._costs.popitem(last=False)
        if cost >= OWNER_SECONDS_MAX:
            failures = 0 if breaker is None else breaker.failures
            self._pause(write, cost, error, failures, may_be_victim=may_be_victim)

    def note_led(self, owners: Sequence[UserId], seconds: float = 0.0) -> None:
        """Note that writes of these owners have gone through together, in so many seconds."""
        self._led_at = now = self.clock_seconds()
        if seconds < OWNER_SECONDS_MAX:
            self._led_quickly_at = now
        elif self.suspects:
            self.suspects.discard_since(self._led_quickly_at, seconds)
        has_suspects, proofs = bool(self.suspects), self.proofs
        is_alone = len(owners) == 1
        for owner in owners:
            proofs.note(owner, now, seconds, is_alone=is_alone)
            if has_suspects:
                self.suspects.note_led(owner, seconds, is_newcomer=not proofs.is_known(owner))

    def note_refused(self, owner: UserId) -> None:
        """Note that a write of the owner was refused, such as by the hook's veto."""
        self._refused.pop(owner, None)
        self._refused[owner] = self.clock_seconds()
        if len(self._refused) > OWNERS_MAX:
            del self._refused[next(iter(self._refused))]

    def refused_at(self, owner: UserId) -> float:
        """Return when a write of the owner was last refused; -inf if not in `REFUSED_SECONDS`."""
        at = self._refused.get(owner, -math.inf)
        return at if self.clock_seconds() - at < REFUSED_SECONDS else -math.inf

    def is_reliable(self, owner: UserId) -> bool:
        """Whether the last write of the owner to go through was quick, and none was refused lately."""
        return self.proofs.is_quick(owner) and math.isinf(self.refused_at(owner))

    def has_led_since(self, started: float) -> bool:
        """Whether a write of any writer has gone through since then."""
        return self._led_at > started

    def error_of(self, owner: UserId) -> StoreError:
        """Return the error that answers a paused owner; it says how long to wait."""
        error = copy_of(self._open[owner].error)
        error.retry_after_seconds = self.retry_after_seconds(owner)
        return error

    def retry_after_seconds(self, owner: UserId) -> int:
        """Return how long a client of a paused owner has to wait: until a probe may be tried.

        From now on it is awaited.
        """
        now, breaker = self.clock_seconds(), self._open[owner]
        earliest = max(breaker.until, self._turns.earliest(breaker.standing))
        seconds = max(1, math.ceil(earliest - now))
        breaker.awaited_until = now + seconds + RETURN_SECONDS
        return seconds

    def is_culprit(self, owner: UserId) -> bool:
        """Whether a probe of an owner who is paused has failed, and not by a conflict."""
        breaker = self._open.get(owner)
        return breaker is not None and breaker.standing is Standing.CULPRIT

    def turn(self, owner: UserId) -> tuple[int, int]:
        """Return a sort key: the owner with the lowest is probed first."""
        breaker = self._open.get(owner)
        return (0, 0) if breaker is None else (breaker.standing, breaker.failures)

    def others_wait(self, mailbox: Mailbox[Write, WriteResult]) -> bool:
        """Whether requests wait for a write that is under way, in the mailbox or at their clients.

        Those of a paused owner would wait in any case. But a culprit's probe makes room for owners
        who may be victims: for those that may be probed, and those whose clients come back soon.
        """
        return self._awaits_victims() or mailbox.has_any(self._is_kept_waiting)

    def may_probe(self, owner: UserId) -> bool:
        """Whether a write of the owner may be tried now."""
        breaker = self._open[owner]
        is_over = self.clock_seconds() >= breaker.until
        return is_over and self._turns.may_begin(owner, breaker.standing)

    def awaits_probe(self, owner: UserId) -> bool:
        """Whether a write of the owner may be tried as soon as another probe has ended."""
        breaker = self._open.get(owner)
        if breaker is None or self.clock_seconds() < breaker.until:
            return False
        return self._turns.is_awaited(owner, breaker.standing)

    def begin_probe(self, owner: UserId) -> bool:
        """Begin a probe, if one may be tried now; return whether the caller has it."""
        if not self.may_probe(owner):
            return False
        self._turns.begin(owner, self._open[owner].standing)
        return True

    def end_probe(self, owner: UserId) -> None:
        """Allow the next probe, also after one that has shown nothing."""
        self._turns.end(owner)

    def keep(self, write: Write, seconds: float, error: StoreError) -> None:
        """Pause the owner for longer: a probe has failed after so many seconds."""
        breaker = self._open.get(write.new_group.owner)
        standing = Standing.IN_CONFLICT if breaker is None else breaker.standing
        self._turns.note_failed(standing, seconds)
        failures = 0 if breaker is None else breaker.failures + 1
        self._pause(write, seconds, error, failures, may_be_victim=False)

    def close(self, owner: UserId) -> None:
        """End the pause: the owner shares batches again."""
        self.suspects.clear(owner)
        if self._open.pop(owner, None) is not None:
            self._observe(OwnerResumed())

    def drop_stale(self) -> None:
        """Forget owners whose pause ended `STALE_SECONDS` ago, and old suspects."""
        self.suspects.drop_stale()
        now = self.clock_seconds()
        while self._open:
            owner, breaker = next(iter(self._open.items()))
            if now < breaker.until + STALE_SECONDS:
                return
            self._forget(owner)

    def _awaits_victims(self) -> bool:
        now = self.clock_seconds()
        return self._turns.is_culprit_tried() and any(
            now < each.awaited_until and each.standing is not Standing.CULPRIT
            for each in self._open.values()
        )

    def _is_kept_waiting(self, owner: UserId) -> bool:
        if owner not in self._open:
            return True
        is_tried = self._turns.is_culprit_tried()
        return is_tried and not self.is_culprit(owner) and self.may_probe(owner)

    def _pause(
        self, write: Write, cost: float, error: StoreError, failures: int, *, may_be_victim: bool
    ) -> None:
        owner = write.new_group.owner
        breaker = self._open.pop(owner, None)
        if isinstance(error, Transient):
            failures, may_be_victim = 0, True
            self._costs.pop(owner, None)
        pause = max(PAUSE.seconds(failures), PAUSE_RATIO * cost)
        if may_be_victim:
            pause = min(pause, VICTIM_PAUSE_SECONDS_MAX)
        awaited_until = -math.inf if breaker is None else breaker.awaited_until
        self._open[owner] = _Breaker(
            copy_of(error), self.clock_seconds() + pause, cost, failures, awaited_until
        )
        if breaker is None:
            ids = request_ids([write.request])
            self._observe(OwnerPaused(error, write.group_id, pause, ids))
        if len(self._open) > OWNERS_MAX:
            self._forget(next(iter(self._open)))

    def _forget(self, owner: UserId) -> None:
        """End a pause without a success: its write may still hang. Of many, not each had a probe."""
        cost = self._open[owner].cost
        self.close(owner)
        self.suspects.note_untried(owner, cost)
