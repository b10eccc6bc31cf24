"""OwnerBreakers: whose writes are not tried for a while, because they have cost others their time.

A row of one tenant's that stays locked, or a hook that hangs for one tenant, costs each batch that has a
write of that tenant a time-out, however often it is repeated. So failures are charged to their owner.
An owner who has cost too much is paused: its requests are answered with the error that its last write
met, before anything is claimed. After the pause one of them is a probe: tried alone, after the others.
If that goes through, the owner is as any other; if not, the next pause is longer.

Shared by the writers of a process. Which failures are an owner's own is for the writer to say.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stretto.observations import Observer, OwnerPaused, OwnerResumed
from stretto.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.creation.ports import Write
    from stretto.domain import UserId
    from stretto.errors import StoreError

# What one owner's failures may cost the batches of others at once; less than one lock time-out in haste,
# more than a few errors that the server gives at once.
OWNER_SECONDS_MAX: Final = 0.2
# A pause is so many times as long as what it follows has cost: the rest of the time is the others'.
PAUSE_RATIO: Final = 10.0
# Between probes that fail. A client that was asked to wait half a minute still has its user.
PAUSE: Final = Backoff(1.0, 30.0)
# After a probe that failed, no other owner is probed for so many times as long as it took: however many
# are paused, most of the time is for those who are not.
PROBE_RATIO: Final = 4.0
# A paused owner who does not come back is forgotten so long after the pause.
STALE_SECONDS: Final = 60.0
# As many as many batches hold; each costs some 500 bytes.
OWNERS_MAX: Final = 4096


@dataclass(slots=True)
class _Breaker:
    """An owner who is paused."""

    error: StoreError
    until: float
    failures: int = 0
    """Probes that have failed since it opened."""


class OwnerBreakers:
    """Owners, for a bounded time and number; as a truth value, whether any is paused."""

    def __init__(
        self,
        observe: Observer = lambda _: None,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._observe = observe
        self.clock_seconds = clock_seconds
        self._open: OrderedDict[UserId, _Breaker] = OrderedDict()
        self._costs: OrderedDict[UserId, tuple[float, float]] = OrderedDict()
        """What failures have cost and is not forgiven yet, in seconds, and when that was so."""
        self._is_probing = False
        self._no_probe_before = 0.0

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, owner: UserId) -> bool:
        return owner in self._open

    def charge(self, write: Write, seconds: float, error: StoreError) -> None:
        """Take note that failures of the write's owner have cost others so much; pause it for too much.

        What was charged is forgiven over the time: `PAUSE_RATIO` seconds for each.
        """
        now, owner = self.clock_seconds(), write.new_group.owner
        cost, at = self._costs.pop(owner, (0.0, now))
        cost = max(0.0, cost - (now - at) / PAUSE_RATIO) + seconds
        if cost < OWNER_SECONDS_MAX:
            self._costs[owner] = cost, now
            if len(self._costs) > OWNERS_MAX:
                self._costs.popitem(last=False)
            return
        self._pause(write, cost, error)

    def error_of(self, owner: UserId) -> StoreError:
        """Return the error that a paused owner is answered with; it says how long to wait."""
        breaker = self._open[owner]
        error = _copy(breaker.error)
        error.retry_after_seconds = max(1, math.ceil(breaker.until - self.clock_seconds()))
        return error

    def may_probe(self, owner: UserId) -> bool:
        """Whether a write of the owner may be tried now: one at a time, over all writers."""
        earliest = max(self._open[owner].until, self._no_probe_before)
        return not self._is_probing and self.clock_seconds() >= earliest

    def begin_probe(self, owner: UserId) -> bool:
        """Return whether the owner is probed now, by the caller and no other."""
        if not self.may_probe(owner):
            return False
        self._is_probing = True
        return True

    def end_probe(self) -> None:
        """Have others probed again, also where this one has shown nothing."""
        self._is_probing = False

    def keep(self, write: Write, seconds: float, error: StoreError) -> None:
        """Pause the owner for longer: a probe has failed, and has taken so much."""
        self._no_probe_before = self.clock_seconds() + PROBE_RATIO * seconds
        self._pause(write, seconds, error)

    def close(self, owner: UserId) -> None:
        """Have the owner share batches again."""
        if self._open.pop(owner, None) is not None:
            self._observe(OwnerResumed())

    def drop_stale(self) -> None:
        """Forget those whose pause has long been over."""
        now = self.clock_seconds()
        while self._open:
            owner, breaker = next(iter(self._open.items()))
            if now < breaker.until + STALE_SECONDS:
                return
            self.close(owner)

    def _pause(self, write: Write, cost: float, error: StoreError) -> None:
        owner = write.new_group.owner
        breaker = self._open.pop(owner, None)
        failures = 0 if breaker is None else breaker.failures + 1
        pause = max(PAUSE.seconds(failures), PAUSE_RATIO * cost)
        self._open[owner] = _Breaker(_copy(error), self.clock_seconds() + pause, failures)
        if breaker is None:
            self._observe(OwnerPaused(error, write.group_id, pause))
        if len(self._open) > OWNERS_MAX:
            self.close(next(iter(self._open)))


def _copy(error: StoreError) -> StoreError:
    """Return its kind and words, without traceback and cause: those refer to much else."""
    return type(error).__new__(type(error), *error.args)
