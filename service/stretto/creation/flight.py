"""A flight: one key on its way to an outcome in this process, and those who wait for it.

It is registered before it takes off, so that no second one of its key does, and lands exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stretto.creation.attempt import AnswerStatus
from stretto.errors import AttemptPending, StrettoError

if TYPE_CHECKING:
    import asyncio
    from uuid import UUID

    from stretto.domain import NewGroup

# What a client is told to wait: long enough for a write, short against its user's patience.
RETRY_AFTER_SECONDS: Final = 1


@dataclass(slots=True, eq=False)
class Waiter:
    """One request that waits for its document, until a deadline on the loop's clock."""

    landed: asyncio.Future[bytes]
    deadline: float

    def give_up(self) -> None:
        """Tell the waiter that the attempt is pending: its time is up."""
        self.land(AttemptPending(retry_after_seconds=RETRY_AFTER_SECONDS))

    def land(self, result: bytes | StrettoError) -> None:
        """Answer the waiter, unless it has left."""
        if self.landed.done():
            return
        if isinstance(result, StrettoError):
            self.landed.set_exception(result)
        else:
            self.landed.set_result(result)


@dataclass(slots=True)
class Flight:
    """A key's attempt as this process pursues it; all its waiters have the same fingerprint."""

    group_id: UUID
    new_group: NewGroup
    fingerprint: bytes
    body_digest: bytes
    """Of the request that took off."""
    memory_epoch: int = 0
    """Of the memory, when the request took off."""
    waiters: dict[Waiter, None] = field(default_factory=dict)
    """Those who still wait, in the order of their coming."""
    status: AnswerStatus = AnswerStatus.REPLAYED
    """How the outcome came about, for the request that took off."""

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits any more."""
        return all(waiter.landed.done() for waiter in self.waiters)

    def land(self, result: bytes | StrettoError) -> None:
        """Answer everybody who still waits."""
        for waiter in self.waiters:
            waiter.land(result)

    def release_impatient(self, now: float) -> None:
        """Tell those whose time is up that the attempt is pending."""
        for waiter in self.waiters:
            if waiter.deadline <= now:
                waiter.give_up()
