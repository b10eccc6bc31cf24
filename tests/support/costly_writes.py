"""Writers whose store takes the time of a clock that the test owns, and fails some owners."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from stretto.creation.baton import Baton
from stretto.creation.breakers import OwnerBreakers
from stretto.creation.flight import rejection_of
from stretto.creation.ports import Write, WriteResult
from stretto.creation.writer import GroupWriter
from stretto.domain import NewGroup, UserId
from stretto.observations import Observation, OwnerPaused, OwnerResumed
from stretto.runtime.mailbox import Mailbox
from support.clock import Clock

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable, Sequence

    from stretto.errors import Failure
    from stretto.store_errors import StoreError

HOT, COLD, OTHER = UserId("hot"), UserId("cold"), UserId("other")
HANG_SECONDS = 4.0


def write(owner: UserId, number: int) -> Write:
    """Return a write of the owner whose group id is that number; a higher one is newer."""
    group_id = conversation_id = UUID(int=number)
    new_group = NewGroup.parse(owner, {"name": "T"})
    return Write(group_id, uuid4(), conversation_id, new_group, b"f" * 16, False)


class CostlyStore:
    """Fails every lead with a write of certain owners, after a while."""

    writes_at_once = False
    is_connected = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.lead_seconds = 0.0
        """What a lead takes that goes through."""
        self.failing: dict[UserId, tuple[StoreError, float]] = {}
        self.failing_together: StoreError | None = None
        self.slow: dict[UserId, float] = {}
        self.fenced: set[int] = set()
        self.calls: list[tuple[str, list[int]]] = []
        self.is_table_locked = False

    async def open(self) -> None:
        raise AssertionError

    async def claim_and_lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        raise AssertionError

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        self.calls.append(("claim", [each.group_id.int for each in writes]))
        return {each.claim_token for each in writes}

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        self.calls.append(("lead", [each.group_id.int for each in writes]))
        if self.failing_together is not None and len(writes) > 1:
            raise self.failing_together
        for each in writes:
            self._clock.now += self.slow.get(each.new_group.owner, 0.0)
            if each.new_group.owner in self.failing:
                error, seconds = self.failing[each.new_group.owner]
                self._clock.now += seconds
                raise error
        self._clock.now += self.lead_seconds
        return {each.claim_token for each in writes if each.group_id.int not in self.fenced}

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        return {each.claim_token for each in writes}

    async def are_tables_locked(self) -> bool:
        return self.is_table_locked

    async def fail(self, write: Write, failure: Failure) -> bool:
        return True

    async def close(self) -> None:
        """Nothing is kept."""

    def cut_off(self) -> None:
        """Nothing is under way."""


class World:
    """Writers of one process, their store, and what they have observed."""

    def __init__(
        self, writers: int = 1, share_of: Callable[[Write], Hashable] = lambda _: None
    ) -> None:
        self.clock, self.events = Clock(), list[Observation]()
        self.store = CostlyStore(self.clock)
        self.breakers = OwnerBreakers(self.events.append, self.clock)
        self.mailbox: Mailbox[Write, WriteResult] = Mailbox(1000, share_of, rejection_of)
        # The loop is idle: whoever has a batch passes the baton on.
        baton = Baton(self.mailbox, busy_seconds=lambda: 0.0)
        self.writers = [
            GroupWriter(
                baton,
                self.store,
                self.events.append,
                batch_max=100,
                breakers=self.breakers,
            )
            for _ in range(writers)
        ]

    async def answers(self, *writes: Write) -> list[WriteResult | BaseException]:
        """Have one batch written; return what each asker got."""
        asked = [self.mailbox.ask(each) for each in writes]
        self.store.calls.clear()
        while not all(each.done() for each in asked):
            await self.writers[0].run_once()
        return [answer_of(each) for each in asked]

    def leads(self) -> list[list[int]]:
        """Return what the last batch led together."""
        return [ids for name, ids in self.store.calls if name == "lead"]

    def pauses(self) -> list[type[Observation]]:
        """Return when owners were paused and resumed."""
        return [type(e) for e in self.events if isinstance(e, OwnerPaused | OwnerResumed)]


def answer_of(asked: asyncio.Future[WriteResult]) -> WriteResult | BaseException:
    """Return the result, or the error."""
    return asked.exception() or asked.result()
