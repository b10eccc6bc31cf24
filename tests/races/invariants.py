"""What must hold in every state of every schedule, and what must hold when all has come to rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.codec import read_created
from stretto.creation.attempt import AttemptStatus
from stretto.creation.flight import Answer
from stretto.creation.outcomes import document_for
from stretto.domain import CreatedGroup, event_id, group_id
from stretto.errors import AttemptFailed, Failure, GroupDeleted, KeyReused

if TYPE_CHECKING:
    from uuid import UUID

    from races.process import Process
    from races.world import World
    from stretto.domain import NewGroup
    from support.memory_store.tables import GroupRecord, Tables, TombstoneRecord

# Errors that say what has become of a key for good.
SETTLED: Final = (AttemptFailed, GroupDeleted, KeyReused)


class Witness:
    """Watches one world; raises `AssertionError` with the guarantee that is broken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows = world.database.committed
        self._settled: dict[UUID, AttemptStatus] = {}
        self._groups: dict[UUID, GroupRecord] = {}
        """The first group of each key, also if it was deleted."""
        self._deleted: tuple[TombstoneRecord, ...] = ()
        self._answers = 0

    def follow(self) -> None:
        """Remember what is settled, of a state that was judged before."""
        if self._world.database.committed is not self._rows:
            self._rows = self._world.database.committed
            self._remember(self._rows)

    def _remember(self, rows: Tables) -> None:
        self._settled |= {id_: row.status for id_, row in rows.attempts.items()}
        self._groups = {group.group_id: group for group in rows.groups} | self._groups
        self._deleted = tuple(each for each in rows.tombstones if each.failure is None)

    def look(self, *, final: bool) -> None:
        """Judge the state; the last one of a schedule by more."""
        world = self._world
        rows = world.database.committed
        assert not world.database.alarms, world.database.alarms[0]
        for process in world.processes.values():
            assert not process.loop.faults, f"nothing caught {process.loop.faults[0]}"
            assert not process.events, f"{process.events[0]}"
            for id_ in filter(process.knows_deleted, rows.deleted):
                remembered = process.creator._memory.find(id_.bytes)
                assert remembered is None, "a process remembers a group that it knows to be deleted"
        if rows is not self._rows or len(world.answers) != self._answers or final:
            self._rows, self._answers = rows, len(world.answers)
            self._judge_rows(rows)
            self._judge_answers(rows)
        if final:
            self._judge_end(rows)

    def _judge_rows(self, rows: Tables) -> None:
        ids = [group.group_id for group in rows.groups]
        assert len(ids) == len(set(ids)), "G1: two groups of one key"
        for each in rows.groups:
            first = self._groups.get(each.group_id, each)
            assert first == each, "G1: another group of a key whose group was deleted"
        self._judge_tombstones(rows)
        settled = dict(self._settled)
        self._remember(rows)
        for id_, attempt in rows.attempts.items():
            group = self._groups.get(id_)
            match attempt.status:
                case AttemptStatus.SUCCEEDED:
                    assert group is not None, "G5: succeeded without a group"
                    assert attempt.conversation_id == group.conversation_id, "G5: another group's"
                    assert attempt.fingerprint == group.fingerprint, "G5: another body's"
                case AttemptStatus.FAILED:
                    assert group is None, "G4: failed, and its group exists"
            if group is None and rows.tombstone(id_) is None:
                was = settled.get(id_, attempt.status)
                assert was is not AttemptStatus.FAILED or was is attempt.status, "G4: not final"
        for group in rows.groups:
            _judge_parts(rows, group)

    def _judge_tombstones(self, rows: Tables) -> None:
        """A deleted group leaves one tombstone, for good, and there is no group beside it."""
        tombs = [each.group_id for each in rows.tombstones]
        assert len(tombs) == len(set(tombs)), "a group was deleted twice"
        assert not any(map(rows.group, tombs)), "a group beside its tombstone"
        assert set(self._deleted) <= set(rows.tombstones), "a tombstone is gone"

    def _judge_answers(self, rows: Tables) -> None:
        world = self._world
        answered: dict[str, set[object]] = {}
        own = 0
        for number, answer in world.answers.items():
            request = world.request(number)
            if isinstance(answer, Answer):
                is_late = number in world.deletions.too_late
                assert not is_late, "answered with a group that was known to be deleted"
                answered.setdefault(request.key, set()).add(answer.group)
                group = self._groups.get(answer.group.group_id)
                assert group is not None, "G3: an answered group does not exist"
                assert group.conversation_id == answer.group.conversation_id, "G2: answered another"
                assert group.new_group == request.body, "answered with a group of another body"
                own += not answer.status.is_replay
            elif answer is AttemptFailed:
                answered.setdefault(request.key, set()).add("failed")
                group = self._groups.get(group_id(request.body.owner, request.key))
                is_ours = group is not None and group.new_group == request.body
                assert not is_ours, "G4: answered failed, and the group exists"
            elif answer is GroupDeleted:
                id_ = group_id(request.body.owner, request.key)
                assert id_ in rows.deleted, "answered deleted, and the group was not"
        for key, answers in answered.items():
            assert len(answers) == 1, f"G2: different answers for {key}: {answers}"
        assert own <= len(answered), "G2: two answers say that theirs created the group"

    def _judge_end(self, rows: Tables) -> None:
        """After the faults, one retry per request has settled everything (liveness)."""
        world = self._world
        assert not world.waiting, "a request is never answered"
        assert not world.statements, "a statement never ends"
        assert all(map(rows.has_row, self._groups)), "a group is gone, and has left no tombstone"
        for id_, attempt in rows.attempts.items():
            is_open = attempt.status is AttemptStatus.PENDING
            assert not is_open or rows.has_row(id_), "an attempt stays pending"
        retried = [
            world.answers[len(world.scenario.requests) + n] for n in range(len(world.retries))
        ]
        for answer in retried:
            settles = isinstance(answer, Answer) or answer in SETTLED
            assert settles, f"a retry was answered {answer}"
        assert any(answer is not KeyReused for answer in retried), "a key that no request can use"
        for process in world.processes.values():
            for key, body in world.retries:
                _judge_memory(rows, process, key, body)


def _judge_memory(rows: Tables, process: Process, key: str, body: NewGroup) -> None:
    """What a process remembers of a key is what the database holds."""
    id_ = group_id(body.owner, key)
    group, attempt = rows.group(id_), rows.attempts.get(id_)
    match _recalled(process, id_, body):
        case Failure() as failure:
            assert attempt is not None, "a process remembers a failure that is stored nowhere"
            assert attempt.failure == failure, "a process remembers another failure"
        case CreatedGroup() as known:
            exists = group and group.seen().group
            assert known == exists, "a process remembers another group"
        case error if error is KeyReused:
            assert rows.tombstone(id_) is None, "a process remembers the body of a deleted group"
            holder_of_key = group or attempt
            assert holder_of_key is not None, "a process remembers a body that is stored nowhere"
            assert holder_of_key.fingerprint != body.fingerprint(), "it refuses the right body"


def _recalled(process: Process, id_: UUID, body: NewGroup) -> object:
    try:
        success = process.creator._memory.find(id_.bytes)
        document = success and document_for(success, body.fingerprint())
    except AttemptFailed as failed:
        return failed.failure
    except KeyReused:
        return KeyReused
    return document and read_created(document)


def _judge_parts(rows: Tables, group: GroupRecord) -> None:
    conversation, asked = group.conversation_id, group.new_group
    members = {(user, role) for id_, user, role in rows.members if id_ == conversation}
    wanted = {(asked.owner, "owner"), *((user, "member") for user in asked.members)}
    assert conversation in rows.conversations, "G5: no conversation"
    assert members == wanted, "G5: other members than asked for"
    assert event_id(group.conversation_id) in rows.events, "G8: no event"
    assert asked.fingerprint() == group.fingerprint, "a group under another body's fingerprint"
