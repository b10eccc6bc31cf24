"""DeletionWatch: learns from the log which groups any process has deleted, and has them forgotten.

A process answers a key from its memory, without the database. That answer must end when the group is
deleted, by whatever process or host. So this reads the log from a place of its own, for deletions
alone. It begins whether or not there are sessions, and keeps its place in memory.

What cannot be read may have been a deletion: then everything is forgotten. What was not looked for
may have been one, too: each look confirms what is remembered as of its beginning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from stretto.events.place import PositionLost
from stretto.runtime.actor import Actor, Pace
from stretto.runtime.backoff import Backoff
from stretto.runtime.boot_clock import boot_seconds
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from stretto.events.place import Place, Present

# So long a deleted group's key is still answered from the memory of another process, and for the look
# itself: a millisecond, or until a database that does not answer is given up.
LOOK_SECONDS: Final = 1.0
# More in one look: forgetting all costs less than going through them.
DELETIONS_MAX: Final = 1000


class DeletionLog(Protocol):
    """Reads the log for deletions."""

    async def deletions(self, begin: Place | None, limit: int) -> tuple[Sequence[UUID], Present]:
        """Return groups whose deletion the place does not cover, up to `limit`, and the present.

        Without a place, none. One statement; raises a `StoreError`.
        """


class DeletionWatch(Actor):
    """Has the outcomes of deleted groups forgotten; a turn is one look."""

    failures = (StoreError,)
    pace = Pace(seconds=LOOK_SECONDS)
    backoff = Backoff(0.1, LOOK_SECONDS)

    def __init__(
        self,
        log: DeletionLog,
        forget: Callable[[bytes], None],
        forget_all: Callable[[], None],
        confirm: Callable[[float], None],
        clock_seconds: Callable[[], float] = boot_seconds,
    ) -> None:
        """Take what is called with the time before which all deletions are forgotten."""
        super().__init__("deletion watch")
        self._log = log
        self._forget = forget
        self._forget_all = forget_all
        self._confirm = confirm
        self._clock_seconds = clock_seconds
        self._place: Place | None = None

    async def open(self) -> None:
        """Begin at the present, before there is anything to forget. Raises a `StoreError`."""
        # First: also if this look fails, what no later one confirms counts as unknown.
        self._confirm(self._clock_seconds())
        await self._begin()

    async def _begin(self) -> None:
        _, present = await self._log.deletions(None, 0)
        self._place = present.place

    async def run_once(self) -> int:
        """Look once; return how many deleted groups were found. Raises a `StoreError`."""
        # Before the statement, which shows what was deleted by then: the process may be stopped
        # between its answer and what follows here.
        began_seconds = self._clock_seconds()
        try:
            found = await self._look()
        except Exception:
            self._forget_all()
            # The next look begins at the present, and forgets all once more. From the same place it would
            # read more each time: where one has taken too long, the next would, too.
            self._place = None
            raise
        self._confirm(began_seconds)
        return found

    async def _look(self) -> int:
        if self._place is None:
            await self._begin()
            # What is remembered may have been deleted before that place.
            self._forget_all()
            return 0
        group_ids, present = await self._log.deletions(self._place, DELETIONS_MAX)
        try:
            present.require(self._place)
        except PositionLost:
            self._forget_all()
        if len(group_ids) == DELETIONS_MAX:
            self._forget_all()
        for group_id in group_ids:
            self._forget(group_id.bytes)
        self._place = present.place
        return len(group_ids)
