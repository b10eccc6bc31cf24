"""LogTail: follows the log of events for the live sessions of this process.

It is woken by this process's own writers and by the announcements of others; what neither reports
is found by looking. It keeps its place in memory, since sessions end with their process. While
there are no sessions it reads nothing, and holds no connection unless another reader needs to hear
of announcements.

A read that fails is repeated from the same place. A place that is lost, as when the log was swept
beyond it, ends all sessions: their clients resume, and learn what cannot be had.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from stretto.events.log import PAGE_EVENTS, report_unreadable
from stretto.events.place import PositionLost
from stretto.observations import PlaceLost
from stretto.runtime.actor import Actor, Pace
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.events.hub import SessionHub
    from stretto.events.log import LoggedEvent, TailStore
    from stretto.observations import Observer

# How often to look for what was not announced: an announcement is lost with its process.
LOOK_SECONDS: Final = 1.0
# The same where announcements are not heard: a pooler's sessions cannot listen.
LOOK_SECONDS_UNHEARD: Final = 0.05
# How long a wake-up waits for more events: one read of ten costs as much as one of one.
GATHER_SECONDS: Final = 0.005
# After so many events, sessions send them before more are queued; after fewer where a session's queue
# holds fewer. So few sessions fall behind in a burst.
BURST_EVENTS: Final = 64
# For so long, from the last time on when the tail was at the present. Then it goes on: sessions that
# cannot keep up fall behind, and the others' events do not wait for those.
BURST_SECONDS: Final = 0.1
# Into the queues of sessions, in one turn of the event loop: some 5 ms.
QUEUED_PER_TURN: Final = 4096
# Announcements within this time are one: each takes a lock that all of the server's share.
ANNOUNCE_SECONDS: Final = 0.01


class LogTail(Actor):
    """Delivers what commits from now on to the hub; a turn is one page."""

    failures = (StoreError,)

    def __init__(
        self,
        log: TailStore,
        hub: SessionHub,
        observe: Observer,
        *,
        is_unheard: bool = False,
        others: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Take in `others` what wakes readers that need announcements also without sessions."""
        super().__init__("log tail")
        self.pace = Pace(
            seconds=LOOK_SECONDS_UNHEARD if is_unheard else LOOK_SECONDS,
            gather_seconds=GATHER_SECONDS,
            full=PAGE_EVENTS,
        )
        self._log = log
        self._hub = hub
        self._observe = observe
        self._others = [*others]
        self._undelivered: deque[tuple[LoggedEvent, str]] = deque()
        self._present_at = 0.0
        """On the loop's clock: when a read last ended at the present."""
        hub.on_join = self.wake

    async def run_once(self) -> int:
        """Read a page and deliver it; return `PAGE_EVENTS` if there may be more.

        Raises a `StoreError`; the next turn then reads the same page.
        """
        # What a turn that was cancelled has left.
        await self._deliver()
        if not self._hub:
            self._hub.move(None)
        if not self._hub and not self._others:
            await self._log.close()
            return 0
        try:
            await self._log.listen(self._on_announced)
            if not self._hub:
                return 0
            read = await self._read()
        except StoreError:
            await self._log.close()
            raise
        # Not before: a client that gets a position must have got every event that this covers.
        self._hub.mark_delivered()
        return read

    async def close(self) -> None:
        """Give the connection back."""
        await self._log.close()

    def hear_for(self, wake: Callable[[], None]) -> None:
        """Call this when another process has written, also without sessions, until `hear_less`."""
        self._others.append(wake)
        # To open the connection.
        self.wake()

    def hear_less(self, wake: Callable[[], None]) -> None:
        """Call it no more; without sessions and others the next turn closes the connection."""
        self._others.remove(wake)

    def _on_announced(self) -> None:
        self.wake()
        for wake in self._others:
            wake()

    async def _read(self) -> int:
        place = self._hub.place
        if place is None:
            self._hub.move(await self._log.present())
            self._present_at = asyncio.get_running_loop().time()
            return 0
        page = await self._log.page(place, PAGE_EVENTS)
        try:
            page.present.require(place)
        except PositionLost:
            self._observe(PlaceLost(self.name))
            self._hub.interrupt()
            self._hub.move(page.present.place)
            return 0
        if not page.is_full:
            self._present_at = asyncio.get_running_loop().time()
        report_unreadable(page, self.name, self._observe)
        self._undelivered.extend(page.numbered())
        # Before the delivery: a session that joins during it gets what comes after this page.
        self._hub.move(page.place)
        await self._deliver()
        return PAGE_EVENTS if page.is_full else 0

    async def _deliver(self) -> None:
        burst_events = min(BURST_EVENTS, self._hub.session_events_max)
        until = self._present_at + BURST_SECONDS
        events = queued = 0
        if self._undelivered and self._hub.turns.live.is_behind:
            # Of the page before.
            await self._hub.sent(until)
        while self._undelivered:
            queued += self._hub.deliver(*self._undelivered.popleft())
            events += 1
            if events % burst_events == 0:
                queued = 0
                await self._hub.sent(until)
            elif queued >= QUEUED_PER_TURN:
                queued = 0
                await asyncio.sleep(0)


class Announcer(Actor):
    """Announces to other processes that this one has written; a turn is one announcement.

    Never in a writing transaction: a commit that announces waits for every other one that does.
    """

    failures = (StoreError,)
    # Only a wake-up makes work; one announcement too many does no harm.
    pace = Pace(seconds=3600.0, gather_seconds=ANNOUNCE_SECONDS, rests_first=True)

    def __init__(self, announce: Callable[[], Awaitable[None]]) -> None:
        super().__init__("announcer")
        self._announce = announce

    async def run_once(self) -> int:
        """Announce. Raises a `StoreError`; the next turn then announces."""
        await self._announce()
        return 1
