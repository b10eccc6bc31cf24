"""CatchUp: what one session has missed, from its position to the present.

The session joins the hub before it first asks, so that no event falls between history and live
events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from stretto.events.history_reader import Ask, Stretch
from stretto.events.positions import ClientPosition, Cursor, PositionLost
from stretto.events.session import SENT_IDS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.events.history import HistoryBounds, PastEvent
    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.positions import Origin
    from stretto.events.session import Session
    from stretto.runtime.mailbox import Mailbox

# Before every event's id.
_FIRST_ID: Final = UUID(int=0)


class CatchUp:
    """Reads what one session has missed, stretch by stretch and in rounds.

    A round reads from a position to the present. While it reads, more live events may come than the
    session's queue holds; the session drops them, and another round reads them from history.
    """

    def __init__(
        self,
        mailbox: Mailbox[Ask, Stretch],
        session: Session,
        origin: Origin,
        position: ClientPosition | None,
    ) -> None:
        """Take a session that has joined the hub; one without a position has missed nothing."""
        self._mailbox = mailbox
        self._session = session
        self._origin = origin
        self._position = position
        self._bounds: HistoryBounds | None = None
        """Those of this round's first stretch."""
        self._stretch: Stretch | None = None
        """What was read and is not yet returned."""
        self._end: Cursor | None = None
        # Ids already sent that the next round reads again: `_beyond` of this round, `_known` of the
        # last.
        self._beyond: set[UUID] = set()
        self._known: set[UUID] = set()

    @property
    def is_resumption(self) -> bool:
        """Whether the client gave a position, so that it may have missed something."""
        return self._position is not None

    async def begin(self) -> str:
        """Read the first stretch; return the client's position until an event is sent.

        Raises `PositionLost`, `Overloaded` or `Unreachable`.
        """
        after = None
        if self._position is not None:
            if self._position.origin != self._origin:
                raise PositionLost
            after = Cursor(self._position.position, _FIRST_ID)
        self._stretch = await self._ask(after)
        self._bounds = self._stretch.bounds
        return str(self._position or self.present)

    @property
    def present(self) -> str:
        """The client's position once everything that it missed has been sent."""
        assert self._bounds is not None, "begin first"
        return str(ClientPosition(self._bounds.live, self._origin))

    async def next(self) -> Sequence[OutgoingEvent] | None:
        """Return the next missed events, in order; None once the session is live.

        Raises `PositionLost`, `Overloaded` or `Unreachable`.
        """
        if self._stretch is None:
            if self._end is not None:
                self._stretch = await self._ask(self._end)
            elif self._session.go_live():
                return None
            else:
                self._stretch = await self._next_round()
        stretch, self._stretch = self._stretch, None
        self._end = stretch.end
        return [outgoing for outgoing, past in stretch.events if self._is_new(outgoing, past)]

    async def _next_round(self) -> Stretch:
        """Read again from the lowest position at which a transaction may have committed since."""
        assert self._bounds is not None, "begin first"
        after = Cursor(self._bounds.settled, _FIRST_ID)
        self._bounds = None
        self._known, self._beyond = self._beyond, set()
        stretch = await self._ask(after)
        self._bounds = stretch.bounds
        return stretch

    def _is_new(self, outgoing: OutgoingEvent, past: PastEvent) -> bool:
        """Note that the client gets this event; return whether the last round did not send it."""
        assert self._bounds is not None, "begin first"
        self._session.note_sent(outgoing, is_under_way=past.is_under_way)
        if past.event.position >= self._bounds.settled and len(self._beyond) < SENT_IDS_MAX:
            self._beyond.add(outgoing.event_id)
        return outgoing.event_id not in self._known

    async def _ask(self, after: Cursor | None) -> Stretch:
        return await self._mailbox.ask(Ask(self._session.user, after, self._bounds))
