"""What the relay needs: a bus, and the bus's place in the log.

An event is published at least once, always under the same id: a consumer with effects deduplicates
by it (G8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from stretto.events.log import LogStore
from stretto.kinds import name_of
from stretto.targets.delivery import DeliveryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent, LoggedEvent
    from stretto.events.place import Place
    from stretto.targets.delivery import Delivery, PutOff

    # Reads on in the log.
    Behind = Callable[[], AsyncIterator[CommittedEvent]]

# Of an event's envelope: on the bus and to the webhook's endpoint.
CONTENT_TYPE: Final = "application/cloudevents+json"


def raised(error: BaseException) -> str:
    """Return the reason of an event for which a bus has raised this; its text may hold what is secret."""
    return f"publish raised {name_of(error)}"


class BusUnavailable(Exception):
    """The bus accepts nothing now; whether the events were published is unknown."""


class EventBus(Protocol):
    """Carries events to other consumers; the service itself reads the log and needs no bus."""

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish the events; return the reasons of those that were refused, by event id.

        Raises `BusUnavailable`; each of the events may then be published or not.
        """


async def nothing_behind() -> AsyncIterator[CommittedEvent]:
    """Yield no event: as behind the end of the log."""
    nothing: tuple[CommittedEvent, ...] = ()
    for event in nothing:
        yield event


class DoubtedBus(EventBus, Protocol):
    """A bus whose failure may be due to an event, and which finds out."""

    was_slow: bool
    """Whether the last events took too long together: the next ones should be fewer."""

    @property
    def has_blamed(self) -> bool:
        """Whether it fails for some owners: the bus of another process may not."""

    @property
    def slow_owners(self) -> Collection[str]:
        """Owners whose refused events take long: they take turns of their own."""

    def slow_turn(self) -> Sequence[str]:
        """Return those of the slow owners of whom refused events are taken next, the first ones first."""

    @property
    def busy_owners(self) -> Collection[str]:
        """Owners of whom a refused event is under way: the next ones wait."""

    async def publish(
        self, events: Sequence[CommittedEvent], behind: Behind = nothing_behind
    ) -> Mapping[UUID, str]:
        """Publish the events, and refuse those to blame for a failure, too.

        Raises what the bus raises if it takes none of them, nor of those that `behind` yields.
        """

    def parts_again(self, deliveries: Sequence[Delivery]) -> Sequence[Sequence[Delivery]]:
        """Return which of these are to be published, and settled, together: one that hangs holds up no other."""

    async def publish_again(self, deliveries: Sequence[Delivery]) -> Sequence[PutOff]:
        """Publish events that were refused before; return those to put off. Raises nothing."""

    async def close(self) -> None:
        """Cancel the calls that go on, and wait for their end, a second at most."""


class BusStore(LogStore, DeliveryStore, Protocol):
    """The bus's reader: its place, of which one process at a time has the lease.

    Commits asynchronously: what a crash undoes is published again.
    """

    async def open(self) -> None:
        """Begin at the present, unless a process has begun before."""

    async def lease(self, token: UUID, seconds: float) -> Place | None:
        """Take or renew the lease; return the bus's place, or None if another process has it.

        Raises `PositionLost` where the place itself was lost; the bus has then begun again at one that
        this process had known.
        """

    async def advance(self, token: UUID, place: Place) -> bool:
        """Move to a place; return False, and move nothing, if another process has the lease now.

        So it does where a promoted server has not got the place's history.
        """

    async def give_back(self, token: UUID) -> None:
        """End the lease, if it is ours."""

    async def refuse(self, reasons: Mapping[LoggedEvent, str]) -> None:
        """Create deliveries for events that the bus has refused once; call it before `advance`.

        Of rows of which no event can be made as well: `take` makes them dead letters.
        """
