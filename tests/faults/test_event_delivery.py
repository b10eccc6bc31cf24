"""What becomes of events when relays, NATS and services are killed, counted to the last one (G8).

The consumer that counts knows nothing of stretto: it reads the stream from its beginning.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from stretto.domain import event_id
from stretto.nats.deployment import MARK
from support.database import commit_event, unpublished
from support.nats_process import DEADLINE_SECONDS, OURS, deployment_of, nats_client
from support.topology import Topology, delivered, observed
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nats.aio.client import Client

    from support.database import Connection

# Below the lease of the topology's relays: JetStream knows no second publication again.
DUPLICATES_SECONDS = 0.1


def events_of(topology: Topology) -> set[str]:
    """Return the ids of the events of all groups whose creation was acknowledged."""
    return {str(event_id(conversation)) for conversation in topology.created.values()}


async def test_nats_is_killed_time_and_again_while_groups_are_created(
    topology: Topology, connection: Connection
) -> None:
    """Whatever was on its way at that moment: each event is in the stream, and once."""
    await topology.replica()
    async with topology.load():
        for number in range(3):
            await topology.create(f"before-{number}")
            await topology.server.kill()
            # Creations go on: these wait in the log.
            for away in range(5):
                await topology.create(f"away-{number}-{away}")
            assert 5 <= await unpublished(connection)
            await topology.server.start()
    events = await delivered(connection)
    assert events_of(topology) == events
    # Less than the two minutes for which JetStream knows an id again.
    assert Counter(events) == Counter(await observed(topology.server))


async def test_services_are_killed_time_and_again_while_groups_are_created(
    topology: Topology, connection: Connection
) -> None:
    """Each acknowledged group has its event, and no event is without its group."""
    replicas = [await topology.replica(), await topology.replica()]
    async with topology.load():
        for number in range(3):
            for each in range(10):
                await topology.create(f"before-{number}-{each}")
            await topology.kill(replicas.pop(0))
            replicas.append(await topology.replica())
    events = await delivered(connection)
    assert events_of(topology) == events
    assert Counter(events) == Counter(await observed(topology.server))


@asynccontextmanager
async def forgetful_stream(topology: Topology, database_url: str) -> AsyncIterator[Client]:
    """Make the stream as an operator may have it: one that soon takes a second copy for another."""
    async with nats_client(topology.server.url) as client:
        ours = await deployment_of(database_url)
        await client.jetstream().add_stream(
            name=ours.event_stream,
            subjects=ours.event_subjects,
            duplicate_window=DUPLICATES_SECONDS,
            metadata={MARK: ours.database},
        )
        yield client


async def hold_place(connection: Connection) -> None:
    """Keep every relay from moving on past what it has published, until its connection ends.

    Not past no event at all, as an idle one does: it would never come to the first one.
    """
    await connection.execute(
        """CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
           'BEGIN
                PERFORM pg_sleep(3600) FROM outbox
                WHERE pg_visible_in_snapshot(position, NEW.seen)
                  AND NOT pg_visible_in_snapshot(position, OLD.seen) LIMIT 1;
                RETURN NEW;
            END';
           CREATE TRIGGER hold BEFORE UPDATE OF seen ON outbox_reader FOR EACH ROW
           WHEN (OLD.seen::text <> NEW.seen::text) EXECUTE FUNCTION hold()"""
    )


async def let_place_go(connection: Connection) -> None:
    """End what is held, which rolls it back."""
    await connection.execute(
        """SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
           WHERE datname = current_database() AND wait_event = 'PgSleep'"""
    )
    await connection.execute("DROP FUNCTION hold CASCADE")


@pytest.mark.parametrize(("copies", "is_killed"), [(2, True), (1, False)])
async def test_a_relay_killed_between_publishing_and_moving_on_repeats_the_event_under_its_id(
    topology: Topology,
    connection: Connection,
    database_url: str,
    copies: int,
    is_killed: bool,
) -> None:
    """Exactly once more, by the next relay; a relay that lives publishes it once."""
    async with forgetful_stream(topology, database_url) as client:
        first = await topology.replica()
        heard = await client.subscribe(OURS.event_subject)
        await client.flush()
        if is_killed:
            await hold_place(connection)
        await topology.create("k")
        message = await heard.next_msg(DEADLINE_SECONDS)
        if is_killed:
            await topology.kill(first)
            await let_place_go(connection)
            assert 1 == await unpublished(connection)
            await topology.replica()
        (event,) = await delivered(connection)
        assert message.headers is not None
        assert event == message.headers["Nats-Msg-Id"]
        assert {event} == events_of(topology)
        assert [event] * copies == await observed(topology.server)


async def test_a_stream_knows_the_second_copy_again(
    topology: Topology, connection: Connection
) -> None:
    """What the relay makes itself does, for two minutes: consumers then see the event once."""
    first = await topology.replica()
    await topology.create("first")
    await delivered(connection)
    await hold_place(connection)
    async with nats_client(topology.server.url) as client:
        heard = await client.subscribe(OURS.event_subject)
        await client.flush()
        await topology.create("k")
        copy = await heard.next_msg(DEADLINE_SECONDS)
        await topology.kill(first)
        await let_place_go(connection)
        await topology.replica()
        again = await heard.next_msg(DEADLINE_SECONDS)
        assert copy.headers is not None
        assert again.headers is not None
        assert (copy.headers, copy.data) == (again.headers, again.data)
    events = await delivered(connection)
    assert events_of(topology) == events
    assert Counter(events) == Counter(await observed(topology.server))


async def test_relays_are_killed_before_they_move_on_time_and_again(
    topology: Topology, connection: Connection, database_url: str
) -> None:
    """Under load; every copy beyond the first has the id of an event that is there."""
    async with forgetful_stream(topology, database_url):
        replicas = [await topology.replica(), await topology.replica()]
        async with topology.load():
            for number in range(2):
                await topology.create(f"before-{number}")
                await hold_place(connection)
                await topology.create(f"held-{number}")
                await topology.kill(replicas.pop(0))
                await let_place_go(connection)
                replicas.append(await topology.replica())
        events = await delivered(connection)
        assert events_of(topology) == events
        copies = Counter(await observed(topology.server))
    assert events == copies.keys()


async def test_an_event_without_its_group_would_be_noticed(
    topology: Topology, connection: Connection
) -> None:
    """The counts above can fail: the consumer sees what no client has created."""
    await topology.replica()
    await topology.create("k")
    await commit_event(connection)

    async def is_published() -> bool:
        return not await unpublished(connection)

    await until(is_published)
    assert events_of(topology) < set(await observed(topology.server))
