"""What must hold in every state of every schedule, and what must hold when all has come to rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.codec import read_created
from stretto.creation.attempt import AttemptStatus
from stretto.creation.flight import Answer
from stretto.creation.outcomes import document_for
from stretto.domain import CreatedGroup, event_id, group_id
from stretto.errors import AttemptFailed, Failure, KeyReused

if TYPE_CHECKING:
    from uuid import UUID

    from races.process import Process
    from races.world import World
    from stretto.domain import NewGroup
    from support.memory_store.tables import GroupRecord, Tables


class Witness:
    """Watches one world; raises `AssertionError` with the guarantee that is broken."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rows = world.database.committed
        self._settled: dict[UUID, AttemptStatus] = {}
        self._answers = 0

    def follow(self) -> None:
        """Remember what is settled, of a state that was judged before."""
        if self._world.database.committed is not self._rows:
            self._rows = self._world.database.committed
            self._settled = {id_: row.status for id_, row in self._rows.attempts.items()}

    def look(self, *, final: bool) -> None:
        """Judge the state; the last one of a schedule by more."""
        world = self._world
        rows = world.database.committed
        assert not world.database.alarms, world.database.alarms[0]
        for process in world.processes.values():
            assert not process.loop.faults, f"nothing caught {process.loop.faults[0]}"
            assert not process.events, f"{process.events[0]}"
        if rows is not self._rows or len(world.answers) != self._answers or final:
            self._rows, self._answers = rows, len(world.answers)
            self._judge_rows(rows)
            self._judge_answers(rows)
        if final:
            self._judge_end(rows)

    def _judge_rows(self, rows: Tables) -> None:
        ids = [group.group_id for group in rows.groups]
        assert len(ids) == len(set(ids)), "G1: two groups of one key"
        groups = {group.group_id: group for group in rows.groups}
        for id_, attempt in rows.attempts.items():
            group = groups.get(id_)
            match attempt.status:
                case AttemptStatus.SUCCEEDED:
                    assert group is not None, "G5: succeeded without a group"
                    assert attempt.conversation_id == group.conversation_id, "G5: another group's"
                    assert attempt.fingerprint == group.fingerprint, "G5: another body's"
                case AttemptStatus.FAILED:
                    assert group is None, "G4: failed, and its group exists"
            if group is None:
                was = self._settled.get(id_, attempt.status)
                assert was is not AttemptStatus.FAILED or was is attempt.status, "G4: not final"
            self._settled[id_] = attempt.status
        for group in rows.groups:
            _judge_parts(rows, group)

    def _judge_answers(self, rows: Tables) -> None:
        world = self._world
        answered: dict[str, set[object]] = {}
        own = 0
        for number, answer in world.answers.items():
            request = world.request(number)
            if isinstance(answer, Answer):
                answered.setdefault(request.key, set()).add(answer.group)
                group = rows.group(answer.group.group_id)
                assert group is not None, "G3: an answered group does not exist"
                assert group.conversation_id == answer.group.conversation_id, "G2: answered another"
                assert group.new_group == request.body, "answered with a group of another body"
                own += not answer.status.is_replay
            elif answer is AttemptFailed:
                answered.setdefault(request.key, set()).add("failed")
                group = rows.group(group_id(request.body.owner, request.key))
                is_ours = group is not None and group.new_group == request.body
                assert not is_ours, "G4: answered failed, and the group exists"
        for key, answers in answered.items():
            assert len(answers) == 1, f"G2: different answers for {key}: {answers}"
        assert own <= len(answered), "G2: two answers say that theirs created the group"

    def _judge_end(self, rows: Tables) -> None:
        """After the faults, one retry per request has settled everything (liveness)."""
        world = self._world
        assert not world.waiting, "a request is never answered"
        assert not world.statements, "a statement never ends"
        for id_, attempt in rows.attempts.items():
            is_open = attempt.status is AttemptStatus.PENDING
            assert not is_open or rows.group(id_), "an attempt stays pending"
        retried = [
            world.answers[len(world.scenario.requests) + n] for n in range(len(world.retries))
        ]
        for answer in retried:
            settles = isinstance(answer, Answer) or answer in (AttemptFailed, KeyReused)
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
