"""HookPatience: how long the host's hook may take while other requests wait for it.

A hook that hangs for one owner must not cost its neighbours all of a write's time, in the batch and
again for each of that owner's requests. So it is ended early where others wait, as a statement is that
stalls (`stalls.py`). While no other waits, it has nearly all of the write's time.

A hook that is slow for all must not be ended for that. So for one request it may take several times
as long as the last ones that came to their end (`TimesAlone`; a quick failure says nothing). If it is
ended early when alone, the owner's next hook alone has the time of a batch, once: the owner may be
slow, without hanging. After too many hooks in a row that were ended, one request that is led alone has
all of the time. If its hook comes to its end, hooks are slow for all. If not, it hangs, and only the
next series earns another such trial: a flood of hangs costs one long wait for each series.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from stretto.postgres.stalls import STALL_RATIO, STALL_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.domain import UserId
    from stretto.postgres.stalls import TimesAlone

# From one look at the waiting requests to the next, once a hook takes long.
LOOK_SECONDS: Final = 0.1
# A request that is led alone while others wait: several owners whose hook hangs are found in a second.
ALONE_SECONDS: Final = 0.25
# For such a request, as a multiple of the usual time alone. It is low, since each hang delays the next
# request, and above `HANG_RATIO` (`creation/suspects.py`), or a hang would say nothing of its owner.
ALONE_RATIO: Final = 3.0
# In a row: more than a dozen owners whose hook hangs. After that the hook may be slow for all.
ENDED_MAX: Final = 16


class HookPatience:
    """The time of the hooks of one write store; `times` are those of all stores of a component."""

    def __init__(self, others_wait: Callable[[], bool], times: TimesAlone) -> None:
        self._others_wait = others_wait
        self._times = times
        self._ended = 0
        """In a row, while others waited, since the last trial."""

    async def wait(
        self,
        hook: asyncio.Task[None],
        owners: Sequence[UserId],
        seconds_max: float,
        *,
        is_hasty: bool,
    ) -> float:
        """Wait until the hook is done, or has taken too long; return how long it was allowed to take.

        With `is_hasty` a request that is led alone keeps others waiting, and so does a batch of several
        owners.
        """
        clock_seconds = asyncio.get_running_loop().time
        began = clock_seconds()
        is_apart = is_hasty and len(owners) == 1
        keeps_waiting = is_apart or (is_hasty and len(set(owners)) > 1)
        if self._ended >= ENDED_MAX and len(owners) == 1:
            self._ended = 0
            patience = seconds_max
        else:
            is_short = is_apart and not self._times.has_chance(owners[0])
            least, ratio = (
                (ALONE_SECONDS, ALONE_RATIO) if is_short else (STALL_SECONDS, STALL_RATIO)
            )
            patience = self._times.patience(owners, least, seconds_max, ratio)
        until = patience
        while not (await asyncio.wait({hook}, timeout=began + until - clock_seconds()))[0]:
            if until >= seconds_max:
                return seconds_max
            if keeps_waiting or self._others_wait():
                self._ended += 1
                if is_apart:
                    self._times.note_ended(owners[0])
                return until
            until = min(seconds_max, until + LOOK_SECONDS)
        seconds = clock_seconds() - began
        has_succeeded = not hook.cancelled() and hook.exception() is None
        if seconds >= ALONE_SECONDS or has_succeeded:
            # But for a veto that comes at once, which would make every other hook look slow.
            self._times.note(owners, seconds, ALONE_SECONDS)
            self._ended = 0
        return seconds_max
