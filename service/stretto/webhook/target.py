"""Target: what a sender does so that the webhook's events go to an address that is served.

A sender of the reader's target says now and then that it serves it. One of another address waits, and
takes over once that is no longer said. Both go by their own monotonic clock, and compare no times of the
database's: its clock may jump. Nothing else that a sender does is needed for this, or delays it: it may
enrol nothing, and its endpoint may be paused or gone.

A failover may lose a move, so that the target is again one that ours had replaced. That one may have no
sender any more, so ours moves it again at once. Of several senders that do so, the newest move wins: each
keeps its time, and none replaces a newer one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.observations import WebhookUnserved
from stretto.targets.delivery import Move

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.observations import Observer
    from stretto.targets.delivery import ReaderTarget
    from stretto.webhook.ports import WebhookStore

# A sender takes over from a target of which no sender has said for so long that it is served. It is not
# said either once the target has answered 410.
UNSERVED_SECONDS: Final = 180.0
# Unless another sender has said so, or an enrolment: then it costs nothing.
SERVE_SECONDS: Final = 60.0
# A sender that waits reports it after so long: once is missed where the database is slow, twice is not.
REPORT_SECONDS: Final = 120.0
# A sender that has looked longer ago than this begins to wait anew: the database may have been away, so
# that the target's could not say anything either. Each needs 6 s at most to be there again.
LOOK_GAP_SECONDS_MAX: Final = 60.0


class Target:
    """What one sender has seen of the target, which its store reads once a second."""

    def __init__(
        self, store: WebhookStore, observe: Observer, clock_seconds: Callable[[], float]
    ) -> None:
        self._store = store
        self._observe = observe
        self._clock_seconds = clock_seconds
        self._seen: ReaderTarget | None = None
        self._looked_at = clock_seconds()
        self._unchanged_since = clock_seconds()
        self._is_reported = False
        self._move: Move | None = None
        """The newest one to our address that is known."""

    async def serve(self) -> None:
        """Say that ours is served, or take over from one that is not. Raises a `StoreError`.

        Once for each reading: what this changes is only seen with the next one.
        """
        target = self._store.target
        if target is None or target is self._seen:
            return
        now = self._clock_seconds()
        was_away = now - self._looked_at > LOOK_GAP_SECONDS_MAX
        if target != self._seen or (was_away and not target.is_ours):
            self._unchanged_since = now
            self._is_reported = False
        self._seen, self._looked_at = target, now
        self._note_move(target)
        unchanged_seconds = now - self._unchanged_since
        if not target.is_ours:
            await self._wait(target, unchanged_seconds)
        elif self._store.is_disabled:
            # That is no service: a sender of another address may go on.
            pass
        elif target.is_ahead or unchanged_seconds >= SERVE_SECONDS:
            await self._store.serve(target)

    async def _wait(self, target: ReaderTarget, unchanged_seconds: float) -> None:
        """Leave the events to another address, unless it is not served, or has ours again by a failover."""
        if self._move is not None and target.moved_at <= self._move.after:
            await self._store.move_again(self._move, target)
        elif unchanged_seconds >= UNSERVED_SECONDS:
            await self._store.take_over(target)
        elif unchanged_seconds >= REPORT_SECONDS and not self._is_reported:
            self._is_reported = True
            self._observe(WebhookUnserved())

    def _note_move(self, target: ReaderTarget) -> None:
        known = self._store.move
        if known is not None and (self._move is None or known.at > self._move.at):
            self._move = known
        if target.is_ours and (self._move is None or target.moved_at > self._move.at):
            # Another sender of our address has made it. What came before it is not known, so all does.
            self._move = Move(target.moved_at, target.moved_at - 1)
