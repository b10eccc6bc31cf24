"""The history of an attempt over HTTP: its owner's alone, bounded, and nothing else needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from stretto.creation.reads import TRAIL_ENTRIES_MAX
from stretto.domain import NewGroup, UserId, group_id
from stretto.postgres import connections
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.lanes import SERVING, Lane
from stretto.postgres.trail import PostgresTrailStore
from support.api_client import TEAM
from support.database import pend
from support.waiting import until

if TYPE_CHECKING:
    from support.api_client import Api
    from support.database import Connection

PATH = "/v1/attempts/k/history"


async def add(connection: Connection, count: int, key: str = "k") -> None:
    """Add entries to a trail of alice's, with their numbers as codes."""
    await connection.execute(
        """INSERT INTO attempt_trail (group_id, happened_at, what, instance, token_after, code)
           SELECT $1, clock_timestamp(), 'unknown', 'one', gen_random_uuid(), number::text
           FROM generate_series(1, $2) AS number""",
        *(group_id("alice", key), count),
    )


async def test_an_owner_reads_what_has_happened_to_an_attempt(
    api: Api, connection: Connection
) -> None:
    """Taken over, then another body: when, what and why, without instances and claim tokens."""
    await pend(connection, "k", NewGroup.parse(UserId("alice"), TEAM).fingerprint(), seconds_ago=60)
    assert 201 == (await api.create("k")).status
    assert 422 == (await api.create("k", {"name": "Other"})).status

    async def both() -> list[dict[str, Any]] | None:
        entries: list[dict[str, Any]] = (await api.get(PATH)).json["history"]
        return entries if len(entries) == 2 else None

    entries = await until(both)
    assert entries is not None
    assert [("reclaimed", None, None), ("other_body", None, None)] == [
        (each["what"], each["code"], each["trace_id"]) for each in entries
    ]
    assert [{"happened_at", "what", "code", "trace_id"}] * 2 == [each.keys() for each in entries]
    assert entries[0]["happened_at"] < entries[1]["happened_at"]


async def test_an_attempt_on_the_normal_way_has_an_empty_history(api: Api) -> None:
    """Created and replayed; an unknown key has none."""
    for _ in range(2):
        await api.create("k")
    reply = await api.get(PATH)
    assert (200, {"history": []}) == (reply.status, reply.json)
    unknown = await api.get("/v1/attempts/unknown/history")
    assert (404, "not_found") == (unknown.status, unknown.json["code"])


async def test_a_history_is_its_owners_alone(api: Api, connection: Connection) -> None:
    """The same key of another user is another attempt."""
    await api.create("k")
    await add(connection, 1)
    assert 1 == len((await api.get(PATH)).json["history"])
    reply = await api.get(PATH, user="bob")
    assert (404, "not_found") == (reply.status, reply.json["code"])
    await api.create("k", user="bob")
    assert [] == (await api.get(PATH, user="bob")).json["history"]


async def test_a_history_has_the_newest_entries_alone(api: Api, connection: Connection) -> None:
    """Oldest first; those of other attempts are not among them."""
    await api.create("k")
    await add(connection, TRAIL_ENTRIES_MAX + 5)
    await add(connection, 5, key="l")
    found = [each["code"] for each in (await api.get(PATH)).json["history"]]
    assert [str(number) for number in range(6, TRAIL_ENTRIES_MAX + 6)] == found


async def test_a_trail_that_is_all_that_is_left_is_shown(api: Api, connection: Connection) -> None:
    """The attempt itself is not found, such as one whose claim a crash has lost."""
    await add(connection, 1)
    reply = await api.get(PATH)
    assert (200, ["unknown"]) == (reply.status, [each["what"] for each in reply.json["history"]])
    assert 404 == (await api.get("/v1/attempts/k")).status


async def test_a_deleted_group_has_no_history(api: Api, connection: Connection) -> None:
    """As its attempt has no state."""
    created = await api.create("k")
    await add(connection, 1)
    deleted = await api.request("DELETE", f"/v1/groups/{created.json['group_id']}")
    assert 204 == deleted.status
    for path in (PATH, "/v1/attempts/k"):
        reply = await api.get(path)
        assert (410, "group_deleted") == (reply.status, reply.json["code"])


async def test_the_attempt_is_looked_at_after_its_trail(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look waits for a standby that lacks an outcome, and so for all that the trail has."""
    await api.create("k")
    calls: list[str] = []
    for store, name in ((PostgresTrailStore, "newest"), (PostgresAttemptStore, "look_all")):
        statement = getattr(store, name)

        async def noted(*asked: Any, name: str = name, statement: Any = statement) -> Any:
            calls.append(name)
            return await statement(*asked)

        monkeypatch.setattr(store, name, noted)
    assert 200 == (await api.get(PATH)).status
    assert ["newest", "look_all"] == calls


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_trail_that_cannot_be_read_costs_nothing_else(
    is_guarded: bool, api: Api, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No instance is taken out for it. The twin: a lane on which readiness depends."""
    if not is_guarded:
        monkeypatch.setattr(connections, "SERVING", SERVING | {Lane.TRAILS})
    await connection.execute("ALTER TABLE attempt_trail RENAME TO gone")
    assert 201 == (await api.create("k")).status
    reply = await api.get(PATH)
    assert (503, "database_unavailable") == (reply.status, reply.json["code"])
    assert 200 == (await api.get("/v1/attempts/k")).status
    assert (200 if is_guarded else 503) == (await api.get("/readyz", user=None)).status
