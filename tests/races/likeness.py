"""Whether two worlds will go on alike: all that decides it, as one digest.

A process is what it has been answered, since its code takes nothing from chance; an idle one is what it
remembers. Times count only as leases that run or are over, and answers only as far as they can
contradict later ones.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from stretto.creation.attempt import Sighting
from stretto.creation.flight import Answer
from stretto.errors import AttemptFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from races.process import Process
    from races.world import World
    from support.memory_store.database import Statement


def digest(world: World) -> int:
    """Return the digest; worlds with the same one go on alike."""
    committed = world.database.committed
    return hash(
        (
            tuple(map(hash, world.database.journal[_journal_from(world) :])),
            world.leases_over(committed.attempts),
            frozenset(Counter(_on_its_way(world, s) for s in world.statements).items()),
            tuple(_state_of(world, process) for process in world.processes.values()),
            world.faults_left,
            world.leases_left,
            world.retries_begun,
            tuple(world.to_come),
            world.deletions.key(),
            frozenset(world.waiting),
            frozenset(Counter(_final_answers(world)).items()),
        )
    )


def _on_its_way(world: World, statement: Statement) -> tuple[object, ...]:
    transaction = statement.transaction
    return (
        world.owners[statement].number,
        statement.name,
        statement.arguments,
        statement.steps_done,
        statement.is_orphan,
        world.is_stale(statement),
        transaction
        and (
            transaction.key(),
            transaction.waits_for,
            world.leases_over(transaction.attempts),
        ),
    )


def _state_of(world: World, process: Process) -> tuple[object, ...]:
    if world.retries_begun and process is not world.processes[-1]:
        # It is never asked again.
        return process.watched, tuple(process.memory)
    return process.watched, frozenset(process.answered_deleted), tuple(process.inputs)


def _journal_from(world: World) -> int:
    """Return where the journal begins to matter: only a crash looks back."""
    may_crash = "database crash" in world.scenario.faults and not world.retries_begun
    return 0 if may_crash and world.faults_left else -1


def _final_answers(world: World) -> Iterator[object]:
    for number, answer in world.answers.items():
        request = world.request(number)
        if isinstance(answer, Answer):
            yield request.key, request.body, answer.group, answer.status.is_replay
        elif answer is AttemptFailed:
            yield request.key, request.body, answer


def reply_of(statement: Statement) -> object:
    """Return what the sender of a statement has heard, as something to compare."""
    error = statement.answered.exception()
    if error is not None:
        return type(error).__name__
    match statement.answered.result():
        case set(tokens):
            return frozenset(tokens)
        case Sighting(attempt, group):
            # Without the times, which decide nothing but `lease_over`.
            return group and group.group, attempt and (
                attempt.status,
                attempt.claim_token,
                attempt.fingerprint,
                attempt.conversation_id,
                attempt.lease_over,
            )
        case result:
            return result
