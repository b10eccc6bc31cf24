"""Actor: the contract of everything that runs.

An actor does one batch (`run_once`) and can be stopped. It has no loop, no task and no clock, and
it catches only errors that it can handle: the rest is the `Runner`'s part.

States: new, running, stopping, stopped. It may be stopped in each of them, any number of times.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Final

from stretto.runtime.backoff import Backoff

# At the stop, a running turn has so long to end by itself: a cancelled query lingers on its
# connection. A bus that hangs gets no more time than that.
TURN_STOP_SECONDS: Final = 2.0
# A cancelled task waits only for its driver; a stop does not wait longer than this for it.
CANCEL_SECONDS: Final = 5.0

# The default of an actor. Without a pause, a crash would repeat at once and fill the log.
BACKOFF: Final = Backoff(0.1, 5.0)


class TryAgain(Exception):
    """The turn failed, and the actor has reported it: the next turn follows a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When an actor's next turn begins."""

    seconds: float
    """Pause after a turn; a wake-up ends it early."""
    spread: float = 0.0
    """Share of the pause by which it is shorter or longer, at random: replicas then take turns."""
    gather_seconds: float = 0.0
    """How long a wake-up waits for others: one turn for many costs as much as one turn for one."""
    full: float = math.inf
    """A turn that did so much has left work: the next one begins at once."""
    rests_first: bool = False
    """Whether the first turn waits, too."""


class Actor:
    """Something that runs in turns; `run_once` is one turn."""

    pace: Pace | None = None
    """None for an actor whose turn itself waits for work, such as for a message in a mailbox."""
    backoff = BACKOFF
    """Between a failed turn and the next."""
    failures: tuple[type[Exception], ...] = ()
    """Errors of bus and database that a turn may raise. Any other error is a crash."""
    cancel_again_seconds: float = CANCEL_SECONDS
    """If a cancellation has had no effect for so long, the actor is cancelled again."""

    def __init__(self, name: str) -> None:
        """Take a name for logs and metrics; actors that share their work share the name."""
        self.name = name
        self.woken = asyncio.Event()
        self.stopped = asyncio.Event()

    @property
    def is_stopping(self) -> bool:
        """Whether no other turn begins."""
        return self.stopped.is_set()

    @property
    def stop_seconds(self) -> float:
        """How long a stop waits before it cancels the running turn."""
        return TURN_STOP_SECONDS if self.pace else 0.0

    async def run_once(self) -> int:
        """Do one batch; return its size."""
        raise NotImplementedError

    async def close(self) -> None:
        """Release everything that is held, after the last turn or without any. Idempotent."""

    def wake(self) -> None:
        """Begin the next turn now: there is work. Never blocks."""
        self.woken.set()

    def stop(self) -> None:
        """Begin no other turn; end the running one as soon as it may end. Idempotent."""
        self.stopped.set()
        self.woken.set()
