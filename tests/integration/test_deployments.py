"""Two deployments on one nats-server: neither sees, takes or swallows what is the other's (G11)."""

from __future__ import annotations

import asyncio
import math
from contextlib import AsyncExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

import asyncpg
import orjson
import pytest
import pytest_asyncio
from nats.js.api import StreamConfig, StreamInfo
from uuid_utils.compat import uuid4

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.events.log import CommittedEvent
from stretto.nats import connection as connection_module
from stretto.nats import deployment as deployment_module
from stretto.nats import publisher as nats_bus
from stretto.nats.command_streams import provide_command_streams
from stretto.nats.connection import NatsConnection
from stretto.nats.deployment import (
    MARK,
    Deployment,
    ForeignStream,
    SubjectsMissing,
    SubjectsTaken,
    Unacknowledging,
    _takes,
    adopt,
    provide_stream,
)
from stretto.nats.publisher import NatsBus
from stretto.postgres.connections import Database
from stretto.postgres.log import origin
from stretto.postgres.migrate import migrate
from stretto.runtime.backoff import Backoff
from stretto.runtime.runner import Runner
from stretto.start_errors import ConfigurationError
from stretto.targets.bus import BusUnavailable
from support.api_client import SECRET
from support.command_process import stretto
from support.database import connect, own_database
from support.nats_process import (
    DEADLINE_SECONDS,
    OURS,
    NatsProcess,
    commanded,
    deployment_of,
    nats_client,
    stored,
)
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.client import Client
    from nats.js import JetStreamContext

    from stretto.nats.connection import Link
    from stretto.observations import Observation
    from support.database import Connection

TEAM = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})
THEIRS = Deployment("stretto", "ffffffff")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon: nothing here is as slow as a network."""
    monkeypatch.setattr(connection_module, "RETRY", Backoff(0.02, 0.02))
    monkeypatch.setattr(nats_bus, "START_SECONDS", DEADLINE_SECONDS)


@pytest_asyncio.fixture
async def client(server: NatsProcess) -> AsyncIterator[Client]:
    """A connection of neither deployment."""
    async with nats_client(server.url) as client:
        yield client


@pytest_asyncio.fixture
async def other_url(database_url: str) -> AsyncIterator[str]:
    """Another database on the same PostgreSQL, as empty as the test's own."""
    async with own_database(database_url) as url:
        yield url


async def conversations_in(client: Client, stream: str, count: int) -> set[str]:
    """Return the conversations of a stream's events, once there are so many."""

    async def are_there() -> bool:
        return len(await stored(client, stream)) >= count

    await until(are_there, DEADLINE_SECONDS)
    documents = [orjson.loads(message.data) for message in await stored(client, stream)]
    return {document["data"]["conversation_id"] for document in documents}


def new_event() -> CommittedEvent:
    """Return an event that was never sent."""
    return CommittedEvent(uuid4(), ("alice",), b"{}")


async def groups(url: str) -> int:
    """Return how many groups a database has."""
    connection = await connect(url)
    try:
        count: int = await connection.fetchval("SELECT count(*) FROM chat_group")
    finally:
        await connection.close()
    return count


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_consumers_hear_of_groups_of_their_own_deployment_alone(
    server: NatsProcess,
    client: Client,
    database_url: str,
    other_url: str,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With one prefix and no mark, the events of both stand in one stream."""
    if not is_guarded:
        monkeypatch.setattr(deployment_module, "_require_mark", lambda *_: None)
    prefixes = ("one", "two" if is_guarded else "one")
    made = []
    async with AsyncExitStack() as stack:
        for url, prefix in zip((database_url, other_url), prefixes, strict=True):
            settings = ComponentSettings(nats_url=server.url, nats_prefix=prefix)
            component = await stack.enter_async_context(open_component(url, settings=settings))
            answer = await component.creator.create(IdempotencyKey("k"), TEAM)
            made.append({str(answer.group.conversation_id)})
        heard = [
            await conversations_in(client, f"{prefix}_events", 1 if is_guarded else 2)
            for prefix in prefixes
        ]
    assert made == heard if is_guarded else [set().union(*made)] * 2 == heard


async def test_commands_make_a_group_in_their_own_deployment_alone(
    server: NatsProcess, client: Client, database_url: str, other_url: str
) -> None:
    """The same owner and key in both, which makes the same ids: one group each."""
    names = [await deployment_of(database_url, "one"), await deployment_of(other_url, "two")]
    async with AsyncExitStack() as stack:
        for url, name in zip((database_url, other_url), names, strict=True):
            settings = ComponentSettings(nats_url=server.url, nats_prefix=name.prefix)
            await stack.enter_async_context(open_component(url, settings=settings))
        replies = [
            (await commanded(client, "k", {"name": "Team"}, name.command_subject)).data
            for name in names
        ]
        streams = [name.event_stream for name in names]
        events = [(await until(partial(stored, client, stream)))[0] for stream in streams]
    assert [1, 1] == [await groups(database_url), await groups(other_url)]
    documents = [orjson.loads(reply) for reply in replies]
    assert documents[0]["group_id"] == documents[1]["group_id"]
    assert documents[0]["conversation_id"] != documents[1]["conversation_id"]
    assert ["one.events.group_created", "two.events.group_created"] == [e.subject for e in events]


async def test_an_outcome_may_go_below_the_replies_of_its_own_deployment(
    server: NatsProcess, client: Client, database_url: str
) -> None:
    """And not of the one that has the default's names."""
    name = await deployment_of(database_url, "one")
    settings = ComponentSettings(nats_url=server.url, nats_prefix="one")
    foreign = await client.subscribe("stretto.replies.>")
    heard = await client.subscribe("one.replies.>")
    async with open_component(database_url, settings=settings):
        await commanded(client, "k", {"name": "Team"}, name.command_subject)
        for key, subject in (("a", "stretto.replies.x"), ("b", "one.replies.x")):
            await client.jetstream().publish(
                name.command_subject,
                b'{"name": "Team"}',
                headers={
                    "Idempotency-Key": key,
                    "Stretto-Owner": "alice",
                    "Stretto-Reply-To": subject,
                },
            )
        assert b"group_id" in (await heard.next_msg(DEADLINE_SECONDS)).data
        dead = await until(lambda: stored(client, name.dead_stream))
    assert "request_invalid" == orjson.loads(dead[0].data)["code"]
    assert ["one.dead_letters.create_group"] == [letter.subject for letter in dead]
    assert 0 == foreign.pending_msgs


async def test_a_start_on_streams_of_another_deployment_is_refused_with_advice(
    server: NatsProcess, client: Client, database_url: str, other_url: str
) -> None:
    """By the command as well; nothing was sent, and the streams are as they were."""
    settings = ComponentSettings(nats_url=server.url)
    async with open_component(database_url, settings=settings):
        await commanded(client, "k", {"name": "Team"})
    mark = (await deployment_of(database_url)).database
    with pytest.raises(ForeignStream, match=f"belongs to the database {mark}.*NATS_PREFIX.*adopt"):
        async with open_component(other_url, settings=settings):
            pass
    code, _, errors = await stretto(
        "serve", DATABASE_URL=other_url, NATS_URL=server.url, PORT="0", JWT_SECRET=SECRET
    )
    assert code == 2
    assert "stretto: the stream stretto_events belongs to the database" in errors
    assert mark == (await client.jetstream().stream_info(OURS.event_stream)).config.metadata[MARK]  # type: ignore[index]
    assert await groups(other_url) == 0


@pytest.mark.parametrize("name", OURS.streams)
@pytest.mark.parametrize("metadata", [None, {MARK: THEIRS.database}])
async def test_a_stream_without_our_mark_is_refused_until_it_is_adopted(
    server: NatsProcess, client: Client, name: str, metadata: dict[str, str] | None
) -> None:
    """Any of the three; adopting changes the mark and nothing else of an operator's stream."""
    jetstream = client.jetstream()
    await jetstream.add_stream(
        name=name, subjects=OURS.streams[name], max_age=60, metadata=metadata
    )
    observed: list[Observation] = []
    runner, connection = Runner(observed.append), NatsConnection(server.url, observed.append)
    async with runner.running(connection):
        bus = NatsBus(connection, OURS)
        with pytest.raises(ForeignStream, match=f"the stream {name} "):
            await bus.ready()
        link = await connection.linked()
        if name != OURS.event_stream:
            with pytest.raises(ForeignStream):
                await provide_command_streams(link, OURS, 1.0)
        else:
            with pytest.raises(BusUnavailable, match="adopt"):
                await bus.publish([new_event()])
        before = (await jetstream.stream_info(name)).config
        assert [name] == await adopt(link, OURS)
        assert [] == await adopt(link, OURS)
        after = (await jetstream.stream_info(name)).config
        assert (60, before.subjects) == (after.max_age, after.subjects)
        await bus.ready()
        assert {} == await bus.publish([new_event()])
    assert (await jetstream.stream_info(OURS.event_stream)).state.messages == 1


async def test_a_stream_without_one_of_our_subjects_is_refused_with_advice(
    server: NatsProcess, client: Client, database_url: str
) -> None:
    """The first large group would stop all events: nobody answers what no stream takes."""
    deployment = await deployment_of(database_url)
    jetstream = client.jetstream()
    config = StreamConfig(
        name=deployment.event_stream,
        subjects=["stretto.events.>"],
        metadata={MARK: deployment.database},
    )
    await jetstream.add_stream(config)
    settings = ComponentSettings(nats_url=server.url)
    advice = r"does not take stretto\.recipients\.>, which we publish: add that to its subjects"
    with pytest.raises(SubjectsMissing, match=advice):
        async with open_component(database_url, settings=settings):
            pass
    _, shown, _ = await stretto("bus", DATABASE_URL=database_url, NATS_URL=server.url)
    assert "ours, replicas: 1, without stretto.recipients.>" in shown
    await jetstream.update_stream(replace(config, subjects=deployment.event_subjects))
    async with open_component(database_url, settings=settings):
        pass


@pytest.mark.parametrize("name", OURS.streams)
async def test_a_stream_that_acknowledges_nothing_is_refused_with_advice(
    server: NatsProcess, client: Client, database_url: str, name: str
) -> None:
    """Events would be published again and again, and the relay never move on."""
    deployment = await deployment_of(database_url)
    jetstream = client.jetstream()
    subjects = deployment.streams[name]
    config = StreamConfig(name=name, subjects=subjects, no_ack=True)
    await jetstream.add_stream(config)
    settings = ComponentSettings(nats_url=server.url)
    bus = partial(stretto, "bus", DATABASE_URL=database_url, NATS_URL=server.url)
    _, shown, _ = await bus("--adopt")
    assert f"adopted: {name}" in shown
    assert "ours, replicas: 1, acknowledges nothing (no_ack)" in shown
    with pytest.raises(Unacknowledging, match=f"the stream {name} .* set its no_ack to false"):
        async with open_component(database_url, settings=settings):
            pass
    adopted = (await jetstream.stream_info(name)).config
    await jetstream.update_stream(replace(adopted, no_ack=False))
    async with open_component(database_url, settings=settings):
        pass


async def test_a_foreign_stream_that_takes_our_subjects_is_named(
    server: NatsProcess, client: Client, database_url: str
) -> None:
    """None of ours can be made beside it."""
    jetstream = client.jetstream()
    await jetstream.add_stream(name="theirs", subjects=["stretto.>"])
    settings = ComponentSettings(nats_url=server.url)
    with pytest.raises(SubjectsTaken, match="stretto_events cannot be made: another one takes"):
        async with open_component(database_url, settings=settings):
            pass
    _, shown, _ = await stretto("bus", DATABASE_URL=database_url, NATS_URL=server.url)
    assert 3 == shown.count("cannot be made, as the stream theirs takes such subjects")
    await jetstream.delete_stream("theirs")
    async with open_component(database_url, settings=settings):
        pass


@pytest.mark.parametrize(
    ("pattern", "is_taken"),
    [
        ("stretto.events.>", True),
        ("stretto.>", True),
        (">", True),
        ("*.events.>", True),
        ("stretto.events.*", False),
        ("stretto.events.group_created", False),
        ("stretto.events", False),
        ("stretto.events.>.more", True),
        ("stretto.recipients.>", False),
        ("other.>", False),
    ],
)
def test_a_pattern_takes_all_of_a_subject_or_not(pattern: str, is_taken: bool) -> None:
    """As NATS has it: `*` is one token, `>` one or more."""
    assert is_taken == _takes(pattern, "stretto.events.>")
    assert _takes("stretto.commands.*", "stretto.commands.create_group")
    assert not _takes("stretto.commands.create_group.>", "stretto.commands.create_group")


async def make_anew(jetstream: JetStreamContext, database: str) -> None:
    """Do as an operator who deletes our stream of events, where a deployment is first to make it."""
    await jetstream.delete_stream(OURS.event_stream)
    await jetstream.add_stream(
        name=OURS.event_stream, subjects=OURS.event_subjects, metadata={MARK: database}
    )


@pytest.mark.parametrize(("deployment", "kept"), [(OURS, 2), (THEIRS, 1)])
async def test_a_stream_that_is_made_anew_is_looked_at_while_connected(
    server: NatsProcess, client: Client, deployment: Deployment, kept: int
) -> None:
    """An operator deleted it, and another deployment of the same prefix was first to make it."""
    jetstream = client.jetstream()
    runner, connection = Runner(lambda _: None), NatsConnection(server.url, lambda _: None)
    async with runner.running(connection):
        await connection.linked()
        bus = NatsBus(connection, OURS)
        assert {} == await bus.publish([new_event()])
        await make_anew(jetstream, deployment.database)
        for _ in range(2):
            if deployment == OURS:
                assert {} == await bus.publish([new_event()])
            else:
                with pytest.raises(BusUnavailable, match="belongs to the database ffffffff"):
                    await bus.publish([new_event()])
    # What has reached it is sent again once the operator has said whose it is.
    assert kept == (await jetstream.stream_info(OURS.event_stream)).state.messages


@pytest.mark.parametrize("is_looking", [True, False])
async def test_a_bus_that_has_published_nothing_notices_a_stream_made_anew(
    is_looking: bool, server: NatsProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay's lease has come to it from an instance that did: numbers tell it nothing."""
    monkeypatch.setattr(nats_bus, "LOOK_SECONDS", 0.0 if is_looking else math.inf)
    jetstream = client.jetstream()
    runner, connection = Runner(lambda _: None), NatsConnection(server.url, lambda _: None)
    async with runner.running(connection):
        await connection.linked()
        bus = NatsBus(connection, OURS)
        await bus.ready()
        await make_anew(jetstream, THEIRS.database)
        for _ in range(2):
            with nullcontext() if not is_looking else pytest.raises(BusUnavailable):
                await bus.publish([new_event()])
    stored = (await jetstream.stream_info(OURS.event_stream)).state.messages
    assert stored == (0 if is_looking else 2)


async def test_of_two_deployments_that_start_at_once_one_gets_the_name(
    server: NatsProcess, client: Client
) -> None:
    """Whichever was first: the server takes a stream with another mark for another stream."""
    connection = NatsConnection(server.url, lambda _: None)
    async with Runner(lambda _: None).running(connection):
        link = await connection.linked()
        looked = asyncio.Barrier(2)
        real = deployment_module._info

        async def look(link: Link, name: str) -> StreamInfo | None:
            info = await real(link, name)
            await looked.wait()
            return info

        with patch.object(deployment_module, "_info", look):
            results = await asyncio.gather(
                *(
                    provide_stream(
                        link,
                        each,
                        StreamConfig(name=each.event_stream, subjects=each.event_subjects),
                    )
                    for each in (OURS, THEIRS)
                ),
                return_exceptions=True,
            )
    assert 1 == sum(isinstance(result, ForeignStream) for result in results)
    assert 1 == sum(isinstance(result, StreamInfo) for result in results)


async def test_replicas_of_one_deployment_that_start_at_once_share_the_streams(
    server: NatsProcess, database_url: str
) -> None:
    """None of them takes the other's stream for a stranger's."""
    settings = ComponentSettings(nats_url=server.url)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as starting:
        for _ in range(4):
            starting.create_task(
                stack.enter_async_context(open_component(database_url, settings=settings))
            )


async def test_the_command_shows_the_names_and_adopts(
    server: NatsProcess, client: Client, database_url: str
) -> None:
    """What an operator needs for consumers, and after the database was restored elsewhere."""
    where = {"DATABASE_URL": database_url, "NATS_URL": server.url, "NATS_PREFIX": "one"}
    ours = await deployment_of(database_url, "one")
    await client.jetstream().add_stream(
        name="one_events", subjects=ours.event_subjects, metadata={MARK: "ffffffff"}
    )
    await client.jetstream().add_stream(name="one_dead_letters", subjects=[ours.dead_subject])
    code, shown, _ = await stretto("bus", **where)
    assert 0 == code
    assert [
        f"our database: {ours.database}",
        "one_events (one.events.>, one.recipients.>): belongs to the database ffffffff, replicas: 1",
        "one_commands (one.commands.create_group): not made yet",
        "one_dead_letters (one.dead_letters.create_group): does not say whose it is, replicas: 1",
    ] == shown.splitlines()
    code, shown, _ = await stretto("bus", "--adopt", **where)
    assert 0 == code
    assert shown.startswith("adopted: one_events, one_dead_letters\n")
    assert 2 == shown.count(": ours, replicas: 1\n")
    async with open_component(
        database_url, settings=ComponentSettings(nats_url=server.url, nats_prefix="one")
    ):
        pass


async def test_the_command_says_when_there_is_no_bus(
    database_url: str, unused_tcp_port: int
) -> None:
    """None that is configured, or none that answers."""
    code, _, errors = await stretto("bus", DATABASE_URL=database_url)
    assert (2, "stretto: STRETTO_NATS_URL is not set\n") == (code, errors)
    url = f"nats://127.0.0.1:{unused_tcp_port}"
    code, _, errors = await stretto("bus", DATABASE_URL=database_url, NATS_URL=url)
    assert code == 3
    assert "stretto: NATS does not answer as it should within 5 s" in errors


async def test_the_command_says_what_is_wrong_with_the_bus(
    database_url: str, tmp_path: Path
) -> None:
    """As the server says it: a wrong password, and a server without JetStream."""
    process = NatsProcess(tmp_path, "--user", "u", "--pass", "right")
    async with process as server:
        url = server.url.replace("nats://", "nats://u:wrong@")
        code, _, errors = await stretto("bus", DATABASE_URL=database_url, NATS_URL=url)
        assert 3 == code
        assert "Authorization Violation" in errors
        assert "wrong" not in errors
        url = server.url.replace("nats://", "nats://u:right@")
        assert 0 == (await stretto("bus", DATABASE_URL=database_url, NATS_URL=url))[0]
    conf = tmp_path / "accounts.conf"
    conf.write_text("accounts { A { users: [{user: u, password: p}] } }")
    async with NatsProcess(tmp_path, "--config", str(conf)) as server:
        url = server.url.replace("nats://", "nats://u:p@")
        code, _, errors = await stretto("bus", DATABASE_URL=database_url, NATS_URL=url)
        assert 2 == code
        assert "without JetStream: start nats-server with --jetstream" in errors


@pytest.mark.parametrize("prefix", ["", "a.b", "a b", "_x", "$JS", "a>", "x" * 33, "a\n"])
def test_a_prefix_is_one_token(prefix: str) -> None:
    """It stands in names of streams and consumers, and is the first token of every subject."""
    with pytest.raises(ConfigurationError, match="prefix"):
        Deployment(prefix, "0a1b2c3d")


def test_no_two_prefixes_share_a_name() -> None:
    """Not even where one begins with the other."""
    names = [
        name
        for prefix in ("a", "a_events", "a_b", "a-b", "stretto")
        for stream, subjects in Deployment(prefix, "0a1b2c3d").streams.items()
        for name in (stream, *subjects)
    ]
    assert len(names) == len(set(names)) == 5 * (3 + 4)


async def test_two_schemas_of_one_database_are_two_deployments(
    database_url: str, connection: Connection
) -> None:
    """Whichever schema is the first of their pools' search_paths."""
    origins = set()
    for schema in ("chat_a", "chat_b"):
        await migrate(connection, schema)
        async with (
            asyncpg.create_pool(
                database_url, min_size=0, server_settings={"search_path": f"public,{schema}"}
            ) as pool,
            Database(pool=pool) as database,
        ):
            origins.add(await origin(database))
    assert len(origins) == 2
