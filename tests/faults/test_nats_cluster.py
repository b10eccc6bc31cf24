"""A server of a NATS cluster ends under load: how long events and commands stand still.

Of a leader that is killed NATS itself takes 4 to 9 s to elect a successor. The tests measure that
apart: from the election on, or after a stop in order, what stands still does so because of us.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import orjson
import pytest
import pytest_asyncio
from nats.errors import Error
from uuid_utils.compat import uuid4

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.nats import requests
from stretto.nats.access import NatsSettings
from stretto.nats.commands import CommandSettings
from stretto.nats.deployment import MARK
from stretto.observations import BusFailed, StreamDiffers
from stretto.targets.settings import RelaySettings
from support.command_process import stretto
from support.nats_cluster import SERVERS, NatsCluster
from support.nats_process import DEADLINE_SECONDS, OURS, deployment_of, stored
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from nats.aio.msg import Msg

    from stretto.assembly.component import Component
    from stretto.observations import Observation
    from support.database import Connection

TEAM = {"name": "Team", "members": ["bob"]}
WORKERS = 8
# Of a machine that has no time for it; docs/faults.md has what an idle one takes.
STANDSTILL_SECONDS_MAX = 10.0
RESUMED_SECONDS_MAX = 10.0
LOAD_SECONDS = 2.5
# Between two creations of a worker: some hundred a second in all.
PAUSE_SECONDS = 0.02


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    """Three servers of this test alone."""
    async with NatsCluster(tmp_path / "nats") as cluster:
        yield cluster


def settings(cluster: NatsCluster, replicas: int = SERVERS) -> ComponentSettings:
    """Return those of a replica of ours."""
    return ComponentSettings(
        nats_url=cluster.url,
        nats=NatsSettings(nats_replicas=replicas),
        # Longer than any election: the end of a lease would end a wait as well.
        relay=RelaySettings(relay_lease_seconds=60),
    )


@asynccontextmanager
async def creating(component: Component, created: set[str]) -> AsyncIterator[None]:
    """Create groups without a pause; keep the conversations of those that were acknowledged."""
    over = asyncio.Event()

    async def work() -> None:
        while not over.is_set():
            key = IdempotencyKey(uuid4().hex)
            answer = await component.creator.create(key, NewGroup.parse(UserId("alice"), TEAM))
            created.add(str(answer.group.conversation_id))
            await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as workers:
        for number in range(WORKERS):
            workers.create_task(work(), name=f"load {number}")
        yield
        over.set()


@asynccontextmanager
async def commanding(cluster: NatsCluster) -> AsyncIterator[set[str]]:
    """Send commands without a pause until they are stored; yields the keys of those."""
    sent: set[str] = set()
    keys = itertools.count()
    over = asyncio.Event()

    async def work() -> None:
        jetstream = cluster.client.jetstream(timeout=requests.AGAIN_SECONDS)
        while not over.is_set():
            key = f"k{next(keys)}"
            headers = {"Idempotency-Key": key, "Stretto-Owner": "alice", "Nats-Msg-Id": key}
            while key not in sent:
                with suppress(Error, OSError):
                    await jetstream.publish(
                        OURS.command_subject, orjson.dumps(TEAM), headers=headers
                    )
                    sent.add(key)
                await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as workers:
        for number in range(WORKERS):
            workers.create_task(work(), name=f"load {number}")
        yield sent
        over.set()


def standstill(moments: Iterable[float]) -> tuple[float, float]:
    """Return how long nothing happened at the most, and when it went on."""
    return max((after - before, after) for before, after in itertools.pairwise(sorted(moments)))


async def end(cluster: NatsCluster, leader: str, how: str) -> None:
    """End that server in one of the ways that there are."""
    server = cluster.servers[leader]
    ways = {"stopped": server.stop, "killed": server.kill, "frozen": server.freeze}
    await ways[how]()


async def led(cluster: NatsCluster, component: Component, *, is_own: bool) -> str:
    """Have the events led by the server that the component is connected to, or by one of no client.

    A client of the test leaves a frozen server without closing its connection.
    """
    assert component.nats is not None
    ours, tests = (
        url.port
        for client in (component.nats.connection.link().client, cluster.client)
        if (url := client.connected_url)
    )
    wanted = next(
        name
        for name, server in cluster.servers.items()
        if (server.port == ours if is_own else server.port not in (ours, tests))
    )
    while await cluster.leader(OURS.event_stream) != wanted:
        await cluster.client.request(
            f"$JS.API.STREAM.LEADER.STEPDOWN.{OURS.event_stream}",
            orjson.dumps({"placement": {"preferred": wanted}}),
            timeout=DEADLINE_SECONDS,
        )
    return wanted


@pytest.mark.parametrize(
    ("how", "is_own"), [("stopped", True), ("killed", True), ("frozen", False)]
)
async def test_the_leader_of_the_events_ends_under_load(
    cluster: NatsCluster,
    database_url: str,
    how: str,
    is_own: bool,
) -> None:
    """The server that we are connected to, or another; none is lost, and each has one id."""
    created: set[str] = set()
    async with open_component(database_url, settings=settings(cluster)) as component:
        async with creating(component, created):
            await until(lambda: len(created) >= 100)
        await until(lambda: published(cluster, created))
        leader = await led(cluster, component, is_own=is_own)
        if how == "frozen":
            # Before the load: what the others have already is stored without its leader.
            await end(cluster, leader, how)
        async with creating(component, created):
            await until(lambda: len(created) >= 200)
            if how != "frozen":
                await end(cluster, leader, how)
            await cluster.leader(OURS.event_stream, leader)
            elected = time.time()
            await until(lambda: time.time() > elected + LOAD_SECONDS)
        if how == "frozen":
            # The others may not have noticed, and have a consumer of this test led there.
            cluster.servers[leader].thaw()
        messages = await until(lambda: published(cluster, created))
    ids = {message.headers["Nats-Msg-Id"] for message in messages if message.headers}
    assert (len(created), created) == (len(ids), conversations(messages))
    seconds, resumed = standstill(m.metadata.timestamp.timestamp() for m in messages)
    if how == "stopped":
        assert seconds <= STANDSTILL_SECONDS_MAX
    else:
        assert resumed - elected <= RESUMED_SECONDS_MAX, seconds


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_the_leader_of_the_commands_ends_under_load(
    cluster: NatsCluster, database_url: str, connection: Connection, how: str
) -> None:
    """Each that was stored makes one group; most go on at once, some are delivered again."""
    stream, consumer = OURS.command_stream, OURS.command_consumer
    async with open_component(database_url, settings=settings(cluster)):
        await cluster.leader(stream)
        async with commanding(cluster) as sent:
            await until(lambda: len(sent) >= 100)
            leader = await cluster.leader(stream, consumer=consumer)
            ended = time.time()
            await end(cluster, leader, how)
            await cluster.leader(stream, leader, consumer=consumer)
            await cluster.leader(stream, leader)
            elected = time.time()
            await until(lambda: time.time() > elected + LOAD_SECONDS)

        async def is_done() -> bool:
            groups: int = await connection.fetchval("SELECT count(*) FROM chat_group")
            return len(sent) == groups

        # What the dead leader had just delivered comes again after this.
        await until(is_done, CommandSettings().ack_seconds + DEADLINE_SECONDS)
    rows = await connection.fetch("SELECT created_at FROM chat_group ORDER BY created_at")
    moments = [row["created_at"].timestamp() for row in rows]
    # Until the first that comes again.
    seconds, resumed = standstill(each for each in moments if each < ended + DEADLINE_SECONDS)
    if how == "stopped":
        assert seconds <= STANDSTILL_SECONDS_MAX
    else:
        assert resumed > ended
        assert resumed - elected <= RESUMED_SECONDS_MAX, seconds


async def test_streams_are_kept_by_as_many_servers_as_is_set(
    cluster: NatsCluster, database_url: str
) -> None:
    """Those that exist stay as they are, and are reported, until an operator has them resized."""
    jetstream = cluster.client.jetstream()

    async def replicas() -> set[int | None]:
        infos = [await jetstream.stream_info(name) for name in OURS.streams]
        return {info.config.num_replicas for info in infos}

    async with open_component(database_url, settings=settings(cluster)):
        await cluster.leader(OURS.command_stream, consumer=OURS.command_consumer)
        assert {SERVERS} == await replicas()
        consumer = await jetstream.consumer_info(OURS.command_stream, OURS.command_consumer)
        assert consumer.cluster is not None
        assert SERVERS - 1 == len(consumer.cluster.replicas or [])
    observed: list[Observation] = []
    async with open_component(database_url, settings=settings(cluster, 1), observe=observed.append):
        differ = {StreamDiffers(name, SERVERS, 1) for name in OURS.streams}
        await until(lambda: differ <= {*observed})
    assert {SERVERS} == await replicas()
    where = {"DATABASE_URL": database_url, "NATS_URL": cluster.url}
    code, shown, _ = await stretto("bus", **where)
    assert (0, 3) == (code, shown.count("ours, replicas: 3 (STRETTO_NATS_REPLICAS is 1)\n"))
    code, shown, _ = await stretto("bus", "--resize", **where)
    assert (0, 3) == (code, shown.count("ours, replicas: 1\n"))
    assert {1} == await replicas()
    code, _, errors = await stretto("bus", "--resize", NATS_REPLICAS="5", **where)
    assert 2 == code
    assert "stretto: NATS cannot keep a stream on 5 servers" in errors
    ours = (await deployment_of(database_url)).database
    name = OURS.event_stream
    await jetstream.update_stream(name=name, subjects=OURS.event_subjects, metadata={MARK: "x"})
    code, _, errors = await stretto("bus", "--resize", NATS_REPLICAS="3", **where)
    assert 2 == code
    assert f"belongs to the database x (ours is {ours})" in errors
    assert {1} == await replicas()


async def test_a_stream_for_more_servers_than_there_are_is_not_made(
    cluster: NatsCluster, database_url: str
) -> None:
    """The log says what to set, and groups are created meanwhile."""
    observed: list[Observation] = []
    async with open_component(
        database_url, settings=settings(cluster, 5), observe=observed.append
    ) as component:
        await component.creator.create(IdempotencyKey("k"), NewGroup.parse(UserId("alice"), TEAM))
        await until(
            lambda: any(
                isinstance(each, BusFailed) and "set STRETTO_NATS_REPLICAS" in each.cause
                for each in observed
            )
        )


async def published(cluster: NatsCluster, created: set[str]) -> list[Msg]:
    """Return the messages of the stream once it has the events of all these groups."""
    with suppress(Error, OSError):
        messages = await stored(cluster.client, OURS.event_stream)
        if created <= conversations(messages):
            return messages
    return []


def conversations(messages: Iterable[Msg]) -> set[str]:
    """Return the conversations that events are about."""
    return {orjson.loads(message.data)["data"]["conversation_id"] for message in messages}
