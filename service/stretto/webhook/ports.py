"""What a sender needs from other parts: the endpoint, and the store of its reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stretto.targets.delivery import DeliveryStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from stretto.targets.delivery import Move, ReaderTarget
    from stretto.webhook.rules import Answer


class Endpoint(Protocol):
    """Receives the events."""

    connections_opened: int
    """How many connections to it were opened so far, with their TLS."""

    @property
    def url_digest(self) -> bytes:
        """SHA-256 of its URL: it differs if the settings name another endpoint."""

    async def send(self, event_id: UUID, body: bytes, fields: Mapping[str, str]) -> Answer:
        """Send an event with further header fields; every network error is returned as an answer."""

    async def is_blocked(self) -> bool:
        """Whether it would not be called now, because none of its addresses is public."""


class WebhookStore(DeliveryStore, Protocol):
    """Short statements, each a transaction of its own; each raises a `StoreError`.

    A store is of one URL. It takes, enrols, puts off, pauses and disables only while that is the
    target of the webhook's reader. No delivery is taken while the endpoint is paused or disabled.
    """

    is_disabled: bool
    """Whether the target was disabled when the oldest event was last asked for."""
    has_marked: bool
    """Whether the last `take` has met wrong marks: others may be due behind those deliveries."""
    target: ReaderTarget | None
    """The target when the oldest event was last asked for; None if the reader has no row."""
    move: Move | None
    """The last one that this store has made."""

    async def open(self) -> None:
        """Make our URL the target; begin at the present, unless a process has begun before.

        Another URL than before ends a pause, enables the webhook, and makes waiting events due and
        untried.
        """

    async def count_due(self, deliveries_max: int) -> int:
        """Return how many deliveries are due, and `deliveries_max` if there are more."""

    async def enrol(self, events_max: int) -> int:
        """Create deliveries for the next events, up to so many; return how many.

        Raises `PositionLost` where the log no longer has what comes next: the place was moved to
        where the log begins, by this call and by none of another process.
        """

    async def serve(self, seen: ReaderTarget) -> None:
        """Say that our target is served, unless that was said since it was seen so.

        If the database's clock has gone back, what is put off and a pause go back with it.
        """

    async def take_over(self, seen: ReaderTarget) -> None:
        """Make our URL the target, as `open` does, if the target is still as it was seen."""

    async def move_again(self, lost: Move, seen: ReaderTarget) -> None:
        """Make our URL the target by a move that was lost, if the target is still the one seen.

        Also where that one's senders have said since that they serve it.
        """

    async def pause(self, seconds: float) -> None:
        """Send nothing for `seconds`, from any replica."""

    async def disable(self) -> bool:
        """Send nothing from any replica until it is enabled; return whether that is news."""
