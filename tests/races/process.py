"""One service process: the real creator, mailbox and writer, on a loop and stores of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from races.stepped_loop import SteppedLoop
from stretto.creation.baton import Baton
from stretto.creation.breakers import OwnerBreakers
from stretto.creation.deletion import GroupDeleter
from stretto.creation.settings import CreatorSettings
from stretto.events.deletion_watch import DeletionWatch
from stretto.observations import ActorCrashed, GuaranteeBroken
from stretto.runtime.runner import Run
from support.memory_store.stores import (
    MemoryAttemptStore,
    MemoryDeletionLog,
    MemoryDeletionStore,
    MemoryWriteStore,
)

if TYPE_CHECKING:
    from races.world import World
    from stretto.observations import Observation

LEASE_SECONDS: Final = 5.0
SETTINGS: Final = CreatorSettings(lease_seconds=LEASE_SECONDS)
# More than any scenario has requests.
MAILBOX_MAX: Final = 100


class Process:
    """One service process: its loop, its creator, its writers, and all that it has been answered so far."""

    def __init__(self, world: World, number: int, *, in_steps: bool = False) -> None:
        scenario = world.scenario
        self.number = number
        self.loop = SteppedLoop()
        self.events: list[Observation] = []
        self.inputs: list[object] = [number]
        """All that this process could know: the same inputs make the same process."""
        self.looked: dict[object, int] = {}
        """Of each key, the epoch of the last look."""
        self._ids = 0
        mailbox = scenario.mailbox(MAILBOX_MAX)
        self.creator = scenario.creator(
            mailbox, MemoryAttemptStore(world.database), SETTINGS, self._observe
        )
        breakers = OwnerBreakers(self._observe)
        # Virtual time passes only in pauses: the process is idle in all of them.
        baton = Baton(mailbox, busy_seconds=lambda: 0.0)
        self._tasks = [self.loop.run(self.creator.__aenter__())]
        for _ in range(scenario.writers):
            store = MemoryWriteStore(
                world.database, self.creator.forget, writes_at_once=not in_steps
            )
            writer = scenario.writer(
                baton, store, self._observe, breakers=breakers, batch_max=scenario.batch_max
            )
            self._tasks.append(self.loop.run(Run(writer, self._observe).turns()))
        self._database = world.database
        self.watched = len(world.database.committed.deleted)
        """How many deletions its watch has seen."""
        self.answered_deleted: set[UUID] = set()
        """The groups whose deletion it has acknowledged."""
        if scenario.deletions:
            self._begin_deletions()

    def _begin_deletions(self) -> None:
        """Begin to delete groups, and to look for deletions of others; time confirms no memory here."""
        creator = self.creator
        self.deleter = GroupDeleter(
            MemoryDeletionStore(self._database), creator.forget_group, wakes=()
        )
        self.watch = DeletionWatch(
            MemoryDeletionLog(self._database), creator.forget_group, creator.forget, lambda _: None
        )
        self._tasks.append(self.loop.run(Run(self.deleter, self._observe).turns()))
        self._tasks.append(self.loop.run(self.watch.open()))

    def _observe(self, event: Observation) -> None:
        if isinstance(event, (GuaranteeBroken, ActorCrashed)):
            self.events.append(event)

    @property
    def memory(self) -> frozenset[object]:
        """Return what this process remembers, as something to compare."""
        return frozenset(self.creator._memory)

    def knows_deleted(self, id_: UUID) -> bool:
        """Whether it has learned that a group was deleted."""
        deleted = self._database.committed.deleted[: self.watched]
        return id_ in deleted or id_ in self.answered_deleted

    def fresh_id(self) -> UUID:
        """Return an id that no other process makes, and that this one makes again in a replay."""
        self._ids += 1
        return UUID(int=(self.number << 32) + self._ids)

    def end(self) -> None:
        """Be gone: nothing in its loop ever runs again."""
        self.loop.is_dead = True
