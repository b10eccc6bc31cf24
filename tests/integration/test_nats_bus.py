"""NatsBus on a real nats-server that is killed, stopped and started again."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import orjson
import pytest
from uuid_utils.compat import uuid4

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId, event_id
from stretto.events.log import CommittedEvent
from stretto.nats import connection as connection_module
from stretto.nats import publisher as publisher_module
from stretto.nats.connection import LimitOutdated, NatsConnection
from stretto.nats.deployment import MARK
from stretto.nats.publisher import NatsBus
from stretto.observations import BusConnected, BusFailed
from stretto.runtime.backoff import Backoff
from stretto.runtime.runner import Runner
from stretto.targets.bus import BusUnavailable
from support.nats_process import OURS, NatsProcess, nats_client, stored
from support.traces import SAMPLED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from uuid import UUID

    from stretto.observations import Observation

DEADLINE_SECONDS = 60
STREAM, SUBJECT = OURS.event_stream, OURS.event_subject
BOB = UserId("bob")
TEAM = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})


def new_event(number: int = 0, *, recipients: tuple[str, ...] = ("alice", "bob")) -> CommittedEvent:
    """Return an event that was never sent."""
    id_ = uuid4()
    envelope = orjson.dumps({"specversion": "1.0", "id": str(id_), "data": {"n": number}})
    return CommittedEvent(id_, recipients, envelope)


class Publisher:
    """What one process has: a connection, a bus, and what they have reported."""

    def __init__(self, url: str) -> None:
        self.observed: list[Observation] = []
        self.runner = Runner(self.observed.append)
        self.connection = NatsConnection(url, self.observed.append)
        self.bus = NatsBus(self.connection, OURS)

    async def published(self, *events: CommittedEvent) -> None:
        """Publish until the bus has taken all, as a relay does."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                try:
                    assert {} == await self.bus.publish(events)
                except BusUnavailable:
                    await self.connection.linked()
                else:
                    return


@asynccontextmanager
async def publisher(url: str) -> AsyncIterator[Publisher]:
    """Run a process's bus."""
    one = Publisher(url)
    async with one.runner.running(one.connection):
        await one.bus.ready()
        yield one


async def ids_of(url: str) -> list[str]:
    """Return the ids of the events in the stream, in order; an event in parts has one."""
    async with nats_client(url) as client:
        messages = await stored(client, STREAM)
    return [
        message.headers["Nats-Msg-Id"]
        for message in messages
        if message.subject == SUBJECT and message.headers
    ]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect again soon: nothing here is as slow as a network."""
    monkeypatch.setattr(connection_module, "RETRY", Backoff(0.02, 0.02))
    monkeypatch.setattr(connection_module, "NEXT_SERVER_SECONDS", 0.02)
    monkeypatch.setattr(publisher_module, "START_SECONDS", 5)


async def test_the_message_is_the_document_for_any_consumer(server: NatsProcess) -> None:
    """Its id is what JetStream knows it by again; its recipients stand beside it."""
    event = new_event(7, recipients=("alice", 'b"o, b', "c" * 128))
    async with publisher(server.url) as one, nats_client(server.url) as client:
        await one.published(event)
        await one.published(event)
        (message,) = await stored(client, STREAM)
        assert SUBJECT == message.subject
        assert event.envelope == message.data
        assert {
            "Nats-Msg-Id": str(event.event_id),
            "Content-Type": "application/cloudevents+json",
            "Stretto-Recipients": orjson.dumps(event.recipients).decode(),
        } == message.headers


async def test_the_message_carries_the_trace_of_its_event(server: NatsProcess) -> None:
    """For consumers that read headers and no document."""
    event = replace(new_event(), trace_context=f"{SAMPLED} vendor=1")
    async with publisher(server.url) as one, nats_client(server.url) as client:
        await one.published(event)
        (message,) = await stored(client, STREAM)
        assert message.headers is not None
        assert (SAMPLED, "vendor=1") == (
            message.headers["traceparent"],
            message.headers["tracestate"],
        )


async def test_an_event_for_a_thousand_members_goes_through(server: NatsProcess) -> None:
    """The largest that can be: its recipients in parts, and one event for all other consumers."""
    event = new_event(recipients=tuple(f"{number:04}" + '"' * 124 for number in range(1001)))
    async with publisher(server.url) as one, nats_client(server.url) as client:
        await one.published(event)
        messages = await stored(client, STREAM)
    assert 6 == len(messages)
    assert {event.envelope} == {message.data for message in messages}
    users = [orjson.loads((message.headers or {})["Stretto-Recipients"]) for message in messages]
    assert list(event.recipients) == [user for part in users for user in part]
    assert 1 == [message.subject for message in messages].count(SUBJECT)


async def test_each_type_of_event_has_its_subject(server: NatsProcess) -> None:
    """Who reads creations alone gets no changes; who reads all events gets both."""
    event = new_event(recipients=tuple(f"u{number}" for number in range(201)))
    async with publisher(server.url) as one, nats_client(server.url) as client:
        await one.published(event, replace(event, event_id=uuid4(), event_type="group.renamed"))
        messages = await stored(client, STREAM)
    assert [
        SUBJECT,
        SUBJECT.replace("events", "recipients"),
        SUBJECT.replace("created", "renamed"),
        SUBJECT.replace("events", "recipients").replace("created", "renamed"),
    ] == [message.subject for message in messages]


async def test_an_event_for_no_user_goes_out_as_well(server: NatsProcess) -> None:
    """Recipients are not the only ones who want to know."""
    event = new_event(recipients=())
    async with publisher(server.url) as one:
        await one.published(event)
    assert [str(event.event_id)] == await ids_of(server.url)


async def test_what_is_larger_than_the_server_takes_is_refused_alone(server: NatsProcess) -> None:
    """The connection lives on: a server cuts it for a message that is too large."""
    good, large = new_event(), replace(new_event(), envelope=b" " * 1024 * 1024)
    async with publisher(server.url) as one:
        refused = await one.bus.publish([large, good])
        assert {large.event_id} == refused.keys()
        assert "larger than 1048576 bytes" == refused[large.event_id]
        assert [str(good.event_id)] == await ids_of(server.url)
        assert [BusConnected()] == one.observed


async def test_a_limit_that_an_operator_raises_holds_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server tells it to new connections alone: ours is made anew, once a minute at most."""
    settings = tmp_path / "nats.conf"
    settings.write_text("max_payload: 8192\n")
    event = replace(new_event(), envelope=b" " * 8192)
    async with (
        NatsProcess(tmp_path / "nats", "--config", str(settings)) as server,
        publisher(server.url) as one,
    ):
        refused = {event.event_id: "larger than 8192 bytes"}
        assert refused == await one.bus.publish([event])
        settings.write_text("max_payload: 16384\n")
        await server.reload()
        assert refused == await one.bus.publish([event])
        assert [BusConnected()] == one.observed
        monkeypatch.setattr(connection_module, "LIMIT_KNOWN_SECONDS", 0.0)
        assert {} == await one.bus.publish([event])
        assert [str(event.event_id)] == await ids_of(server.url)
        # It was no failure.
        assert [BusConnected()] * 2 == one.observed


async def test_a_link_whose_limit_is_out_of_date_is_none_any_more(
    server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever uses it stops, and waits for the next one as after a loss."""
    async with publisher(server.url) as one:
        link = one.connection.link()
        link.require_known_limit()
        monkeypatch.setattr(connection_module, "LIMIT_KNOWN_SECONDS", 0.0)
        with pytest.raises(LimitOutdated, match="larger than 1048576 bytes"):
            link.require_known_limit()
        assert link.ended.done()
        assert link.client.is_connected
        with pytest.raises(BusUnavailable):
            one.connection.link()
        async with asyncio.timeout(10):
            assert link is not await one.connection.linked()
        assert link.client.is_closed


@pytest.mark.parametrize("excess", [0, 1])
async def test_headers_count_as_a_part_of_a_message(server: NatsProcess, excess: int) -> None:
    """Those of a sender's trace are long; a server cuts a connection for a single byte too many."""
    event = replace(new_event(), trace_context=f"{SAMPLED} a={'b' * 250},c={'d' * 250}")
    ((_, headers),) = publisher_module._messages(OURS, event)
    room = 2**20 - connection_module.header_bytes(headers)
    assert room < 2**20 - 700
    event = replace(event, envelope=b" " * (room + excess))
    async with publisher(server.url) as one:
        assert excess == len(await one.bus.publish([event]))
        assert [str(event.event_id)] * (1 - excess) == await ids_of(server.url)
        assert [BusConnected()] == one.observed


async def test_a_stream_that_an_operator_made_stays_as_it_is(server: NatsProcess) -> None:
    """Its limits are the operator's; what it does not take is refused alone."""
    async with nats_client(server.url) as client:
        await client.jetstream().add_stream(
            name=STREAM,
            subjects=OURS.event_subjects,
            max_age=60,
            max_msg_size=1000,
            metadata={MARK: OURS.database},
        )
        good, large = new_event(), new_event(recipients=("x" * 128,) * 10)
        async with publisher(server.url) as one:
            refused = await one.bus.publish([large, good])
            assert {large.event_id} == refused.keys()
        assert [str(good.event_id)] == await ids_of(server.url)
        assert (await client.jetstream().stream_info(STREAM)).config.max_age == 60


async def test_publishing_without_a_server_fails_at_once(tmp_path: Path) -> None:
    """And works as soon as there is one, by itself."""
    server = NatsProcess(tmp_path / "nats")
    event = new_event()
    one = Publisher(server.url)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(one.runner.running(one.connection))
        with pytest.raises(BusUnavailable):
            await one.bus.publish([event])
        await stack.enter_async_context(server)
        await one.published(event)
        assert [str(event.event_id)] == await ids_of(server.url)
    assert any(isinstance(each, BusFailed) for each in one.observed)


async def test_a_killed_server_is_found_again_and_nothing_is_missed(server: NatsProcess) -> None:
    """What was not acknowledged is published again under its id."""
    events = [new_event(number) for number in range(30)]
    async with publisher(server.url) as one, publisher(server.url) as other:
        for round_ in range(3):
            part = events[10 * round_ : 10 * round_ + 10]
            publishing = asyncio.create_task(other.published(*part[:9]))
            await server.kill()
            with pytest.raises(BusUnavailable):
                await one.bus.publish(part[9:])
            await server.start()
            await publishing
            await other.published(*part)
    assert {str(event.event_id) for event in events} == set(await ids_of(server.url))


async def test_a_server_that_is_frozen_is_unavailable_and_then_works_on(
    server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not waited for for ever; a late acknowledgement belongs to no event any more."""
    monkeypatch.setattr(connection_module, "ANSWER_SECONDS", 0.2)
    events = [new_event(1), new_event(2)]
    async with publisher(server.url) as one:
        await one.published(events[0])
        await server.freeze()
        with pytest.raises(BusUnavailable):
            await one.bus.publish(events)
        server.thaw()
        await one.published(*events)
        assert [str(each.event_id) for each in events] == await ids_of(server.url)


@pytest.mark.parametrize("is_foreign", [True, False])
async def test_a_message_that_is_no_event_does_not_end_the_publishing(
    server: NatsProcess, is_foreign: bool
) -> None:
    """A client that may write to the stream cannot stop what comes after."""
    event = new_event()
    async with publisher(server.url) as one, nats_client(server.url) as client:
        if is_foreign:
            await client.jetstream().publish(SUBJECT, b"{}", headers={"Status": "500"})
        await one.published(event)
        assert [event.envelope] == [each.data for each in await stored(client, STREAM)][-1:]


async def test_sessions_need_nothing_of_the_bus(
    server: NatsProcess, database_url: str, tmp_path: Path
) -> None:
    """NATS has lost its newest messages, and gives their numbers out again: no session misses any."""
    settings = ComponentSettings(nats_url=server.url)

    async def create(*keys: str) -> list[UUID]:
        answers = [await one.creator.create(IdempotencyKey(key), TEAM) for key in keys]
        return [event_id(answer.group.conversation_id) for answer in answers]

    async def take(count: int) -> list[UUID]:
        got: list[UUID] = []
        async with asyncio.timeout(DEADLINE_SECONDS):
            while len(got) < count:
                got += [each.event.event_id for each in await session.take()]
        return got

    async with AsyncExitStack() as stack:
        one, other = [
            await stack.enter_async_context(open_component(database_url, settings=settings))
            for _ in range(2)
        ]
        session = stack.enter_context(other.hub.session(BOB, 1e12))
        assert session.go_live(await other.hub.followed())
        assert await create("a") == await take(1)
        await server.kill()
        older = tmp_path / "older"
        shutil.copytree(server.folder, older)
        await server.start()
        assert await create(*"bcde") == await take(4)
        await server.kill()
        shutil.rmtree(server.folder)
        shutil.copytree(older, server.folder)
        lost = await create(*"fgh")
        await server.start()
        assert lost + await create(*"ijklmn") == await take(9)
