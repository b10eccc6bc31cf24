"""NatsBus on a real nats-server that is killed, stopped, emptied and started again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import nats.aio.client
import orjson
import pytest
from uuid_utils.compat import uuid4

from stretto.events.event import BusUnavailable, CommittedEvent
from stretto.events.positions import Position
from stretto.nats import client as client_module
from stretto.nats import connection as connection_module
from stretto.nats import publisher as nats_bus
from stretto.nats import receiver as receiver_module
from stretto.nats.connection import NatsConnection
from stretto.nats.deployment import MARK
from stretto.nats.publisher import NatsBus
from stretto.observations import BusConnected, BusTrouble, EventsMissed
from stretto.runtime.backoff import Backoff
from stretto.runtime.runner import Runner
from support.nats_process import OURS, NatsProcess, nats_client, publish_raw, stored
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.aio.msg import Msg

    from stretto.observations import Observation

DEADLINE_SECONDS = 20
STREAM, SUBJECT = OURS.event_stream, OURS.event_subject


def new_event(number: int = 0, *, recipients: tuple[str, ...] = ("alice", "bob")) -> CommittedEvent:
    """Return an event that was never sent."""
    event_id = uuid4()
    envelope = orjson.dumps({"specversion": "1.0", "id": str(event_id), "data": {"n": number}})
    return CommittedEvent(event_id, recipients, envelope, Position(number))


class Replica:
    """What one process has: a connection, a bus, and what it was told."""

    def __init__(self, url: str) -> None:
        self.got: list[CommittedEvent] = []
        self.gaps = 0
        self.told: list[Observation] = []
        self._changed = asyncio.Event()
        self.runner = Runner(self._tell)
        self.connection = NatsConnection(url, self._tell)
        self.bus = NatsBus(self.connection, OURS, self._deliver, self._on_gap, self._tell)

    async def until_got(self, *events: CommittedEvent) -> None:
        """Wait until all these were delivered."""
        await self.until(lambda: {e.event_id for e in events} <= {e.event_id for e in self.got})

    async def until(self, holds) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        """Wait until something holds that a delivery, a gap or an observation has brought about."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

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

    def _deliver(self, event: CommittedEvent) -> None:
        self.got.append(event)
        self._changed.set()

    def _on_gap(self) -> None:
        self.gaps += 1
        self._changed.set()

    def _tell(self, event: Observation) -> None:
        self.told.append(event)
        self._changed.set()


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[Replica]:
    """Run a replica's bus."""
    one = Replica(url)
    async with one.runner.running(one.connection), one.runner.running(one.bus):
        await one.bus.ready()
        yield one


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notice silence soon: nothing here is as slow as a network."""
    monkeypatch.setattr(receiver_module, "HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(connection_module, "RETRY", Backoff(0.02, 0.02))
    monkeypatch.setattr(connection_module, "NEXT_SERVER_SECONDS", 0.02)
    monkeypatch.setattr(nats_bus, "RETRY", Backoff(0.02, 0.02))
    monkeypatch.setattr(nats_bus, "START_SECONDS", 5)


async def test_every_replica_gets_every_event_whoever_publishes(server: NatsProcess) -> None:
    """The publishing one too; recipients, document and place arrive as they were sent."""
    events = [new_event(number) for number in range(1000)]
    async with replica(server.url) as one, replica(server.url) as other:
        assert {} == await one.bus.publish(events[:600])
        assert {} == await other.bus.publish(events[600:])
        for each in (one, other):
            await each.until_got(*events)
            assert events == each.got
            assert each.gaps == 1


async def test_the_message_is_the_document_for_any_consumer(server: NatsProcess) -> None:
    """Its id is what JetStream knows it by again; what replicas need stands beside it."""
    event = new_event(7, recipients=("alice", 'b"o, b', "c" * 128))
    async with replica(server.url) as one, nats_client(server.url) as client:
        await one.published(event)
        await one.published(event)
        (message,) = await stored(client, STREAM)
        assert SUBJECT == message.subject
        assert event.envelope == message.data
        assert {
            "Nats-Msg-Id": str(event.event_id),
            "Content-Type": "application/cloudevents+json",
            "Stretto-Recipients": orjson.dumps(event.recipients).decode(),
            "Stretto-Resume-From": "7",
        } == message.headers


async def test_an_event_for_a_thousand_members_goes_through(server: NatsProcess) -> None:
    """The largest that can be: in parts for replicas, and still one event for everybody else."""
    event = new_event(recipients=tuple(f"{number:04}" + '"' * 124 for number in range(1001)))
    async with replica(server.url) as one, nats_client(server.url) as client:
        await one.published(event)
        await one.until(lambda: len(one.got) == 6)
        assert {event.event_id} == {got.event_id for got in one.got}
        assert event.recipients == tuple(user for got in one.got for user in got.recipients)
        subjects = [message.subject for message in await stored(client, STREAM)]
        assert 1 == subjects.count(SUBJECT)


async def test_an_event_for_nobody_goes_out_as_well(server: NatsProcess) -> None:
    """Sessions are not the only ones who want to know."""
    event = new_event(recipients=())
    async with replica(server.url) as one:
        await one.published(event)
        await one.until_got(event)
        assert [event] == one.got


async def test_what_is_larger_than_the_server_takes_is_refused_alone(server: NatsProcess) -> None:
    """The connection lives on: a server cuts it for a message that is too large."""
    good, large = new_event(), replace(new_event(), envelope=b" " * 1024 * 1024)
    async with replica(server.url) as one:
        refused = await one.bus.publish([large, good])
        assert {large.event_id} == refused.keys()
        assert "larger than 1048576 bytes" == refused[large.event_id]
        await one.until_got(good)
        assert [BusConnected()] == one.told


async def test_a_stream_that_an_operator_made_stays_as_it_is(server: NatsProcess) -> None:
    """Its limits are his; what it does not take is refused alone."""
    async with nats_client(server.url) as client:
        await client.jetstream().add_stream(
            name=STREAM,
            subjects=OURS.event_subjects,
            max_age=60,
            max_msg_size=1000,
            metadata={MARK: OURS.database},
        )
        good, large = new_event(), new_event(recipients=("x" * 128,) * 10)
        async with replica(server.url) as one:
            refused = await one.bus.publish([large, good])
            assert {large.event_id} == refused.keys()
            await one.until_got(good)
        assert (await client.jetstream().stream_info(STREAM)).config.max_age == 60


async def test_publishing_without_a_server_fails_at_once(tmp_path: Path) -> None:
    """And works as soon as there is one, without anybody's help."""
    server = NatsProcess(tmp_path / "nats")
    event = new_event()
    one = Replica(server.url)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(one.runner.running(one.connection))
        with pytest.raises(BusUnavailable):
            await one.bus.publish([event])
        await stack.enter_async_context(server)
        await stack.enter_async_context(one.runner.running(one.bus))
        await one.published(event)
        await one.until_got(event)
    assert any(isinstance(told, BusTrouble) for told in one.told)


async def test_a_killed_server_is_found_again_and_nothing_is_missed(server: NatsProcess) -> None:
    """What was not acknowledged is published again under its id; receiving goes on where it was."""
    events = [new_event(number) for number in range(30)]
    async with replica(server.url) as one, replica(server.url) as other:
        for round_ in range(3):
            part = events[10 * round_ : 10 * round_ + 10]
            publishing = asyncio.create_task(other.published(*part[:9]))
            await server.kill()
            with pytest.raises(BusUnavailable):
                await one.bus.publish(part[9:])
            await server.start()
            await publishing
            await other.published(*part)
        for each in (one, other):
            await each.until_got(*events)
            assert each.gaps == 1, "the stream was still there: no session need resume"
    async with nats_client(server.url) as client:
        ids = [message.headers["Nats-Msg-Id"] for message in await stored(client, STREAM)]  # type: ignore[index]
    assert {str(event.event_id) for event in events} == set(ids)


async def test_a_replica_that_was_cut_off_goes_on_where_it_was(server: NatsProcess) -> None:
    """What the others published meanwhile it reads from the stream."""
    before, meanwhile, after = new_event(1), new_event(2), new_event(3)
    async with replica(server.url) as one, replica(server.url) as other:
        await one.published(before)
        await other.until_got(before)
        await other.connection.link().client.close()
        await one.published(meanwhile)
        await one.published(after)
        await other.until_got(meanwhile, after)
        assert [before, meanwhile, after] == other.got
        assert other.gaps == 1


@pytest.mark.parametrize("loss", ["purged", "made anew", "made anew and longer"])
async def test_what_is_gone_from_the_stream_makes_sessions_resume(
    server: NatsProcess, loss: str
) -> None:
    """Aged out while the replica was cut off, or lost with the stream."""
    event = new_event()
    async with (
        replica(server.url) as one,
        replica(server.url) as other,
        nats_client(server.url) as client,
    ):
        jetstream = client.jetstream()
        other_link = other.connection.link()
        await one.published(new_event())
        await other.until(lambda: len(other.got) == 1)
        # Nothing of what follows reaches it before its place is gone.
        other.bus._deliver = lambda event: None
        _, receiving = other.runner._runs.pop(other.bus)
        receiving.cancel()
        await asyncio.wait([receiving])
        await one.published(event, new_event())
        if loss == "purged":
            await jetstream.purge_stream(STREAM)
        else:
            await jetstream.delete_stream(STREAM)
        if loss == "made anew and longer":
            # Its numbers go on from where the old one's place is.
            await one.published(new_event(), new_event(), new_event())
        other.runner.start(other.bus)
        await other.until(lambda: other.gaps == 2)
        assert EventsMissed() in other.told
        other.bus._deliver = other._deliver
        later = new_event()
        await one.published(later)
        await other.until_got(later)
        assert event not in other.got
        assert other_link is other.connection.link()


async def test_a_server_that_is_frozen_is_unavailable_and_then_works_on(
    server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it for ever; a late acknowledgement is nobody's any more."""
    monkeypatch.setattr(connection_module, "ANSWER_SECONDS", 0.2)
    events = [new_event(1), new_event(2)]
    async with replica(server.url) as one:
        await one.published(events[0])
        await one.until_got(events[0])
        await server.freeze()
        with pytest.raises(BusUnavailable):
            await one.bus.publish(events)
        server.thaw()
        await one.published(*events)
        await one.until_got(*events)


async def test_a_message_that_is_no_event_is_told_and_passed_over(server: NatsProcess) -> None:
    """Whoever may write to the stream cannot stop what comes after."""
    event = new_event()
    async with replica(server.url) as one, nats_client(server.url) as client:
        await client.jetstream().publish(SUBJECT, b"hello")
        await client.jetstream().publish(
            SUBJECT,
            b"{}",
            headers={
                "Nats-Msg-Id": str(uuid4()),
                "Stretto-Recipients": '[{"no": "user"}]',
                "Stretto-Resume-From": "1",
            },
        )
        await one.published(event)
        await one.until_got(event)
        assert [event] == one.got
        assert 2 == sum("is no event" in str(told) for told in one.told)


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("status", ["500", "100"])
async def test_a_message_with_a_status_is_passed_over_as_any_that_is_no_event(
    server: NatsProcess, status: str, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for JetStream's own, it would end each receiver that comes to it: for all sessions."""
    made: list[int] = []
    real = receiver_module.Receiver.__init__

    def count(self: receiver_module.Receiver, link, stream, sequence, take) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        made.append(sequence)
        real(self, link, stream, sequence, take)

    monkeypatch.setattr(receiver_module.Receiver, "__init__", count)
    if not is_guarded:
        monkeypatch.setattr(
            receiver_module, "is_stored", lambda message: "Status" not in (message.headers or {})
        )
    event = new_event()
    async with replica(server.url) as one, nats_client(server.url) as client:
        await client.jetstream().publish(SUBJECT, b"{}", headers={"Status": status})
        await one.published(event)
        if is_guarded:
            await one.until_got(event)
            assert [1] == made
            assert 1 == sum("is no event" in str(told) for told in one.told)
        else:
            await until(lambda: made.count(1) >= 3)
            assert [] == one.got


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize(
    ("subject", "block"),
    [
        (SUBJECT.encode(), b"NATS/1.0"),
        (SUBJECT.encode(), b"garbage"),
        (b"stretto.events.\xff", b"NATS/1.0\r\nA: b\r\n\r\n"),
    ],
)
async def test_a_message_that_cannot_be_parsed_does_not_end_the_reading(
    server: NatsProcess,
    subject: bytes,
    block: bytes,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server takes any bytes; after these the original client reads nothing more."""
    if not is_guarded:
        original = nats.aio.client.Client
        for method in ("_process_msg", "_process_headers"):
            monkeypatch.setattr(client_module.Client, method, getattr(original, method))
    event = new_event()
    async with replica(server.url) as one:
        await publish_raw(server, subject, block)
        if is_guarded:
            await one.published(event)
            await one.until_got(event)
            assert 1 == sum("is no event" in str(told) for told in one.told)
        else:
            reading = one.connection.link().client._reading_task
            assert reading is not None
            await asyncio.wait_for(reading, DEADLINE_SECONDS)


async def test_a_receiver_that_misses_a_message_reads_it_again(
    server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap in the consumer's numbers, in the middle or at the end, which a heartbeat shows."""
    real = receiver_module.Receiver._on_message
    lost = {2, 4}

    async def on_message(self: receiver_module.Receiver, message) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        is_event = "Nats-Msg-Id" in (message.headers or {})
        if is_event and message.metadata.sequence.stream in lost:
            lost.remove(message.metadata.sequence.stream)
            return
        await real(self, message)

    monkeypatch.setattr(receiver_module.Receiver, "_on_message", on_message)
    events = [new_event(number) for number in range(4)]
    async with replica(server.url) as one:
        await one.published(*events)
        await one.until_got(*events)
        assert events == one.got
        assert not lost


@pytest.mark.parametrize("events_before", [0, 3])
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_receiver_that_misses_the_last_message_reads_it_again(
    server: NatsProcess, events_before: int, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later number shows the gap; the heartbeat does, which without its count says nothing."""
    real, control = receiver_module.Receiver._on_message, receiver_module.Receiver._control
    lost: list[int] = []
    heartbeats = asyncio.Semaphore(0)

    async def on_message(self: receiver_module.Receiver, message: Msg) -> None:
        headers = message.headers or {}
        if "Nats-Msg-Id" in headers and not lost:
            number = message.metadata.sequence.stream
            if number == events_before + 1:
                lost.append(number)
                return
        await real(self, message)

    async def on_control(
        self: receiver_module.Receiver, message: Msg, headers: dict[str, str]
    ) -> None:
        if not is_guarded:
            headers = {name: text for name, text in headers.items() if "Last" not in name}
        await control(self, message, headers)
        if lost:
            heartbeats.release()

    monkeypatch.setattr(receiver_module.Receiver, "_on_message", on_message)
    monkeypatch.setattr(receiver_module.Receiver, "_control", on_control)
    before = [new_event(number) for number in range(events_before)]
    last = new_event(events_before)
    async with replica(server.url) as one, asyncio.timeout(DEADLINE_SECONDS):
        if before:
            await one.published(*before)
            await one.until_got(*before)
        await one.published(last)
        for _ in range(3):
            await heartbeats.acquire()
        if is_guarded:
            await one.until_got(last)
        assert ([*before, last] if is_guarded else before) == one.got
        assert lost


async def test_without_the_count_a_message_that_was_missed_is_missed_for_good(
    server: NatsProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above would not notice if the numbers were not compared."""
    real = receiver_module.Receiver._on_message

    async def on_message(self: receiver_module.Receiver, message) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
        if "Nats-Msg-Id" in (message.headers or {}):
            if message.metadata.sequence.stream == 2:
                return
            self._expected = message.metadata.sequence.consumer
        await real(self, message)

    monkeypatch.setattr(receiver_module.Receiver, "_on_message", on_message)
    events = [new_event(number) for number in range(3)]
    async with replica(server.url) as one:
        await one.published(*events)
        await one.until_got(events[0], events[2])
        assert [events[0], events[2]] == one.got


async def test_a_consumer_that_the_server_has_forgotten_is_made_again(server: NatsProcess) -> None:
    """As after a server's restart, or an administrator's slip."""
    events = [new_event(1), new_event(2)]
    async with replica(server.url) as one, nats_client(server.url) as client:
        await one.published(events[0])
        await one.until_got(events[0])
        jetstream = client.jetstream()
        for consumer in await jetstream.consumers_info(STREAM):
            await jetstream.delete_consumer(STREAM, consumer.name)
        await one.published(events[1])
        await one.until_got(*events)
        assert events == one.got
        assert one.gaps == 1
