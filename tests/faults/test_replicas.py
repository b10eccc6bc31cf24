"""Replicas on one PostgreSQL and one NATS, as docker-compose.yml has them, with parts killed."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from support.api_client import Api, connected_api
from support.database import pass_over, unpublished
from support.nats_process import commanded, nats_client
from support.topology import TEAM, Topology, delivered, observed

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.client import Client

    from support.database import Connection


async def test_a_member_at_one_replica_hears_of_a_group_made_at_another(
    topology: Topology, connection: Connection
) -> None:
    """Each once, over either way."""
    first, second = await topology.replica(), await topology.replica()
    members = await topology.members()
    for service in (first, second):
        async with connected_api(service.url) as api:
            assert 201 == (await api.create(service.url, TEAM)).status
    events = await delivered(connection)
    assert 2 == len(events)
    for member in members:
        await member.until(lambda member=member: len(member.heard) >= 2)  # type: ignore[misc]
        assert sorted(events) == sorted(member.heard)


async def test_every_member_hears_of_every_group_although_a_replica_is_killed(
    topology: Topology, connection: Connection
) -> None:
    """Under load; the sessions of the killed one resume at the other and end with the full list."""
    killed, _ = await topology.replica(), await topology.replica()
    members = await topology.members()
    async with topology.load():
        await members[0].until(lambda: len(members[0].heard) >= 20)
        await topology.kill(killed)
    events = await delivered(connection)
    assert len(events) > 20
    for member in members:
        await member.until(lambda member=member: events <= set(member.heard))  # type: ignore[misc]
        assert events == set(member.heard)


async def test_an_independent_consumer_sees_every_event_whatever_is_killed(
    topology: Topology, connection: Connection
) -> None:
    """None missing, none without a group, duplicates under one id (G8); members hear all as well."""
    replicas = [await topology.replica(), await topology.replica()]
    members = await topology.members()
    for _ in range(2):
        async with topology.load():
            heard = len(members[0].heard)
            await members[0].until(lambda heard=heard: len(members[0].heard) > heard)  # type: ignore[misc]
            await topology.server.kill()
            await topology.kill(replicas.pop(0))
            await topology.server.start()
            replicas.append(await topology.replica())
    events = await delivered(connection)
    assert events == set(await observed(topology.server))
    for member in members:
        await member.until(lambda member=member: events <= set(member.heard))  # type: ignore[misc]
        assert events == set(member.heard)


async def test_an_event_that_is_passed_over_before_it_is_acknowledged_is_missed(
    topology: Topology, connection: Connection
) -> None:
    """The test above can fail: a relay that did not wait for NATS would lose events."""
    killed = await topology.replica()
    await topology.create("kept")
    kept = await delivered(connection)
    await topology.server.kill()
    await topology.create("lost")
    await topology.kill(killed)
    await pass_over(connection)
    await topology.replica()
    await topology.server.start()
    assert kept == set(await observed(topology.server))
    assert kept < await delivered(connection)


async def test_creations_go_on_without_nats_and_are_announced_later(
    topology: Topology, connection: Connection
) -> None:
    """Nothing has to be done but start it again."""
    service = await topology.replica()
    members = await topology.members()
    await topology.server.kill()
    async with connected_api(service.url) as api:
        for number in range(10):
            assert 201 == (await api.create(f"k{number}", TEAM)).status
        assert 200 == (await api.get("/readyz")).status
    assert 10 == await unpublished(connection)
    await topology.server.start()
    events = await delivered(connection)
    for member in members:
        await member.until(lambda member=member: events <= set(member.heard))  # type: ignore[misc]


@pytest.mark.parametrize("is_older_copy", [False, True])
async def test_sessions_hear_everything_although_nats_has_lost_its_stream(
    topology: Topology, connection: Connection, tmp_path: Path, is_older_copy: bool
) -> None:
    """All of it, or its tail. What is created afterwards comes to the bus and to every session."""
    await topology.replica()
    await topology.replica()
    members = await topology.members()
    older = tmp_path / "older"
    await topology.create("before")
    await delivered(connection)
    if is_older_copy:
        await topology.server.kill()
        shutil.copytree(topology.server.folder, older)
        await topology.server.start()
    for number in range(5):
        await topology.create(f"lost-{number}")
    lost = await delivered(connection)
    await topology.server.kill()
    shutil.rmtree(topology.server.folder)
    if is_older_copy:
        shutil.copytree(older, topology.server.folder)
    await topology.server.start()
    for number in range(9):
        await topology.create(f"after-{number}")
    events = await delivered(connection)
    for member in members:
        await member.until(lambda member=member: events <= set(member.heard))  # type: ignore[misc]
        # No session was asked to resume: none depends on the bus.
        assert sorted(events) == sorted(member.heard)
        assert [] == member.codes
    assert events - lost <= set(await observed(topology.server))


async def test_one_key_over_http_and_bus_is_one_attempt_at_all_replicas(
    topology: Topology, connection: Connection
) -> None:
    """Real processes, the same key four times at once each way."""
    services = [await topology.replica(), await topology.replica()]
    async with nats_client(topology.server.url) as client, AsyncExitStack() as stack:
        apis = [await stack.enter_async_context(connected_api(each.url)) for each in services]
        replies = await asyncio.gather(
            *(over_bus(client, "k") for _ in range(4)),
            *(over_http(api, "k") for api in apis * 2),
        )
    assert 1 == len(set(replies))
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")
    assert 1 == len(await connection.fetch("SELECT * FROM outbox"))


async def over_http(api: Api, key: str) -> bytes:
    """Create a group; return the body."""
    reply = await api.create(key, TEAM)
    assert 201 == reply.status
    return reply.body


async def over_bus(client: Client, key: str) -> bytes:
    """Create a group by command; return the body of its outcome."""
    return (await commanded(client, key, TEAM)).data
