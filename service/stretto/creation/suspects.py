"""Suspects: owners whose writes are led after those of the others, each alone.

A hook or a trigger that hangs for many owners costs a time-out for each batch that has one of them,
and another to find each. Newcomers in these batches would wait until all are found. While none goes
through, no hang is charged (`apart.py`), so no owner is paused, and the hangs begin anew.

An owner becomes a suspect when its write has hung alone, or was in a batch that hung and had no time
to be tried alone. It stays one until a write of it goes through or is refused, or for
`SUSPECT_SECONDS`. One that has hung alone stays one for so long even so, as its hook may hang for some
of its groups; but it comes before the others. Where all writes are slow, no hang says anything: so a
slow success ends what has been suspected since the last quick one, unless the hang was much longer
(`HANG_RATIO`). The host's hook may take long for all, and hang for some.

Where ever new owners hang, none of them is known when its write comes. So after a newcomer has hung,
newcomers are led alone as well, before the suspects, until that has cost as much as a hang.

Shared by the writers of a process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.domain import UserId
    from stretto.store_errors import StoreError

# A suspect who sends nothing is forgotten. One who is innocent is cleared by its next write, or shares
# the batches again after this time: it may have waited behind many who hang.
SUSPECT_SECONDS: Final = 60.0
# A hang that took so many times as long as a success was none of the server's. Below `ALONE_RATIO`
# (`postgres/hook_patience.py`): what hangs is ended after so many times as long as the others take.
HANG_RATIO: Final = 2.0
# As many as several batches hold; each costs some 500 bytes.
SUSPECTS_MAX: Final = 4096
# What a hang costs in a batch before that is taken apart (`STALL_SECONDS`). Once newcomers who are led
# alone have cost as much since the last hang of one, batches cost less.
NEWCOMERS_SECONDS: Final = 0.75
# Or once so many have gone through alone, however quickly.
NEWCOMERS_MAX: Final = 256
# Or so long after a batch has hung, which doubles each time that the next batch hangs too. Without this
# bound a hook that takes long for newcomers would keep them apart for ever: alone it is ended sooner
# than in a batch.
NEWCOMERS_APART_SECONDS: Final = 2.5
NEWCOMERS_APART_SECONDS_MAX: Final = 20.0


@dataclass(slots=True)
class _Suspect:
    since: float
    """When its write has hung, or its batch."""
    seconds: float
    """How long that has hung."""
    error: StoreError | None
    """That its last write has met alone; None if that has gone through, or was not tried."""
    has_hung: bool = False
    """Whether a write has hung alone."""


class Suspects:
    """Owners, for a bounded time and number; true while there is any."""

    def __init__(self, clock_seconds: Callable[[], float]) -> None:
        self._clock_seconds = clock_seconds
        self._suspects: dict[UserId, _Suspect] = {}
        """The latest at the end."""
        self._newcomers_left = 0.0
        """For how long newcomers are to go through alone before they share batches again, in seconds."""
        self._newcomer: _Suspect | None = None
        """The last newcomer that has hung alone."""
        self._batch_hung_at, self._apart_seconds = -math.inf, NEWCOMERS_APART_SECONDS
        self._age_sign = 1

    def __len__(self) -> int:
        return len(self._suspects)

    def __contains__(self, owner: object) -> bool:
        return owner in self._suspects

    @property
    def are_newcomers_apart(self) -> bool:
        """Whether owners who are not known yet (`proofs.py`) are led alone, too."""
        since = self._clock_seconds() - self._batch_hung_at
        return self._newcomers_left > 0 and since < self._apart_seconds

    def note_batch_hang(self) -> None:
        """Note that a batch has hung, for as long as a batch may."""
        now = self._clock_seconds()
        if (since := now - self._batch_hung_at) < self._apart_seconds:
            return
        is_again = since < 2 * self._apart_seconds
        longer = 2 * self._apart_seconds if is_again else NEWCOMERS_APART_SECONDS
        self._batch_hung_at, self._apart_seconds = now, min(longer, NEWCOMERS_APART_SECONDS_MAX)

    def note_hang(
        self, owner: UserId, error: StoreError, seconds: float, *, is_newcomer: bool = False
    ) -> None:
        """Suspect an owner whose write has hung alone for so long, with this error."""
        known = self._suspects.pop(owner, None)
        suspect = _Suspect(self._clock_seconds(), seconds, copy_of(error), has_hung=True)
        if is_newcomer and (known is None or not known.has_hung):
            self._newcomers_left, self._newcomer = NEWCOMERS_SECONDS, suspect
        self._note(owner, suspect)

    def note_untried(self, owner: UserId, seconds: float) -> None:
        """Suspect an owner whose write had no time after a batch that hung for so long.

        A suspect stays one, and for no longer than before.
        """
        if owner not in self._suspects:
            self._note(owner, _Suspect(self._clock_seconds(), seconds, None))

    def error_of(self, owner: UserId) -> StoreError | None:
        """Return the error that a write of the owner has met alone."""
        suspect = self._suspects.get(owner)
        return None if suspect is None or suspect.error is None else copy_of(suspect.error)

    def discard(self, owner: UserId) -> None:
        """Suspect the owner no more. Idempotent."""
        self._suspects.pop(owner, None)

    def clear(self, owner: UserId) -> None:
        """Suspect the owner no more, or less: its write has come to an end. Idempotent."""
        suspect = self._suspects.get(owner)
        if suspect is None:
            return
        if suspect.has_hung:
            suspect.error = None
        else:
            del self._suspects[owner]

    def note_led(self, owner: UserId, seconds: float, *, is_newcomer: bool) -> None:
        """Suspect the owner, and newcomers, less: its write has gone through in so long."""
        self.clear(owner)
        if is_newcomer:
            self._newcomers_left -= max(seconds, NEWCOMERS_SECONDS / NEWCOMERS_MAX)

    def discard_since(self, time: float, seconds: float) -> None:
        """Drop suspects whose hang came after `time`, below `HANG_RATIO` times `seconds`."""
        longest = HANG_RATIO * seconds

        def says_nothing(suspect: _Suspect) -> bool:
            return suspect.since > time and suspect.seconds < longest

        for owner in [owner for owner, each in self._suspects.items() if says_nothing(each)]:
            del self._suspects[owner]
        if self._newcomer is not None and says_nothing(self._newcomer):
            self._newcomers_left = 0.0

    def next_age_sign(self) -> int:
        """Return -1 and 1 in turns: the youngest requests are tried first, then the oldest.

        Newcomers have come after those who hang. But while more come who hang, the first of those who
        are innocent would never be tried.
        """
        self._age_sign = -self._age_sign
        return self._age_sign

    def drop_stale(self) -> None:
        """Forget those who have been suspects for `SUSPECT_SECONDS`."""
        latest = self._clock_seconds() - SUSPECT_SECONDS
        while self._suspects:
            owner = next(iter(self._suspects))
            if self._suspects[owner].since > latest:
                return
            del self._suspects[owner]

    def _note(self, owner: UserId, suspect: _Suspect) -> None:
        self._suspects[owner] = suspect
        if len(self._suspects) > SUSPECTS_MAX:
            del self._suspects[next(iter(self._suspects))]


def copy_of(error: StoreError) -> StoreError:
    """Return an error of the same type and text; traceback and cause would keep frames alive."""
    return type(error).__new__(type(error), *error.args)
