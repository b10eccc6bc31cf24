"""Actor: what everything that runs has in common.

An actor knows how to do one batch (`run_once`) and how to be stopped. It has no loop, no task and no
clock, and it catches no error that it has no answer to: that is the `Runner`'s part.

States: new, running, stopping, stopped. It may be stopped in each of them, any number of times.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Final

from stretto.runtime.backoff import Backoff

# A turn that is under way at the stop may end by itself for so long: a cancelled query lingers on its
# connection. A bus that hangs is not waited for any longer.
TURN_STOP_SECONDS: Final = 2.0
# A cancelled task has nothing left to wait for but its driver; a stop does not wait for that any longer.
CANCEL_SECONDS: Final = 5.0

# What an actor waits for that says nothing else: a crash comes back at once, and fills the log.
BACKOFF: Final = Backoff(0.1, 5.0)


class TryAgain(Exception):
    """The turn has failed, and the actor has reported that itself: the next one follows a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When an actor's next turn begins."""

    seconds: float
    """At the latest so long after the turn before."""
    spread: float = 0.0
    """By up to this share of it sooner or later, at random, so that replicas take turns."""
    gather_seconds: float = 0.0
    """How long a wake-up waits for others: one turn for many costs as much as for one."""
    full: float = math.inf
    """After a turn that did so much there is more to do, and the next one begins at once."""
    rests_first: bool = False
    """Whether even the first turn waits."""


class Actor:
    """Something that runs in turns; `run_once` is what it is for."""

    pace: Pace | None = None
    """None for an actor whose turn waits for its own work, such as for a message in a mailbox."""
    backoff = BACKOFF
    """Between a turn that has failed and the next."""
    failures: tuple[type[Exception], ...] = ()
    """What bus and database may do to a turn. Anything else that it raises is a crash."""
    cancel_again_seconds: float = CANCEL_SECONDS
    """After this long without an effect the actor is cancelled once more."""

    def __init__(self, name: str) -> None:
        """Take a name for logs and metrics; siblings that share their work share it."""
        self.name = name
        self.woken = asyncio.Event()
        self.stopped = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether no turn begins any more."""
        return self.stopped.is_set()

    @property
    def stop_seconds(self) -> float:
        """How long a stop waits before it cancels the turn that is under way."""
        return TURN_STOP_SECONDS if self.pace else 0.0

    async def run_once(self) -> int:
        """Do one batch; return how much it was."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of all that is held, after the last turn or without any. Idempotent."""

    def wake(self) -> None:
        """Have the next turn begin now: there is something to do. Never blocks."""
        self.woken.set()

    def stop(self) -> None:
        """Begin no other turn; end one that is under way as soon as it may end. Idempotent."""
        self.stopped.set()
        self.woken.set()
