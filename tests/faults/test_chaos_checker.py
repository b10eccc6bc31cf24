"""The checker finds every planted violation, and nothing in an honest run."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from chaos.checker import Allowances, Checker, report
from chaos.history import History, Key, event_id_of, read_history
from chaos.listening import Listening, Received
from chaos.rows import AttemptRow, EventRow, GroupRow, Rows, read_rows
from stretto.postgres.check import Violation as RowViolation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chaos.violation import Violation
    from support.api_client import Api
    from support.database import Connection

KEY, FAILED, REJECTED = Key("alice", "k"), Key("alice", "poison"), Key("alice", "rejected")
CONVERSATION, OTHER = UUID(int=1), UUID(int=2)
BODY = {"name": "Team", "description": "us", "members": ["bob", "carol"]}


def text(key: Key = KEY, conversation: UUID = CONVERSATION) -> str:
    """Return an answer's body."""
    return json.dumps({"group_id": str(key.group_id), "conversation_id": str(conversation)})


def looked_up(status: str, conversation: UUID | None = None) -> str:
    """Return a lookup's body."""
    return json.dumps({"status": status, "conversation_id": conversation and str(conversation)})


def received(key: Key = KEY, conversation: UUID = CONVERSATION, digest: str = "0") -> Received:
    """Return the event of a group, as a client receives it."""
    return Received(str(event_id_of(conversation)), str(key.group_id), digest)


EVENT = received()


class Run:
    """An honest run: one key created, one failed, one rejected; alice hears of her group."""

    def __init__(self, path: Path | None = None) -> None:
        self.history = History(path)
        self.listening = self.history.listen("alice")
        self.history.place(self.listening, "1.a")
        self.answer(None, do="create")
        self.answer(201, text(), "created")
        self.answer(422, body={**BODY, "name": "Another"})
        self.answer(503)
        self.answer(201, text(), "replayed")
        self.answer(200, looked_up("succeeded", CONVERSATION), do="lookup")
        self.answer(410, key=FAILED)
        self.answer(400, key=REJECTED, body={})
        self.history.note("kill")
        self.history.hear(self.listening, "2.a", EVENT)
        self.history.publish([EVENT])
        self.resumed = self.history.listen("alice", 0, "1.a")
        self.history.hear(self.resumed, "2.a", EVENT)
        people = {"alice", "bob", "carol"}
        self.rows = Rows(
            groups=[GroupRow(KEY.group_id, "alice", "Team", "us", CONVERSATION)],
            events=[EventRow(event_id_of(CONVERSATION), KEY.group_id, people, "Team")],
            attempts=[
                AttemptRow(KEY.group_id, "succeeded"),
                AttemptRow(FAILED.group_id, "failed"),
            ],
            members={CONVERSATION: {"alice": "owner", "bob": "member", "carol": "member"}},
        )

    def answer(
        self,
        status: int | None,
        text: str = "",
        how: str = "",
        *,
        key: Key = KEY,
        do: str = "create",
        body: dict[str, Any] = BODY,
    ) -> None:
        """Add one operation."""
        operation = self.history.invoke(do, key, body if do == "create" else None)
        if status is None:
            self.history.unknown(operation, "the connection was cut")
        else:
            self.history.answer(operation, status, how, text)

    def violations(self, *, attempts_lost: bool = False) -> list[Violation]:
        """Return what the checker finds."""
        return Checker(self.history, self.rows, Allowances(attempts_lost)).violations()

    def hear(self, event: Received) -> None:
        """Have alice's first client be sent an event."""
        self.history.hear(self.listening, "3.a", event)


def second_group(key: Key, name: str = "Team") -> Callable[[Run], None]:
    """Return what adds a whole second group."""

    def plant(run: Run) -> None:
        run.rows.groups.append(GroupRow(key.group_id, "alice", name, "us", OTHER))
        run.rows.members[OTHER] = dict(run.rows.members[CONVERSATION])

    return plant


def failed_then(status: int, body: str = "", do: str = "lookup") -> Callable[[Run], None]:
    """Return what unsays a failure."""
    return lambda run: run.answer(status, body, key=FAILED, do=do)


def name_otherwise(event: EventRow) -> None:
    """Have an event name another group."""
    event.group_name = "Another"


def forget_event(listening: Listening) -> None:
    """Take back that a client was sent its event."""
    listening.events.clear()
    listening.known.clear()


PLANTS: list[tuple[str, Callable[[Run], object]]] = [
    ("answers differ", lambda run: run.answer(201, text(conversation=OTHER), "replayed")),
    ("answers differ", lambda run: run.answer(201, text() + " ", "replayed")),
    ("an error of its own", lambda run: run.answer(500)),
    ("another group than the key's", lambda run: run.answer(201, text(FAILED), "replayed")),
    ("created more than once", lambda run: run.answer(201, text(), "recovered")),
    ("two bodies were accepted", lambda run: run.answer(201, text(), body={"name": "Another"})),
    ("failed and to have succeeded", lambda run: run.answer(410)),
    (
        "a lookup names another conversation",
        lambda run: run.answer(200, looked_up("succeeded", OTHER), do="lookup"),
    ),
    ("then as pending", lambda run: run.answer(200, looked_up("pending"), do="lookup")),
    ("then as unseen", lambda run: run.answer(404, do="lookup")),
    ("succeeded, then as failed", lambda run: run.answer(410)),
    ("failed, then as succeeded", failed_then(201, text(FAILED), "create")),
    ("failed, then as pending", failed_then(200, looked_up("pending"))),
    ("failed, then as unseen", failed_then(404)),
    ("more than one group", second_group(KEY)),
    ("failed, but there is a group", second_group(FAILED)),
    ("rejected, but there is a group", second_group(REJECTED)),
    ("was never asked for", second_group(Key("bob", "k"))),
    ("acknowledged, but there is no group", lambda run: run.rows.groups.clear()),
    (
        "rejected, but there is an attempt",
        lambda run: run.rows.attempts.append(AttemptRow(REJECTED.group_id, "pending")),
    ),
    ("a group without its event", lambda run: run.rows.events.clear()),
    ("the event is about something else", lambda run: run.rows.events[0].recipients.pop()),
    ("the event is about something else", lambda run: name_otherwise(run.rows.events[0])),
    ("attempt has not succeeded", lambda run: run.rows.attempts.pop(0)),
    ("not what was asked for", lambda run: run.rows.members[CONVERSATION].pop("bob")),
    (
        "not what was asked for",
        lambda run: run.rows.members[CONVERSATION].update(mallory="member"),
    ),
    ("not what was asked for", lambda run: setattr(run.rows.groups[0], "name", "Another")),
    ("not what was asked for", lambda run: setattr(run.rows.groups[0], "description", None)),
    (
        "owner is not its owner",
        lambda run: run.rows.members[CONVERSATION].update(alice="member", bob="owner"),
    ),
    (
        "another conversation than the one answered",
        lambda run: setattr(run.rows.groups[0], "conversation_id", OTHER),
    ),
    (
        "of the check",
        lambda run: run.rows.violations.append(RowViolation(KEY.group_id, "of the check")),
    ),
    (
        "of no key",
        lambda run: run.rows.violations.append(RowViolation(OTHER, "of no key")),
    ),
    (
        "an event of",
        lambda run: run.rows.events.append(EventRow(OTHER, OTHER, {"alice"}, "Team")),
    ),
    ("names two contents", lambda run: run.hear(received(digest="1"))),
    ("names two contents", lambda run: run.history.publish([received(digest="1")])),
    ("is not in the database", lambda run: run.hear(received(conversation=OTHER))),
    ("is not in the database", lambda run: run.history.publish([received(conversation=OTHER)])),
    ("an event of", lambda run: run.hear(received(Key("bob", "k"), OTHER))),
    ("never came to client 0", lambda run: forget_event(run.listening)),
    ("never came to client 1", lambda run: forget_event(run.resumed)),
    (
        "never came to client 2",
        lambda run: run.history.listen("alice", 0, "1.a"),
    ),
    ("never published", lambda run: run.history.published.clear()),
    ("position was lost", lambda run: run.history.lose_position(run.listening)),
    ("an attempt of", lambda run: run.rows.attempts.append(AttemptRow(OTHER, "pending"))),
]


def test_an_honest_run_has_no_violations() -> None:
    """Unknown outcomes, replays, refusals and lookups among it."""
    assert [] == Run().violations()


@pytest.mark.parametrize(("what", "plant"), PLANTS)
def test_every_planted_violation_is_found(what: str, plant: Callable[[Run], object]) -> None:
    """And reported with the whole history of its key."""
    run = Run()
    plant(run)
    found = [violation for violation in run.violations() if what in violation.what]
    assert found
    reported = report(run.history, found)
    for line in run.history.of(found[0].key) if found[0].key else []:
        assert json.dumps(line) in reported


@pytest.mark.parametrize(
    "take",
    [
        lambda run: run.rows.attempts.clear(),
        failed_then(404),
        failed_then(200, looked_up("pending")),
    ],
)
def test_lost_attempts_are_forgiven_where_they_were_truncated(
    take: Callable[[Run], object],
) -> None:
    """But no more than that: they are metadata, the groups are not."""
    run = Run()
    take(run)
    assert [] == run.violations(attempts_lost=True)
    assert [] != run.violations()
    run.rows.groups.clear()
    assert [] != run.violations(attempts_lost=True)


def lost_again(run: Run, *, since: int) -> None:
    """Lose what was committed since a line; then create the group of the key once more."""
    run.history.lose(since)
    run.answer(201, text(conversation=OTHER), "created")
    event = received(conversation=OTHER)
    run.hear(event)
    run.history.hear(run.resumed, "1.b", event)
    run.history.publish([event])
    (group,), (row,) = run.rows.groups, run.rows.events
    run.rows.members[OTHER] = run.rows.members.pop(CONVERSATION)
    group.conversation_id = OTHER
    row.event_id = event_id_of(OTHER)


def test_a_key_that_lost_its_group_in_a_failover_may_begin_anew() -> None:
    """Its first group's event was sent, and the second one's is another."""
    run = Run()
    lost_again(run, since=0)
    assert [] == run.violations()


@pytest.mark.parametrize(
    ("what", "plant"),
    [
        # It was answered before anything could be lost.
        ("answers differ", lambda run: lost_again(run, since=len(run.history.lines))),
        ("is not in the database", lambda run: lost_again(run, since=len(run.history.lines))),
        ("answers differ", lambda run: again_after_loss(run, text())),
        ("never came to client", lambda run: again_after_loss(run, forgetting=True)),
        (
            "another conversation than the one answered",
            lambda run: again_after_loss(run, rows=False),
        ),
    ],
)
def test_a_loss_excuses_nothing_else(what: str, plant: Callable[[Run], object]) -> None:
    """What was answered before it, and what was answered after it, must still hold."""
    run = Run()
    plant(run)
    assert [violation for violation in run.violations() if what in violation.what]


def again_after_loss(
    run: Run, answer: str = "", *, forgetting: bool = False, rows: bool = True
) -> None:
    """Lose the group and create it once more; then break what holds since."""
    before = run.rows.groups[0].conversation_id
    lost_again(run, since=0)
    if answer:
        run.answer(201, answer, "replayed")
    if forgetting:
        forget_event(run.listening)
    if not rows:
        run.rows.groups[0].conversation_id = before


def test_a_position_may_be_lost_with_the_history_that_it_names() -> None:
    """Only where something was lost between its sending and its use; then nothing older is due."""
    run = Run()
    forget_event(run.listening)
    began = run.history.note("from here on, commits are lost")
    run.history.lose_position(run.listening)
    run.history.lose(began)
    run.history.place(run.listening, "1.b")
    assert [] == run.violations()
    run.history.lose_position(run.listening)
    assert [v for v in run.violations() if "position was lost" in v.what]


GONE, OF_DELETION = Key("alice", "gone"), UUID(int=3)
GONE_TEXT = json.dumps({"status": 410, "code": "group_deleted"})


def deleted(*, is_settled: bool = True) -> Run:
    """Return an honest run with a deletion: a process that remembers the success replays it."""
    run = Run()
    run.answer(404, key=FAILED, do="delete")
    run.answer(201, text(GONE, OTHER), "created", key=GONE)
    run.answer(503, key=GONE, do="delete")
    run.answer(204, key=GONE, do="delete")
    run.answer(201, text(GONE, OTHER), "replayed", key=GONE)
    run.answer(410, GONE_TEXT, key=GONE)
    run.answer(410, GONE_TEXT, key=GONE, do="lookup")
    run.answer(204, key=GONE, do="delete")
    if is_settled:
        run.history.note("settle")
        run.answer(410, GONE_TEXT, key=GONE)
    people = {"alice", "bob", "carol"}
    run.rows.deleted.add(GONE.group_id)
    run.rows.events += [
        EventRow(event_id_of(OTHER), GONE.group_id, people, "Team"),
        EventRow(OF_DELETION, GONE.group_id, people, "Team", "group.deleted"),
    ]
    for event in (received(GONE, OTHER), of_deletion(GONE)):
        run.hear(event)
        run.history.hear(run.resumed, "3.a", event)
        run.history.publish([event])
    return run


def of_deletion(key: Key) -> Received:
    """Return the event of a deletion, as a client receives it."""
    return Received(str(OF_DELETION), str(key.group_id), "0")


def gone(status: int, body: str = "", how: str = "", do: str = "create") -> Callable[[Run], None]:
    """Return what unsays a deletion."""
    return lambda run: run.answer(status, body, how, key=GONE, do=do)


def fail_then_delete(run: Run) -> None:
    """Have a key that has failed be answered as deleted."""
    run.answer(503, key=FAILED, do="delete")
    run.answer(410, GONE_TEXT, key=FAILED)


def miss_deletion(run: Run) -> None:
    """Take back that a client was sent the event of the deletion."""
    run.listening.events.pop()
    run.listening.known.remove(str(OF_DELETION))


AGAIN = text(GONE, OTHER)
DELETION_PLANTS: list[tuple[str, bool, Callable[[Run], object]]] = [
    ("deleted, then as succeeded", False, gone(201, AGAIN, "created")),
    ("deleted, then as succeeded", False, gone(201, AGAIN, "healed")),
    ("deleted, then as succeeded", False, gone(200, looked_up("succeeded", OTHER), do="lookup")),
    ("deleted, then as succeeded", True, gone(201, AGAIN, "replayed")),
    ("created more than once", False, gone(201, AGAIN, "created")),
    ("answers differ", False, gone(201, text(GONE, UUID(int=4)), "replayed")),
    ("deleted, then as failed", True, gone(410)),
    ("deleted, then as pending", True, gone(200, looked_up("pending"), do="lookup")),
    ("deleted, then as unseen", True, gone(404, do="lookup")),
    ("deleted, then as absent", True, gone(404, do="delete")),
    ("succeeded, then as absent", True, lambda run: run.answer(404, do="delete")),
    ("before that was asked for", True, lambda run: run.answer(410, GONE_TEXT)),
    ("failed, then as deleted", True, fail_then_delete),
    ("no deletion was asked for", True, lambda run: run.rows.deleted.add(FAILED.group_id)),
    ("there is no tombstone", True, lambda run: run.rows.deleted.clear()),
    ("there is no group", True, lambda run: run.rows.deleted.clear()),
    ("there is no tombstone", True, lambda run: run.answer(204, do="delete")),
    ("event is missing", True, lambda run: run.rows.events.pop()),
    ("one too many", True, lambda run: run.rows.events.append(run.rows.events[-1])),
    ("than the creation's", True, lambda run: name_otherwise(run.rows.events[-1])),
    ("than the creation's", True, lambda run: run.rows.events.pop(-2)),
    ("never came to client 0", True, miss_deletion),
    ("never published", True, lambda run: run.history.published.pop()),
]


@pytest.mark.parametrize("is_settled", [True, False])
def test_an_honest_deletion_is_no_violation(is_settled: bool) -> None:
    """Its answer may be lost, and it may be sent again; a replay after it comes from a memory."""
    assert [] == deleted(is_settled=is_settled).violations()


@pytest.mark.parametrize(("what", "is_settled", "plant"), DELETION_PLANTS)
def test_every_planted_violation_of_a_deletion_is_found(
    what: str, is_settled: bool, plant: Callable[[Run], object]
) -> None:
    """Only what a process may remember is forgiven, and only until all were started anew."""
    run = deleted(is_settled=is_settled)
    plant(run)
    assert [violation for violation in run.violations() if what in violation.what]


@pytest.mark.parametrize("is_in_loss", [True, False])
def test_a_deletion_may_be_lost_in_a_failover_and_its_group_is_there_again(
    is_in_loss: bool,
) -> None:
    """Though its event was sent; the twin was acknowledged before anything could be lost."""
    run = Run()
    began = run.history.note("from here on, commits are lost")
    run.answer(204, do="delete")
    if not is_in_loss:
        began = run.history.note("from here on, commits are lost")
    run.hear(of_deletion(KEY))
    run.history.lose(began)
    run.answer(201, text(), "replayed")
    run.answer(200, looked_up("succeeded", CONVERSATION), do="lookup")
    assert is_in_loss == (run.violations() == [])


def test_requests_that_overlapped_may_be_answered_in_any_order() -> None:
    """Only what was answered before a request began binds it."""
    run = Run()
    lookup = run.history.invoke("lookup", Key("bob", "k"))
    create = run.history.invoke("create", Key("bob", "k"), BODY)
    second_group(Key("bob", "k"))(run)
    run.history.answer(create, 410, "", "")
    run.history.answer(lookup, 404, "", "")
    assert not [v for v in run.violations() if "then" in v.what]


def test_a_kept_history_reads_as_it_was(tmp_path: Path) -> None:
    """Line by line, and the checker finds the same in it."""
    run = Run(tmp_path / "history.jsonl")
    run.answer(410)
    run.history.close()
    kept = read_history(tmp_path / "history.jsonl")
    assert run.history.lines == kept.lines
    again = Checker(kept, run.rows, Allowances()).violations()
    assert run.violations() == again


async def test_a_real_deletion_is_no_violation(api: Api, connection: Connection) -> None:
    """The rows are read as they are."""
    run = Run()
    run.history, run.rows = History(), Rows()
    for method in ("POST", "DELETE", "POST", "DELETE"):
        if method == "POST":
            reply = await api.create("k", BODY)
        else:
            reply = await api.request(method, f"/v1/groups/{KEY.group_id}")
        how = reply.headers.get("Idempotency-Status", "")
        do = "create" if method == "POST" else "delete"
        run.answer(reply.status, reply.body.decode(), how, do=do)
    assert [201, 204, 410, 204] == [each.status for each in run.history.operations]
    run.rows = await read_rows(connection)
    run.history.publish(
        Received(str(event.event_id), str(event.subject), "") for event in run.rows.events
    )
    assert [] == run.violations()


DAMAGES = [
    ("TRUNCATE outbox", "a group without its event"),
    ("DELETE FROM conversation_member WHERE role = 'member'", "not what was asked for"),
    ("DELETE FROM attempt", "attempt has not succeeded"),
    ("DELETE FROM chat_group", "acknowledged, but there is no group"),
    ("UPDATE chat_group SET name = 'x'", "not what was asked for"),
    ("INSERT INTO conversation VALUES (gen_random_uuid())", "without a group"),
]


@pytest.mark.parametrize(("damage", "what"), DAMAGES)
async def test_damage_in_a_real_database_is_found(
    damage: str, what: str, api: Api, connection: Connection
) -> None:
    """The rows are read as they are."""
    run = Run()
    run.history, run.rows = History(), Rows()
    replies = await asyncio.gather(*(api.create("k", BODY) for _ in range(3)))
    for reply in replies:
        run.answer(reply.status, reply.body.decode(), reply.headers["Idempotency-Status"])
    run.rows = await read_rows(connection)
    run.history.publish(
        Received(str(event.event_id), str(event.subject), "") for event in run.rows.events
    )
    assert [] == run.violations()
    await connection.execute(damage)
    run.rows = await read_rows(connection)
    assert [v for v in run.violations() if what in v.what]
