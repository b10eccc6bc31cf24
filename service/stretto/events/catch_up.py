"""Catch-up: one session's way from where it left to the present.

A session takes part in the hub before it first asks, so that no event falls between history and
what comes live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from stretto.events.history_reader import Ask, Stretch
from stretto.events.positions import Bookmark, Cursor, PositionLost
from stretto.events.session import TOLD_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.events.history import HistoryBounds, PastEvent
    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.positions import Origin
    from stretto.events.session import Session
    from stretto.runtime.mailbox import Mailbox

# Before all ids of events.
_FIRST_ID: Final = UUID(int=0)


class Replay:
    """One session's way from where it left to the present."""

    def __init__(
        self,
        mailbox: Mailbox[Ask, Stretch],
        session: Session,
        origin: Origin,
        bookmark: Bookmark | None,
    ) -> None:
        """Take a session that takes part already; one without a bookmark has missed nothing."""
        self._mailbox = mailbox
        self._session = session
        self._origin = origin
        self._bookmark = bookmark
        self._bounds: HistoryBounds | None = None
        """Those of this round's first stretch."""
        self._stretch: Stretch | None = None
        """What was read and not yet taken."""
        self._end: Cursor | None = None
        # What was told that the next round would find again, in this round and in the one before.
        self._beyond: set[UUID] = set()
        self._known: set[UUID] = set()

    @property
    def is_resumption(self) -> bool:
        """Whether anything may have been missed at all."""
        return self._bookmark is not None

    async def begin(self) -> str:
        """Read the first stretch; return the bookmark that holds until an event is told.

        Raises `PositionLost`, `Overloaded` or `Unreachable`.
        """
        after = None
        if self._bookmark is not None:
            if self._bookmark.origin != self._origin:
                raise PositionLost
            after = Cursor(self._bookmark.position, _FIRST_ID)
        self._stretch = await self._ask(after)
        self._bounds = self._stretch.bounds
        return str(self._bookmark or self.present)

    @property
    def present(self) -> str:
        """The bookmark that holds once all that was missed has been told."""
        assert self._bounds is not None, "begin first"
        return str(Bookmark(self._bounds.live, self._origin))

    async def next(self) -> Sequence[OutgoingEvent] | None:
        """Return the next of what was missed, in order; nothing at the end.

        Raises `PositionLost`, `Overloaded` or `Unreachable`.
        """
        if self._stretch is None:
            if self._end is not None:
                self._stretch = await self._ask(self._end)
            elif self._session.go_live():
                return None
            else:
                self._stretch = await self._go_round()
        stretch, self._stretch = self._stretch, None
        self._end = stretch.end
        return [outgoing for outgoing, past in stretch.events if self._is_new(outgoing, past)]

    async def _go_round(self) -> Stretch:
        """Read again from where something may have committed since the last round began."""
        assert self._bounds is not None, "begin first"
        after = Cursor(self._bounds.settled, _FIRST_ID)
        self._bounds = None
        self._known, self._beyond = self._beyond, set()
        stretch = await self._ask(after)
        self._bounds = stretch.bounds
        return stretch

    def _is_new(self, outgoing: OutgoingEvent, past: PastEvent) -> bool:
        """Take note that the client is told this event; return whether it was not told before."""
        assert self._bounds is not None, "begin first"
        self._session.note_replayed(outgoing, is_under_way=past.is_under_way)
        if past.event.resume_from >= self._bounds.settled and len(self._beyond) < TOLD_MAX:
            self._beyond.add(outgoing.event_id)
        return outgoing.event_id not in self._known

    async def _ask(self, after: Cursor | None) -> Stretch:
        return await self._mailbox.ask(Ask(self._session.user, after, self._bounds))
