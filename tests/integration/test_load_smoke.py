"""The load test's checker: it finds every contradiction, and nothing where there is none.

Locust itself is started by `make load-smoke` alone: it patches the standard library.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from api_client import token_of
from stretto.domain import group_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import asyncpg

    from service_process import ServiceProcess

    StartService = Callable[..., Awaitable[ServiceProcess]]

LOADTESTS: Final = Path(__file__).parents[2] / "loadtests"
GROUP: Final = str(group_id("alice", "k"))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The checker's module, found as locust finds it: beside its own file."""
    monkeypatch.syspath_prepend(LOADTESTS)
    return import_module("checker")


def faults_of(load: Any, *answers: dict[str, Any]) -> list[str]:
    """Return what is found wrong with these answers to one wish."""
    history, wish = load.History(), load.Wish("alice", "k", "Team", ("bob",))
    history.begin(wish)
    for answer in answers:
        told = {"status": 201, "group_id": GROUP, "conversation_id": "c", **answer}
        history.record(wish, load.Answer(**told))
    faults: list[str] = history.faults()
    return faults


def test_an_honest_history_has_no_faults(load: Any) -> None:
    """One creation, replays, and answers that ask to come again."""
    again = {"group_id": "", "conversation_id": ""}
    assert [] == faults_of(
        load,
        {"status": 503, **again},
        {"is_replay": True},
        {},
        {"status": 0, **again},
        {"is_replay": True},
    )


@pytest.mark.parametrize(
    ("answers", "fault"),
    [
        ([{}, {"is_replay": True, "conversation_id": "d"}], "2 groups"),
        ([{}, {"is_replay": True, "group_id": "g"}], "2 groups"),
        ([{"group_id": "g"}], f"the group's id is not {GROUP}"),
        ([{"group_id": "", "conversation_id": ""}], f"the group's id is not {GROUP}"),
        ([{}, {}], "created more than once"),
        ([{}, {"status": 422}], "answered 422"),
        ([{"status": 410}], "answered 410"),
        ([{"status": 503}], "no group"),
        ([], "no group"),
        ([], "this run proves nothing"),
    ],
)
def test_every_contradiction_is_a_fault(
    answers: list[dict[str, Any]], fault: str, load: Any
) -> None:
    """And it says what is wrong."""
    assert any(line.endswith(fault) for line in faults_of(load, *answers))


def test_a_conversation_of_two_keys_is_a_fault(load: Any) -> None:
    """Each key has its own group, whatever the ids say."""
    history = load.History()
    for key in ("k", "another"):
        wish = load.Wish("alice", key, "Team", ())
        history.begin(wish)
        history.record(wish, load.Answer(201, wish.group_id, "c"))
    assert ["conversation_id c: 2 keys"] == history.faults()


async def test_the_checker_finishes_what_was_cut_off_and_reads_every_group(
    load: Any, start_service: StartService, connection: asyncpg.Connection[asyncpg.Record]
) -> None:
    """Against a real service; a group that is lost or changed afterwards is noticed."""
    service = await start_service()
    history = load.History()
    for number in range(4):
        history.begin(load.Wish("alice", f"k{number}", "Team", ("bob", "alice")))
    checker = load.Checker(service.url, token_of)

    assert [] == await asyncio.to_thread(checker.check, history)
    assert [] == history.open_wishes()
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 4
    assert "4 keys, 4 acknowledgements of which 0 replays: no faults" == load.report(history, [])

    lost, renamed = (str(group_id("alice", f"k{number}")) for number in (1, 2))
    await connection.execute("DELETE FROM chat_group WHERE group_id = $1::text::uuid", lost)
    await connection.execute(
        "UPDATE chat_group SET name = 'Other' WHERE group_id = $1::text::uuid", renamed
    )
    assert [
        f"alice, group {lost}: acknowledged, but reading it is answered 404",
        f"alice, group {renamed}: name is Other, not Team",
    ] == await asyncio.to_thread(checker.check, history)


async def test_the_checker_tells_a_service_that_is_not_there(
    load: Any, unused_tcp_port: int
) -> None:
    """It ends, and every key is a fault."""
    history = load.History()
    history.begin(load.Wish("alice", "k", "Team", ()))
    checker = load.Checker(f"http://127.0.0.1:{unused_tcp_port}", token_of)
    faults = await asyncio.to_thread(checker.check, history)
    assert ["alice, key k: no group", "nothing was created: this run proves nothing"] == faults
