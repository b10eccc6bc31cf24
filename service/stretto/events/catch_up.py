"""CatchUp: what one session has missed, from its position to the present.

There is no gap between the log and live events: the session joins the hub before it first reads. An
event that the hub has had before the session joined is visible to every later read. What both bring
is left out of the session's queue: the place where the last read ended says exactly which.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from stretto.events.place import Place
from stretto.events.scan import Ask, Stretch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from stretto.events.hub import SessionHub
    from stretto.events.outgoing import OutgoingEvent
    from stretto.events.session import Session
    from stretto.runtime.mailbox import Mailbox

Waited = TypeVar("Waited")

# The answer to a session's request, and the first bytes of its stream, cost as much as so many
# events; so does its end. Thousands may wait for the same: for the log to be followed, or for a read.
OPENING_SENDS: Final = 8


class CatchUp:
    """Reads what one session has missed, stretch by stretch, and lets it go live."""

    def __init__(
        self,
        mailbox: Mailbox[Ask, Stretch],
        session: Session,
        hub: SessionHub,
        place: Place | None,
    ) -> None:
        """Take a session that has joined the hub; one without a place has missed nothing."""
        self._mailbox = mailbox
        self._session = session
        self._hub = hub
        self._place = place
        self.is_resumption = place is not None
        """Whether the client gave a position, so that it may have missed something."""
        self._is_end = False
        self._stretch: Stretch | None = None
        """What was read and is not yet returned."""

    def again(self, position: str) -> CatchUp:
        """Return how a session that is behind catches up: as if its client had come back with this."""
        return CatchUp(self._mailbox, self._session, self._hub, Place.parse(position))

    @property
    def position(self) -> str:
        """The client's position before the first missed event is sent, and after the last."""
        return str(self._place)

    async def begin(self) -> None:
        """Read the first stretch. Raises `PositionLost`, `Overloaded` or a `StoreError`."""
        await self._in_turn(self._begin())

    async def _begin(self) -> None:
        followed = await self._hub.followed()
        if self._place is None:
            # What commits from here on comes live: there is nothing to read.
            self._place, self._is_end = followed, True
        else:
            self._stretch = await self._ask(self._place)

    async def next(self) -> Sequence[OutgoingEvent] | None:
        """Return the next missed events, in order; None once the session is live.

        Raises `PositionLost`, `Overloaded` or a `StoreError`.
        """
        assert self._place is not None, "begin first"
        stretch, self._stretch = self._stretch, None
        if stretch is None:
            if self._is_end and self._session.go_live(self._place):
                return None
            stretch = await self._in_turn(self._ask(self._place))
        self._place, self._is_end = stretch.place, stretch.is_end
        return stretch.events

    async def _ask(self, place: Place) -> Stretch:
        return await self._mailbox.ask(Ask(self._session.user, place))

    async def _in_turn(self, waited: Awaitable[Waited]) -> Waited:
        """Return what is waited for, or raise its error, in a turn of the session's."""
        try:
            result = await waited
        except Exception:
            await self._session.turn(OPENING_SENDS)
            raise
        await self._session.turn(OPENING_SENDS)
        return result
