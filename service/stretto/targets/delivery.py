"""Deliveries: events that a reader's target still has to get, one by one, or that are dead letters.

A reader of the log goes on when its target refuses an event, or is slow to take it. The event then
waits as a delivery, a copy of its own, until it is sent or is a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent

# The reason of a dead letter that no target has refused.
UNREADABLE: Final = "no event can be made of its row, such as where conversation_id (of a change event_id) is no UUIDv7"


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event on its way to the reader's target, on lease."""

    event: CommittedEvent
    tries: int
    """How many tries have failed."""
    owner_id: str = ""
    """Of its group; empty for what an instance of an older version has enrolled."""


@dataclass(frozen=True, slots=True)
class PutOff:
    """A delivery that was not sent: when to try again, or why it is a dead letter."""

    event_id: UUID
    seconds: float = 0.0
    is_try: bool = False
    """Whether this counts as a try that has failed."""
    dead_reason: str | None = None
    """None: it is tried again."""


@dataclass(frozen=True, slots=True)
class ReaderTarget:
    """Which target a reader has, and whether it is served. It differs once that was said again."""

    digest: bytes | None
    served_at: str
    """When a sender has said so. It is compared with no time: the database's clock may jump."""
    is_ours: bool
    is_ahead: bool = field(compare=False)
    """Whether that is more than a minute ahead of the database's clock, which has gone back."""
    moved_at: int = 0
    """The time of the move that has made it the target, in microseconds; 0 for the first target."""


@dataclass(frozen=True, slots=True)
class Move:
    """A move of a reader to another target. Of two moves the later one has the greater time."""

    at: int
    """Its time, in microseconds. It is compared with those of other moves alone."""
    after: int
    """The time of the move before it."""


class DeliveryStore(Protocol):
    """Short statements, each a transaction of its own; each raises a `StoreError`."""

    async def take(
        self,
        deliveries_max: int,
        lease_seconds: float,
        under_way: Mapping[str, int] | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> Sequence[Delivery]:
        """Lease due deliveries, of owners in turn; a synchronous standby has their events.

        With `under_way`, the requests of each owner, no owner gets more than twice as many as are left
        for all. `only`, if given, are the owners whose deliveries are leased, the first ones first; those
        of the owners in `without` are not. Nothing is leased if the reader has another target by now.
        """

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> Collection[UUID]:
        """Delete the deliveries that were sent; put off the others. Return the new dead letters.

        If the reader has another target by now, the others stay as they are: that one decides.
        """

    async def oldest_seconds(self) -> float | None:
        """Return the age of the oldest event that the target has not got yet, if there is one."""
