"""SessionHub: the live sessions of one process, by user, and which of them get an event.

Delivering is synchronous and waits for no session. The hub does no I/O and reads no database: the
`LogTail` brings what commits from now on, the `HistoryReader` what a session has missed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from stretto.domain import UserId
from stretto.errors import Overloaded, RateLimited
from stretto.events.close_codes import CloseCode
from stretto.events.outgoing import OutgoingEvent, Push
from stretto.events.session import Session
from stretto.events.session_turns import SessionTurns
from stretto.observations import EventDelivered, SessionEnded, SessionFellBehind
from stretto.runtime.actor import Actor, Pace
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from stretto.events.log import LoggedEvent
    from stretto.events.place import Place
    from stretto.events.settings import HubSettings
    from stretto.observations import Observer
    from stretto.telemetry.tracing import Tracing

# A token's end is noticed at most this late.
TICK_SECONDS: Final = 1.0
# A token may have no end. As long as an issuer's keys are trusted while the issuer does not answer.
SESSION_SECONDS_MAX: Final = 24 * 3600.0
# For the clients to close their sessions; then the process stops without waiting for them.
STOP_SECONDS: Final = 3.0
# For the log to be read, after the first session has joined: clients wait about as long.
FOLLOW_SECONDS: Final = 10.0
# A user with too many sessions must end one; a full process has room when clients go elsewhere.
RETRY_AFTER_SECONDS: Final = 5
# Sent to all sessions of a user who has too many, in turns of the hub: well within that time. A client
# that has left a stream behind a proxy shows only then: haproxy closes with the second one.
HEARTBEATS: Final = 2
# A heartbeat costs some 25 µs. A user's sessions get theirs in one turn.
HEARTBEATS_PER_TURN: Final = 1024
_UNFOLLOWED: Final = "the log of events could not be read in time"


class SessionHub(Actor):
    """Holds the sessions of every user; a turn closes those whose token has ended."""

    pace = Pace(seconds=TICK_SECONDS)

    def __init__(
        self,
        settings: HubSettings,
        observe: Observer,
        clock_seconds: Callable[[], float] = time.time,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__("session hub")
        self._settings = settings
        self._observe = observe
        self._clock_seconds = clock_seconds
        self._tracing = tracing
        # A dict for its order: sessions get an event in the order in which they joined.
        self._sessions: dict[str, dict[Session, None]] = {}
        self.turns = SessionTurns()
        """In which sessions send, and end."""
        self._crowded: dict[str, int] = {}
        """Users who had too many sessions, and how many heartbeats those still get."""
        self._count = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.on_join: Callable[[], None] = lambda: None
        """Is called when a session joins while the log is not followed: the tail must begin."""
        self.on_tick: Callable[[], None] = lambda: None
        """Is called in each turn, while there are sessions."""
        self._place: Place | None = None
        self._placed = asyncio.Event()
        self._delivered: Place | None = None

    @property
    def stop_seconds(self) -> float:
        """The longest time that `close` takes, and one second more."""
        return STOP_SECONDS + 1

    @property
    def session_events_max(self) -> int:
        """How many events may wait for a session."""
        return self._settings.session_events_max

    def __len__(self) -> int:
        return self._count

    @property
    def place(self) -> Place | None:
        """The place that the tail has reached; None while the log is not followed.

        What it does not cover comes to every session.
        """
        return self._place

    def move(self, place: Place | None) -> None:
        """Set the place that the tail has reached, before it delivers the events up to there."""
        self._place = place
        if place is None:
            self._placed.clear()
        else:
            self._placed.set()

    @property
    def delivered(self) -> Place | None:
        """The place up to which all was delivered: during a delivery it lies behind `place`."""
        return self._delivered

    def mark_delivered(self) -> None:
        """Note that all was delivered that lies before the present place."""
        self._delivered = self._place

    async def followed(self) -> Place:
        """Wait until the log is followed, and return the place; raises `Unreachable`, `Overloaded`.

        A session that reads the log after this misses nothing between the read and what comes live.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(FOLLOW_SECONDS):
                await self._placed.wait()
        if self._place is not None:
            return self._place
        raise Overloaded.while_stopping() if self.is_stopping else Unreachable(_UNFOLLOWED)

    @contextmanager
    def session(self, user: UserId, ends_at: float, key: object = None) -> Iterator[Session]:
        """Join the hub until the block is left; events gather from its first moment on.

        No `await` may come between verifying the token by its key and this call: if the key is
        withdrawn in between, `withdraw` does not find the session.
        Raises `RateLimited` if the user has too many sessions, `Overloaded` if the process has.
        """
        if self.is_stopping:
            raise Overloaded.while_stopping()
        user = user if type(user) is UserId else UserId(user)
        if self._count >= self._settings.sessions_max:
            raise Overloaded(
                "The service has as many sessions as it can hold.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        if len(self._sessions.get(user, ())) >= self._settings.sessions_per_user:
            self._crowded[user] = HEARTBEATS
            raise RateLimited(
                f"A user may have {self._settings.sessions_per_user} sessions at once.",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        ends_at = min(ends_at, self._clock_seconds() + SESSION_SECONDS_MAX)
        session = Session(user, ends_at, self._settings.session_events_max, key, self.turns)
        self._sessions.setdefault(user, {})[session] = None
        self._count += 1
        self._empty.clear()
        if self._place is None:
            self.on_join()
        try:
            yield session
        finally:
            session.close(CloseCode.CLIENT_LEFT)
            self._remove(session)

    def deliver(self, logged: LoggedEvent, position: str) -> int:
        """Queue an event for the sessions of its recipients; return how many these are.

        It waits for none of them.
        """
        outgoing: OutgoingEvent | None = None
        sessions = 0
        for user in logged.event.recipients:
            for session in self._sessions.get(user, ()):
                outgoing = outgoing or self._outgoing(logged, position)
                session.offer(outgoing)
                sessions += 1
        if sessions:
            self._observe(EventDelivered(sessions))
        if outgoing is not None and outgoing.push is not None:
            outgoing.push.leave()
        return sessions

    def fall_back(self, session: Session) -> None:
        """Have a session that is behind catch up again, from its client's position."""
        session.fall_back()
        self._observe(SessionFellBehind())

    async def sent(self, until: float) -> None:
        """Wait until every session whose client reads has sent what was queued for it.

        Not beyond `until`, on the loop's clock, but for a turn of the loop at least.
        """
        loop = asyncio.get_running_loop()
        while True:
            # While any waits, the loop is busy: to look in each of its turns costs nothing beside that.
            await asyncio.sleep(0)
            if not self.turns.live.is_behind or loop.time() >= until:
                return

    def _outgoing(self, logged: LoggedEvent, position: str) -> OutgoingEvent:
        """Return an event for sessions, whose push is recorded if its request was sampled."""
        push, trace_context = None, logged.event.trace_context
        if self._tracing is not None and trace_context is not None:
            span = self._tracing.resume("stretto.push", trace_context)
            push = None if span is None else Push(span)
        return OutgoingEvent(logged, position, push)

    async def run_once(self) -> int:
        """Close the sessions whose token has ended; return how many."""
        if self._count:
            self.on_tick()
        self._find_left()
        now = self._clock_seconds()
        ended = [session for session in self._all() if session.ends_at <= now]
        for session in ended:
            session.close(CloseCode.TOKEN_ENDED)
        return len(ended)

    def _find_left(self) -> None:
        """Have heartbeats sent where clients may have left: their sessions count until that shows."""
        sent = 0
        for user, heartbeats in tuple(self._crowded.items()):
            if sent >= HEARTBEATS_PER_TURN:
                return
            # The others come first in the next turn.
            del self._crowded[user]
            sessions = self._sessions.get(user, ())
            for session in sessions:
                session.hurry()
            sent += len(sessions)
            if sessions and heartbeats > 1:
                self._crowded[user] = heartbeats - 1

    def withdraw(self, keys: Collection[object]) -> None:
        """Close the sessions whose token one of these keys has verified."""
        for session in self._all():
            if session.key in keys:
                session.close(CloseCode.TOKEN_ENDED)

    def stop(self) -> None:
        """Accept no more sessions and close all there are. Idempotent."""
        super().stop()
        self._placed.set()
        for session in self._all():
            session.close(CloseCode.GOING_AWAY)

    async def close(self) -> None:
        """Wait until the last session has left, for a bounded time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._empty.wait()

    def interrupt(self) -> None:
        """Close all sessions, so that their clients resume: this process has missed events."""
        for session in self._all():
            session.close(CloseCode.EVENTS_MISSED)

    def _all(self) -> Iterator[Session]:
        return itertools.chain.from_iterable(self._sessions.values())

    def _remove(self, session: Session) -> None:
        sessions = self._sessions[session.user]
        del sessions[session]
        if not sessions:
            del self._sessions[session.user]
        self._count -= 1
        if self._count == 0:
            self._empty.set()
        assert session.close_code is not None
        self._observe(SessionEnded(session.close_code))
