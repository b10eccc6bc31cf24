"""The load test's checker: it finds every contradiction, and nothing where there is none.

Locust itself is started by `make load-smoke` alone: it patches the standard library.
"""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from stretto.domain import group_id
from support.api_client import token_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.database import Connection
    from support.service_process import ServiceProcess, StartService

LOADTESTS: Final = Path(__file__).parents[2] / "loadtests"
GROUP: Final = str(group_id("alice", "k"))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The checker's modules, found as locust finds them: beside its own file."""
    monkeypatch.syspath_prepend(LOADTESTS)
    names = ("history", "records", "checker")
    return SimpleNamespace(**{name: import_module(name) for name in names})


@pytest.fixture
def records(load: Any) -> Iterator[Any]:
    """No histories yet."""
    with load.records.Records() as records:
        yield records


def answer_of(load: Any, **fields: Any) -> Any:
    """Return an answer: a creation, unless the fields say otherwise."""
    ids = {"group_id": GROUP, "conversation_id": "c"}
    ids |= {name: fields.pop(name) for name in ids if name in fields}
    text = fields.pop("text", json.dumps(ids))
    return load.history.Answer(
        **{"at": 1.0, "scenario": "S", "request": "r", "status": 201, "text": text, **fields}
    )


def faults_of(load: Any, *answers: dict[str, Any]) -> list[str]:
    """Return what is found wrong with these answers to one wish."""
    wish = load.history.Wish("alice", "k", "Team", ("bob",))
    given = [answer_of(load, **answer) for answer in answers]
    return list(load.history.KeyHistory("alice", "k", wish, given).faults())


async def check(load: Any, service: ServiceProcess, records: Any) -> list[str]:
    """Check the records against a service; return the faults as they are reported."""
    checker = load.checker.Checker(service.url, token_of)
    faults = await asyncio.to_thread(checker.check, records)
    return [str(fault) for fault in faults]


def test_an_honest_history_has_no_violations(load: Any) -> None:
    """One creation, replays, a look-up, refusals as due, and answers that ask to come again."""
    assert [] == faults_of(
        load,
        {"status": 503, "text": "busy"},
        {"is_replay": True},
        {},
        {"status": 0, "text": ""},
        {"status": 200, "text": json.dumps({"status": "pending", "group_id": GROUP})},
        {
            "status": 200,
            "text": json.dumps(
                {"status": "succeeded", "group_id": GROUP, "conversation_id": "c"}, indent=1
            ),
        },
        {"status": 422, "due": 422, "text": ""},
        {"status": 0, "due": 422, "text": ""},
        {"is_replay": True},
    )


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ([{}, {"is_replay": True, "conversation_id": "d"}], "2 groups"),
        ([{}, {"is_replay": True, "group_id": "g"}], "2 groups"),
        ([{}, {"status": 200, "text": '{"status": "succeeded"}'}], "2 groups"),
        ([{}, {"is_replay": True, "text": f'{{"conversation_id":"c","group_id":"{GROUP}"}}'}],
         "its answers differ"),
        ([{"group_id": "g"}], f"the group's id is not {GROUP}"),
        ([{"text": ""}], f"the group's id is not {GROUP}"),
        ([{}, {}], "created more than once"),
        ([{}, {"status": 422}], "answered 422"),
        ([{"status": 410}], "answered 410"),
        ([{}, {"status": 404}], "answered 404"),
        ([{}, {"status": 201, "due": 422}], "answered 201 where 422 was due"),
        ([{}, {"status": 500, "due": 400}], "answered 500 where 400 was due"),
        ([{"status": 503}], "no group"),
        ([{"status": 201, "due": 422}], "no group"),
        ([], "no group"),
    ],
)  # fmt: skip
def test_every_contradiction_is_a_violation(
    answers: list[dict[str, Any]], fault: str, load: Any
) -> None:
    """And it says what is wrong."""
    assert fault in faults_of(load, *answers)


def test_journals_of_several_processes_are_read_as_one(
    load: Any, records: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one process began another may have had answered; half a last line is left out."""
    wish = load.history.Wish("alice", "k\u00e9", 'Te"am', ("bob", "zo"), "two\nlines")
    answers = [answer_of(load, at=2.0, is_replay=True), answer_of(load, at=1.0, text="\U0001f600")]
    for machine, answer in zip(("one", "two"), answers, strict=True):
        monkeypatch.setattr("socket.gethostname", lambda machine=machine: machine)
        journal = load.records.Journal(tmp_path / "made")
        journal.begin(wish, "S")
        journal.record(wish.owner, wish.key, answer)
        journal.close()
    cut_off = next((tmp_path / "made").glob("history-two-*.jsonl"))
    with cut_off.open("a") as journal_file:
        journal_file.write('["answer", "alice", "k')

    records.read(tmp_path / "made")
    assert ["alice"] == records.owners()
    [history] = records.histories_of("alice")
    assert (wish, answers[::-1]) == (history.wish, history.answers)
    assert {"keys": 1, "created": 1, "replayed": 1} == records.counts()["S"]
    assert [] == records.open_wishes()


async def test_the_checker_finishes_what_was_cut_off_and_reads_every_group(
    load: Any, records: Any, start_service: StartService
) -> None:
    """Against a real service, without a fault."""
    service = await start_service()
    for number in range(4):
        wish = load.history.Wish("alice", f"k{number}", "Team", ("bob", "alice"), "why")
        records.begin(wish, "S")
        lost = answer_of(load, status=0, text="")
        records.record("alice", f"k{number}", lost)
    records.record("alice", "wrong", answer_of(load, status=400, due=400, text=""))

    idle = "S was never acknowledged anything: it proves nothing"
    assert [idle] == await check(load, service, records)
    assert [] == records.open_wishes()
    assert 4 == records.counts()["Checker"]["created"]


async def test_what_the_service_has_lost_changed_or_kept_is_a_violation(
    load: Any,
    records: Any,
    start_service: StartService,
    connection: Connection,
) -> None:
    """Each violation is planted behind the back of the clients."""
    service = await start_service()
    wishes = [load.history.Wish("alice", f"k{n}", "Team", ("bob",)) for n in range(6)]
    for wish in wishes:
        records.begin(wish)
    # The first check is also what creates them.
    await check(load, service, records)
    lost, renamed, emptied, moved, unwished, _ = (wish.group_id for wish in wishes)
    await connection.execute("DELETE FROM chat_group WHERE group_id = $1::text::uuid", lost)
    await connection.execute(
        "UPDATE chat_group SET name = 'Other' WHERE group_id = $1::text::uuid", renamed
    )
    await connection.execute(
        "DELETE FROM conversation_member WHERE user_id = 'bob' AND conversation_id ="
        " (SELECT conversation_id FROM chat_group WHERE group_id = $1::text::uuid)",
        emptied,
    )
    with load.records.Records() as planted:
        for wish in wishes:
            [history] = [h for h in records.histories_of("alice") if h.key == wish.key]
            if wish.group_id == unwished:
                # The answers say that it is refused, yet it has left a group and an attempt.
                planted.record("alice", wish.key, answer_of(load, status=400, due=400, text=""))
                continue
            planted.begin(wish, "S")
            for answer in history.answers:
                planted.record("alice", wish.key, answer)
        other = answer_of(load, group_id=moved, conversation_id="not-this")
        planted.record("alice", "k3", other)

        faults = await check(load, service, planted)
        printed = load.checker.report(planted, [load.checker.Fault("2 groups", "alice", "k3")], 1)
    for fault in (
        f"alice, key k0: acknowledged, but group {lost} is lost",
        "alice, key k1: name is 'Other', not 'Team'",
        "alice, key k2: members_count is 1, not 2",
        "alice, key k3: 2 groups",
        "alice, key k4: refused, but its attempt is answered 200",
        f"alice: group {unwished} was never requested",
    ):
        assert fault in faults
    assert not [fault for fault in faults if "key k5" in fault]
    assert "history of alice, key k3:" in printed
    assert "not-this" in printed


async def test_a_conversation_of_two_keys_is_a_violation(
    load: Any, records: Any, start_service: StartService
) -> None:
    """Each key has its own, whatever the groups' ids say."""
    service = await start_service()
    for key in ("k", "l"):
        wish = load.history.Wish("alice", key, "Team")
        records.begin(wish)
        records.record("alice", key, answer_of(load, group_id=wish.group_id))
    faults = await check(load, service, records)
    assert "alice, key l: conversation c is also that of alice, key k" in faults


@pytest.mark.parametrize("idle", ["S", "T"])
async def test_a_scenario_without_success_is_a_violation(
    idle: str, load: Any, records: Any, start_service: StartService
) -> None:
    """Whether it has begun anything, or should have."""
    service = await start_service()
    records.begin(load.history.Wish("alice", "k", "Team"), "S")
    checker = load.checker.Checker(service.url, token_of)
    faults = await asyncio.to_thread(checker.check, records, ["T"])
    expected = f"{idle} was never acknowledged anything: it proves nothing"
    assert expected in [str(fault) for fault in faults]


async def test_the_checker_reports_a_service_that_is_not_there(
    load: Any, records: Any, unused_tcp_port: int
) -> None:
    """It ends, and nothing passes for checked; without any history neither."""
    checker = load.checker.Checker(f"http://127.0.0.1:{unused_tcp_port}", token_of)
    faults = await asyncio.to_thread(checker.check, records)
    assert ["nothing was sent: this run proves nothing"] == [str(fault) for fault in faults]
    records.begin(load.history.Wish("alice", "k", "Team"))
    faults = await asyncio.to_thread(checker.check, records)
    assert "alice: the groups cannot be read" in [str(fault) for fault in faults]
