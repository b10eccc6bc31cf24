"""BlamedOwners: owners for whose events a host's bus has failed, while it took those of others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from stretto.assembly.host_bus_calls import NoAnswer, reason_of
from stretto.observations import ActorCrashed
from stretto.targets.bus import BusUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observer

# 0.3 MB. Beyond it the owner that failed first is tried anew.
OWNERS_MAX: Final = 1024
# Longer than the longest pause between two tries of a refused event: if that fails again, it is renewed.
BLAME_SECONDS: Final = 900.0
UNSURE: Final = "publish has failed for it and others together"


def owner_of(event: CommittedEvent) -> str:
    """Return the owner of the event's group; a change's recipients need not begin with it."""
    owner: str = orjson.loads(event.envelope)["data"]["owner_id"]
    return owner


class _Blamed(NamedTuple):
    """Of an owner whose new events follow one that is published beside the log."""

    event_id: UUID
    """Of the event that has failed last."""
    reason: str
    until: float
    is_sure: bool
    """Whether the bus has failed for that event alone."""
    is_reported: bool
    """Whether an error was reported that the bus has raised for the owner."""


class BlamedOwners:
    """For each owner the event that failed last. New events of the owner are not tried in the log's turn.

    That ends when this event goes through: its cause is mended.
    """

    def __init__(
        self, observe: Observer, clock_seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._observe = observe
        self._clock_seconds = clock_seconds
        self._owners: dict[str, _Blamed] = {}

    def add(self, event: CommittedEvent, error: Exception) -> None:
        """Note that the bus has failed for this event alone.

        Of each owner one bug is reported: it comes with every try.
        """
        self._forget_old()
        before = self._owners.get(owner_of(event))
        was_reported = before is not None and before.is_reported
        is_bug = not isinstance(error, (NoAnswer, BusUnavailable))
        self._note(event, reason_of(error), is_sure=True, is_reported=was_reported or is_bug)
        if is_bug and not was_reported:
            self._observe(ActorCrashed("relay", error))

    def have_follow(self, event: CommittedEvent) -> None:
        """Have new events of its owner follow this one, of which it is not known yet why it has failed."""
        if owner_of(event) not in self:
            self._note(event, UNSURE, is_sure=False, is_reported=False)

    def _note(
        self, event: CommittedEvent, reason: str, *, is_sure: bool, is_reported: bool
    ) -> None:
        owner = owner_of(event)
        # The one that failed last comes last.
        self._owners.pop(owner, None)
        until = self._clock_seconds() + BLAME_SECONDS
        self._owners[owner] = _Blamed(event.event_id, reason, until, is_sure, is_reported)
        if len(self._owners) > OWNERS_MAX:
            del self._owners[next(iter(self._owners))]

    @property
    def are_any_sure(self) -> bool:
        """Whether the bus has failed for an event of any owner alone."""
        self._forget_old()
        return any(each.is_sure for each in self._owners.values())

    def __contains__(self, owner: str) -> bool:
        """Whether new events of this owner are refused."""
        self._forget_old()
        return owner in self._owners

    def take_back(self, event: CommittedEvent) -> None:
        """Note that an event which was refused has gone through."""
        if self._owners:
            owner = owner_of(event)
            if owner in self._owners and self._owners[owner].event_id == event.event_id:
                del self._owners[owner]

    def reasons(self, events: Iterable[CommittedEvent]) -> dict[UUID, str]:
        """Return the events of such owners, with the reason for which the last one failed."""
        self._forget_old()
        # The documents are read where an owner is blamed alone.
        if not self._owners:
            return {}
        return {
            event.event_id: blamed.reason
            for event in events
            if (blamed := self._owners.get(owner_of(event))) is not None
        }

    def _forget_old(self) -> None:
        while self._owners:
            oldest, blamed = next(iter(self._owners.items()))
            if self._clock_seconds() < blamed.until:
                return
            del self._owners[oldest]
