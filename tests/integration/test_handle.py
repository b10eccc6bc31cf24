"""The component in a host's hands: create, read, subscribe, observe, and errors as answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest
from aiohttp import web

import stretto
from support.api_client import SECRET, TEAM, hosted_api
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from support.api_client import Api
    from support.database import Connection

TOKENS: Final = stretto.TokenSettings(jwt_secret=SECRET)
DEADLINE_SECONDS: Final = 60
NEW_GROUP: Final = stretto.NewGroup.parse(stretto.UserId("alice"), TEAM)


class BrokenBus:
    """Raises what no bus may raise."""

    def __init__(self) -> None:
        self.calls = 0

    async def publish(self, events: Sequence[stretto.CommittedEvent]) -> Mapping[UUID, str]:
        self.calls += 1
        raise LookupError


class Bus:
    """Keeps the events that it gets."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[UUID] = asyncio.Queue()

    async def publish(self, events: Sequence[stretto.CommittedEvent]) -> Mapping[UUID, str]:
        for event in events:
            self.events.put_nowait(event.event_id)
        return {}


def mounted(**options: Any) -> tuple[web.Application, stretto.Handle]:
    """Return a host, and its component below /chat."""
    app = web.Application()
    return app, stretto.setup(app, "/chat", tokens=TOKENS, **options)


async def post(api: Api, key: str, body: bytes = b'{"name": "Team"}') -> Any:
    """Create a group over HTTP."""
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return await api.request("POST", "/chat/v1/groups", headers=headers, data=body)


async def test_a_mounted_component_is_the_hosts_from_its_start_to_its_stop(
    database_url: str,
) -> None:
    """It creates what a request creates: one group, one document."""
    app, chat = mounted(dsn=database_url)
    with pytest.raises(stretto.NotStarted, match="on_startup"):
        await chat.create("k", NEW_GROUP)
    async with asyncio.timeout(DEADLINE_SECONDS), hosted_api(app) as api:
        answer = await chat.create_from("alice", "k", b'{"name": "Team"}')
        reply = await post(api, "k")
        assert (answer.document, "replayed") == (reply.body, reply.headers["Idempotency-Status"])
    with pytest.raises(stretto.Overloaded):
        await chat.create("late", NEW_GROUP)


async def test_groups_are_found_by_id_by_key_and_in_lists(component: stretto.Component) -> None:
    """As over HTTP; without a member, any group."""
    ids = [
        (await component.create(key, NEW_GROUP)).group.group_id for key in ("one", "two", "three")
    ]
    group = await component.group(stretto.group_id("alice", "one"))
    assert (ids[0], "Team", 3) == (group.group_id, group.name, group.members_count)
    assert group == await component.group(ids[0], member="bob")
    with pytest.raises(stretto.NotFound):
        await component.group(ids[0], member="eve")
    with pytest.raises(stretto.NotFound):
        await component.group(stretto.group_id("alice", "no such key"))
    page = await component.groups("bob", limit=2)
    rest = await component.groups("bob", after=page[-1].conversation_id)
    assert [*reversed(ids)] == [each.group_id for each in (*page, *rest)]
    assert [] == await component.groups("eve")
    members = await component.members(ids[0], limit=2)
    members = [*members, *await component.members(ids[0], after=members[-1].user_id)]
    assert [("alice", "owner"), ("bob", "member"), ("carol", "member")] == [
        (each.user_id, each.role) for each in members
    ]
    assert [] == await component.members(ids[0], after="carol")
    with pytest.raises(stretto.NotFound):
        await component.members(stretto.group_id("alice", "no such key"), after="bob")


async def test_the_metadata_of_a_group_is_what_was_asked_for(component: stretto.Component) -> None:
    """In the one form that equal objects have: a group that is made of it is the same."""
    metadata = {"zone": [1, 2.5, {"a": None}], "b": "ä", "long name": 10**15}
    asked = stretto.NewGroup.parse(stretto.UserId("alice"), {"name": "Team", "metadata": metadata})
    group = await component.group((await component.create("k", asked)).group.group_id)
    assert group.metadata is not None
    assert (asked.metadata, metadata) == (group.metadata, group.metadata.value)
    (listed,) = await component.groups("alice")
    owner = stretto.UserId(listed.owner_id)
    again = stretto.NewGroup(owner, "Team", None, (), metadata=listed.metadata)
    assert asked.fingerprint() == again.fingerprint()
    with pytest.raises(stretto.MetadataInvalid):
        stretto.Metadata({"a": object()})
    await component.create("plain", NEW_GROUP)
    assert (await component.group(stretto.group_id("alice", "plain"))).metadata is None


async def test_an_attempt_is_looked_up_by_its_key(component: stretto.Component) -> None:
    """Its owner's only: the key of another user is another key."""
    answer = await component.create("k", NEW_GROUP)
    report = await component.attempt("alice", "k")
    assert (stretto.AttemptStatus.SUCCEEDED, answer.group.group_id) == (
        report.status,
        report.group_id,
    )
    with pytest.raises(stretto.NotFound):
        await component.attempt("bob", "k")


async def test_authorize_is_asked_by_each_request_that_no_memory_answers(
    database_url: str,
) -> None:
    """Together or in another process; a key that has its group is answered whatever it says."""
    asked: list[str] = []

    async def refuse(new_group: stretto.NewGroup) -> None:
        asked.append(new_group.owner)
        raise stretto.GroupRejected("quota", "No.")

    async def allow(new_group: stretto.NewGroup) -> None:
        asked.append(new_group.owner)
        await asyncio.sleep(0)

    async with stretto.open_component(database_url, authorize=allow) as component:
        await asyncio.gather(*(component.create("k", NEW_GROUP) for _ in range(3)))
        await component.create("k", NEW_GROUP)
    assert ["alice"] * 3 == asked
    async with stretto.open_component(database_url, authorize=refuse) as component:
        assert (await component.create("k", NEW_GROUP)).status.is_replay
        assert ["alice"] * 4 == asked
        with pytest.raises(stretto.CreationRefused):
            await component.create("other", NEW_GROUP)


async def test_a_component_that_has_ended_refuses_before_it_asks_authorize(
    database_url: str,
) -> None:
    """The host's own resources may be closed by then."""
    asked: list[str] = []

    async def allow(new_group: stretto.NewGroup) -> None:
        asked.append(new_group.owner)

    async with stretto.open_component(database_url, authorize=allow) as component:
        pass
    with pytest.raises(stretto.Overloaded, match="shutting down"):
        await component.create("k", NEW_GROUP)
    with pytest.raises(stretto.Overloaded, match="shutting down"):
        await component.create_from("alice", "k", b'{"name": "Team"}')
    assert [] == asked


async def test_the_limit_of_new_attempts_lets_pass_what_is_remembered(database_url: str) -> None:
    """Another process takes the key of a group for a new one, until the owner has a place again."""
    slow = stretto.ComponentSettings(creator=stretto.CreatorSettings(rate_limit=1.0))
    async with stretto.open_component(database_url, settings=slow) as component:
        await component.create("k", NEW_GROUP)
        with pytest.raises(stretto.RateLimited):
            await component.create("other", NEW_GROUP)
        assert (await component.create("k", NEW_GROUP)).status.is_replay
    async with stretto.open_component(database_url, settings=slow) as component:
        await component.create("new", NEW_GROUP)
        with pytest.raises(stretto.RateLimited):
            await component.create("k", NEW_GROUP)

        async def is_replay() -> bool:
            with suppress(stretto.RateLimited):
                return (await component.create("k", NEW_GROUP)).status.is_replay
            return False

        await until(is_replay)


async def test_the_attempt_of_a_deleted_group_is_gone(
    component: stretto.Component, connection: Connection
) -> None:
    """As its key is."""
    group = (await component.create("k", NEW_GROUP)).group.group_id
    assert await stretto.delete_group(connection, group)
    with pytest.raises(stretto.GroupDeleted):
        await component.attempt("alice", "k")


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (TypeError, lambda c: c.group("2d8de0a2-59d5-5a04-87e0-a5be649c7114")),
        (TypeError, lambda c: c.groups("alice", after="2d8de0a2")),
        (TypeError, lambda c: c.members(stretto.group_id("alice", "k"), after=7)),
        (ValueError, lambda c: c.members(stretto.group_id("alice", "k"), after="a\0")),
        (ValueError, lambda c: c.groups("alice", limit=0)),
        (ValueError, lambda c: c.groups("alice", limit=201)),
        (TypeError, lambda c: c.groups("alice", limit="7")),
        (ValueError, lambda c: c.groups("")),
        (TypeError, lambda c: c.attempt("alice", "k", wait_seconds="7")),
        (stretto.KeyInvalid, lambda c: c.attempt("alice", "a b")),
        (stretto.KeyInvalid, lambda c: c.create("", NEW_GROUP)),
        (TypeError, lambda c: c.create("k", TEAM)),
        (TypeError, lambda c: c.on_event(print)),
    ],
)
async def test_what_a_host_asks_wrongly_is_refused_before_it_joins_others(
    error: type[Exception],
    call: Callable[[stretto.Component], Awaitable[object]],
    component: stretto.Component,
) -> None:
    """Questions share statements: the database's objection would be everyone's."""
    with pytest.raises(error):
        await call(component)


async def test_a_database_that_is_away_is_an_error_of_the_tree(database_url: str) -> None:
    """Whatever a host calls."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        asyncpg.create_pool(
            database_url, min_size=0, max_size=5, server_settings={"search_path": "stretto"}
        ) as pool,
        stretto.open_component(pool=pool) as component,
    ):
        await pool.close()
        calls: list[Awaitable[object]] = [
            component.create("k", NEW_GROUP),
            component.group(stretto.group_id("alice", "k")),
            component.groups("alice"),
            component.attempt("alice", "k"),
            component.on_event(asyncio.Queue[stretto.CommittedEvent]().put),
        ]
        for call in calls:
            with pytest.raises(stretto.DatabaseUnavailable) as raised:
                await call
            assert 503 == stretto.problem_of(raised.value).status


@pytest.mark.parametrize(
    ("key", "body"),
    [
        ("k", b'{"name": "Another"}'),
        ("a b", b'{"name": "Team"}'),
        ("k", b'{"name": ""}'),
        ("k", b"{"),
        ("refused", b'{"name": "Team", "kind": "broadcast"}'),
        ("vetoed", b'{"name": "Team", "kind": "vetoed"}'),
    ],
)
async def test_an_error_becomes_the_answer_of_the_http_api(
    key: str, body: bytes, database_url: str
) -> None:
    """Status, header fields and body, byte by byte."""

    async def allow(new_group: stretto.NewGroup) -> None:
        if new_group.kind == "broadcast":
            raise stretto.GroupRejected("no_broadcasts", "Only staff may.")

    async def veto(
        _: stretto.Connection, created: Sequence[tuple[stretto.CreatedGroup, stretto.NewGroup]]
    ) -> None:
        if any(new_group.kind == "vetoed" for _, new_group in created):
            raise stretto.GroupRejected("quota", "No more.")

    app, chat = mounted(dsn=database_url, authorize=allow, on_create=veto)
    async with asyncio.timeout(DEADLINE_SECONDS), hosted_api(app) as api:
        assert 201 == (await post(api, "k")).status
        with pytest.raises(stretto.StrettoError) as raised:
            await chat.create_from("alice", key, body)
        problem, reply = stretto.problem_of(raised.value), await post(api, key, body)
    assert (problem.status, problem.body) == (reply.status, reply.body)
    assert problem.headers.items() <= dict(reply.headers).items()


async def test_on_event_gets_what_any_process_creates_until_it_ends(
    component: stretto.Component, database_url: str
) -> None:
    """From the moment that the call returns, in order, and nothing of before."""
    seen: asyncio.Queue[stretto.CommittedEvent] = asyncio.Queue()
    await component.create("before", NEW_GROUP)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        stretto.open_component(database_url) as other,
    ):
        end = await component.on_event(seen.put)
        for creator, key in ((component, "own"), (other, "another's")):
            answer = await creator.create(key, NEW_GROUP)
            event = await seen.get()
            assert stretto.event_id(answer.group.conversation_id) == event.event_id
            assert ("alice", "bob", "carol") == tuple(sorted(event.recipients))
        await end()
        rest = await other.on_event(seen.put)
        await component.create("after", NEW_GROUP)
        await seen.get()
        await rest()
    assert seen.empty()


async def test_on_event_gets_what_a_host_changes_itself(
    connection: Connection, database_url: str
) -> None:
    """At once where it is announced, over a mounted component as well."""
    seen: asyncio.Queue[stretto.CommittedEvent] = asyncio.Queue()
    app, chat = mounted(dsn=database_url)
    async with asyncio.timeout(DEADLINE_SECONDS), hosted_api(app):
        group_id = (await chat.create("k", NEW_GROUP)).group.group_id
        await chat.on_event(seen.put)
        async with connection.transaction():
            change = await stretto.rename_group(connection, group_id, name="Renamed")
        chat.announce()
        assert change is not None
        assert change.event_id == (await seen.get()).event_id


async def test_on_event_may_use_the_component(component: stretto.Component) -> None:
    """A host reads what an event is about, or creates something that follows from it."""
    welcomed = asyncio.Event()

    async def welcome(event: stretto.CommittedEvent) -> None:
        groups = await component.groups("bob")
        if len(groups) == 1:
            await component.create("welcome", NEW_GROUP)
        else:
            welcomed.set()

    async with asyncio.timeout(DEADLINE_SECONDS):
        await component.on_event(welcome)
        await component.create("k", NEW_GROUP)
        await welcomed.wait()


async def test_a_callback_that_fails_is_logged_and_gets_the_next_event(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With what it has raised."""
    calls = 0

    async def fail(_: stretto.CommittedEvent) -> None:
        nonlocal calls
        calls += 1
        raise LookupError

    async with asyncio.timeout(DEADLINE_SECONDS), stretto.open_component(database_url) as chat:
        await chat.on_event(fail)
        for key in ("one", "two"):
            await chat.create(key, NEW_GROUP)
        await until(lambda: calls == 2)
        assert [] == chat.runner.down
    (first, *_) = [each for each in caplog.records if each.msg == "on_event.failed"]
    assert "on_event raised LookupError" == vars(first)["cause"]
    assert first.exc_info is not None
    assert first.exc_info[0] is LookupError


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_host_without_an_observer_reads_in_its_log_that_its_bus_is_broken(
    is_silent: bool, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Silence has to be asked for."""
    bus = BrokenBus()
    options: dict[str, Any] = {"observe": lambda _: None} if is_silent else {}
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        stretto.open_component(database_url, bus=bus, **options) as chat,
    ):
        await chat.create("k", NEW_GROUP)
        await until(lambda: bus.calls > 1)
    crashed = [each for each in caplog.records if each.msg == "actor.crashed"]
    assert is_silent == (not crashed)


async def test_a_mounted_component_takes_a_bus_and_an_observer(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The observer stands in the log's place; metrics are kept as before."""
    observed: list[stretto.Observation] = []
    bus = Bus()
    app, chat = mounted(dsn=database_url, bus=bus, observe=observed.append)
    async with asyncio.timeout(DEADLINE_SECONDS), hosted_api(app) as api:
        answer = await chat.create("k", NEW_GROUP)
        assert stretto.event_id(answer.group.conversation_id) == await bus.events.get()
        metrics = (await api.get("/chat/metrics")).body
    assert stretto.AttemptAnswered("created") in observed
    assert b'stretto_attempts_total{outcome="created"} 1.0' in metrics
    assert b"stretto_relay_lag_seconds" in metrics
    assert b"stretto_webhook_lag_seconds" not in metrics


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("observe must be", {"observe": "print"}),
        ("bus must be", {"bus": object()}),
    ],
)
def test_a_mounted_component_refuses_what_cannot_observe_or_publish(
    words: str, options: dict[str, Any]
) -> None:
    """As soon as it is mounted."""
    with pytest.raises(TypeError, match=words):
        mounted(dsn="postgresql://nowhere/chat", **options)
