"""What can go wrong, at every moment at which it can.

- lost: the connection breaks before a statement arrives; late: it arrives all the same, later;
- cut: the connection breaks while the statement runs, which then commits or is rolled back; this is
  the lost acknowledgement too;
- unreachable: no connection is to be had; transient: the statement is rolled back for a reason that
  passes (deadlock, full disk); locked: it has waited for another's lock too long; stalled: the
  server has ended it, as it kept others waiting; in doubt: it is
  rolled back with an error that settles nothing, while the connection lives; veto: the host's hook
  rejects the group;
- crash: a process is gone, with its tasks and its queue, and a new one takes its place; what it has
  sent goes on like any statement whose connection broke;
- database crash: nothing that runs is committed, every connection breaks, and some of the last
  asynchronous commits are lost;
- patience: a client's wait is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stretto.errors import Failure
from stretto.store_errors import InDoubt, Locked, Refused, Stalled, Transient, Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from races.process import Process
    from races.world import World
    from support.memory_store.database import Statement

VETO: Final = Failure("quota", "Ten groups are enough.")
CONNECTION: Final = ("lost", "late", "cut")
DATABASE: Final = ("unreachable", "transient", "database crash")
ALL: Final = (*CONNECTION, *DATABASE, "veto", "crash", "patience")
NEIGHBOURS: Final = ("cut", "locked", "in doubt", "stalled")
_LEADERS: Final = ("claim_and_lead", "claim", "lead", "fail")


def possible(world: World) -> Iterator[tuple[Any, ...]]:
    """Yield every fault that may happen now."""
    kinds = world.scenario.faults
    for position, statement in enumerate(world.statements):
        if not statement.is_orphan:
            yield from ((k, position) for k in _faults_of(statement) if k in kinds)
    if "crash" in kinds:
        for place, process in world.processes.items():
            mine = _sent_by(world, process)
            if mine:
                yield "crash", place, "late"
                if any(not s.steps_done and s.name != "look" for s in mine):
                    yield "crash", place, "lost"
    if "database crash" in kinds and world.waiting:
        for survives in range(len(world.database.journal)):
            yield "database crash", survives
    if "patience" in kinds:
        for place, process in world.processes.items():
            if process.loop.has_timers:
                yield "patience", place


def _faults_of(statement: Statement) -> Iterator[str]:
    if statement.steps_done:
        yield "cut"
        if statement.name in _LEADERS:
            yield "transient"
            yield "in doubt"
            yield "stalled"
            if statement.is_blocked:
                yield "locked"
        if statement.name in ("claim_and_lead", "lead"):
            yield "veto"
    else:
        yield "lost"
        if statement.name != "look":
            yield "late"
        if statement.name in _LEADERS:
            yield "unreachable"


def happen(world: World, fault: tuple[Any, ...]) -> None:
    """Let it go wrong."""
    match fault:
        case ("crash", place, how):
            _crash(world, place, is_lost=how == "lost")
        case ("database crash", survives):
            _crash_database(world, survives)
        case ("patience", place):
            process = world.processes[place]
            process.loop.end_patience()
            world.react_quietly(process, "patience")
        case (kind, position):
            _strike(world, kind, world.statements[position])


def _strike(world: World, kind: str, statement: Statement) -> None:
    match kind:
        case "lost":
            statement.lose()
            statement.vanish()
        case "late" | "cut":
            statement.lose()
        case "unreachable":
            statement.fail(Unreachable("no connection"))
        case "transient":
            statement.fail(Transient("in a moment"))
        case "locked":
            statement.fail(Locked("waited too long"))
        case "stalled":
            statement.fail(Stalled("kept others waiting"))
        case "in doubt":
            statement.fail(InDoubt("who knows"))
        case "veto":
            statement.fail(Refused(VETO))
    world.hear(statement)


def _crash(world: World, place: int, *, is_lost: bool) -> None:
    process = world.processes[place]
    for statement in _sent_by(world, process):
        statement.is_orphan = True
        if statement.name == "look" or (is_lost and not statement.steps_done):
            statement.vanish()
    for number, (owner, _) in tuple(world.waiting.items()):
        if owner is process:
            del world.waiting[number]
            world.answers[number] = "the process crashed"
    world.deletions.crash(process)
    world.restart(place)


def _crash_database(world: World, survives: int) -> None:
    running = tuple(world.statements)
    world.database.crash(survives)
    for statement in running:
        is_heard = not statement.is_orphan
        statement.lose()
        statement.vanish()
        if is_heard:
            world.hear(statement)
    for process in world.processes.values():
        process.creator.forget()
        process.inputs.append("connections lost")


def _sent_by(world: World, process: Process) -> list[Statement]:
    return [
        statement
        for statement in world.statements
        if world.owners[statement] is process and not statement.is_orphan
    ]
