"""Life after creation in a world: groups are deleted, processes learn of it, attempts are swept.

These steps join those of `world.py`, where a scenario has them:

- delete: an owner's `DELETE` comes to a process, or a host's transaction deletes the group, once there
  is one;
- watch: a process looks for deletions that it has not seen. A look is one step: what happens between
  its statement and its reply is as if it came after;
- sweep: the attempts that are settled are deleted.

The retries of the end come after all of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from races.scenario import ALICE
from stretto.domain import group_id
from stretto.errors import NotFound, Overloaded
from stretto.store_errors import StoreError
from support.memory_store.database import Statement
from support.memory_store.statements import delete_group

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator
    from uuid import UUID

    from races.process import Process
    from races.world import Step, World


class Deletions:
    """What was deleted in a world, and which requests know of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.to_come = list(range(len(world.scenario.deletions)))
        self.sweeps_left = world.scenario.sweeps_max
        self.too_late: set[int] = set()
        """The requests that must not be answered with a group."""
        self._waiting: dict[int, tuple[Process, asyncio.Task[None]]] = {}

    def steps(self) -> Iterator[Step]:
        """Yield all of it that may happen next."""
        world = self._world
        rows = world.database.committed
        if not world.retries_begun:
            yield from (("delete", n) for n in self.to_come if rows.group(self._id(n)))
            if self.sweeps_left and world.database.sweepable():
                yield ("sweep",)
        for place, process in world.processes.items():
            if process.watched < len(rows.deleted):
                yield "watch", place

    def happen(self, step: Step) -> None:
        """Let it happen."""
        world = self._world
        match step:
            case ("delete", number):
                self.to_come.remove(number)
                self._delete(number)
            case ("watch", place):
                process = world.processes[place]
                process.watched = len(world.database.committed.deleted)
                process.loop.create_task(process.watch.run_once())
                world.react(process, ("watch", process.watched))
            case _:
                self.sweeps_left -= 1
                world.database.sweep()

    def arrive(self, number: int, process: Process) -> None:
        """Note whether a request is sent too late to be answered with its group.

        Where neither memory nor flight is older than the deletion, or the process knows of it.
        """
        request = self._world.request(number)
        id_ = group_id(request.body.owner, request.key)
        if self._world.database.committed.tombstone(id_) is None:
            return
        creator = process.creator
        is_older = creator._memory.find(id_.bytes) or creator._flights.find(id_.bytes)
        if process.knows_deleted(id_) or not is_older:
            self.too_late.add(number)

    def collect(self) -> None:
        """Take note of what was answered."""
        for number, (process, task) in tuple(self._waiting.items()):
            if task.done():
                del self._waiting[number]
                error = task.exception()
                if error is None:
                    process.answered_deleted.add(self._id(number))
                elif not isinstance(error, (NotFound, Overloaded, StoreError)):
                    raise error

    def crash(self, process: Process) -> None:
        """Have the requests at a process end without an answer."""
        for number, (owner, _) in tuple(self._waiting.items()):
            if owner is process:
                del self._waiting[number]

    def key(self) -> object:
        """Return all that distinguishes this from another one."""
        late = self.too_late & self._world.waiting.keys()
        return tuple(self.to_come), self.sweeps_left, frozenset(self._waiting), frozenset(late)

    def _delete(self, number: int) -> None:
        world, id_ = self._world, self._id(number)
        place = world.scenario.deletions[number].process
        process = world.processes[place or 0]
        if place is not None:
            task = process.loop.create_task(process.deleter.delete(id_, ALICE))
            self._waiting[number] = process, task
            world.react_quietly(process, ("delete", number))
            return
        # A statement for which no process waits: it is committed or, as an orphan may, rolled back.
        answered = process.loop.create_future()
        answered.cancel()
        statement = Statement(
            world.database,
            "delete_group of a host",
            (id_,),
            partial(delete_group, world.database, group_id=id_),
            answered,
            StoreError,
            is_orphan=True,
        )
        world.statements.append(statement)
        world.owners[statement] = process

    def _id(self, number: int) -> UUID:
        return group_id(ALICE, self._world.scenario.deletions[number].key)
