"""The webhook on a real log of events: what is committed comes to its endpoint, whichever process dies (G8)."""

from __future__ import annotations

import asyncio
import base64
import errno
import hashlib
import hmac
import uuid
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import orjson
import pytest

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.domain import IdempotencyKey, NewGroup, UserId
from stretto.observations import EventDeadLettered, PlaceLost, WebhookDisabled, WebhookTried
from stretto.postgres.deliveries import dead_letters, retry_dead_letters
from stretto.postgres.queries import QUERIES
from stretto.runtime.runner import Run
from stretto.targets.bus import BusUnavailable
from stretto.targets.delivery import UNREADABLE
from stretto.uuids import uuid7
from stretto.webhook import endpoint as endpoint_module
from stretto.webhook import store as webhook_store
from stretto.webhook.endpoint import WebhookEndpoint
from stretto.webhook.reach import UNREACHED_MAX
from stretto.webhook.rules import JITTER_RATIO_MAX, RETRY_SECONDS, WebhookSettings
from stretto.webhook.sender import POLL_SECONDS, WebhookSender
from stretto.webhook.slots import UNDER_WAY_MAX
from stretto.webhook.store import PostgresWebhookStore, disabled_at, enable
from support.api_client import SECRET, Api, api_for, token_of
from support.command_process import stretto
from support.database import commit_event, connect
from support.waiting import until
from support.webhook_receiver import URL_DIGEST, receiving

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Mapping, Sequence
    from uuid import UUID

    from aiohttp import AddrInfoType

    from stretto.events.log import CommittedEvent, LogPage
    from stretto.events.place import Place
    from stretto.observations import Observation
    from stretto.postgres.connections import Database
    from support.database import Connection
    from support.service_process import StartService
    from support.webhook_receiver import Receiver

SECRETS = (b"a secret of an endpoint, long", b"the secret that is to follow it")
SECRET_SETTING = " ".join(f"whsec_{base64.b64encode(secret).decode()}" for secret in SECRETS)
TEAM = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})
# Its time is beyond the year 9999.
NO_TIME = uuid.UUID("ffffffff-ffff-4fff-bfff-ffffffffffff")
NO_LEASE_SECONDS = 0.0
DEADLINE_SECONDS = 60


class Clock:
    """The time of a store; it moves when the test says so."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC) + timedelta(minutes=1)

    def __call__(self) -> datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """The endpoint."""
    async with asyncio.timeout(DEADLINE_SECONDS), receiving() as receiver:
        yield receiver


@pytest.fixture
def clock() -> Clock:
    """Of the sender's store."""
    return Clock()


def settings_of(receiver: Receiver) -> WebhookSettings:
    """Return the settings by which events come to the receiver."""
    return WebhookSettings(
        webhook_url=receiver.url, webhook_secret=SECRETS, webhook_allow_private=True
    )


@asynccontextmanager
async def opened(
    database: Database, receiver: Receiver, clock: Clock, *, lease_seconds: float = 60.0
) -> AsyncIterator[tuple[WebhookSender, list[Observation]]]:
    """Open a sender that takes its turns when the test says so; yields what it reports, too."""
    events: list[Observation] = []
    async with WebhookEndpoint(settings_of(receiver)) as endpoint:
        store = PostgresWebhookStore(database, endpoint.url_digest, clock, events.append)
        sender = WebhookSender(store, endpoint, events.append, lease_seconds=lease_seconds)
        await sender.open()
        yield sender, events


@pytest.fixture
async def sender(
    database: Database, receiver: Receiver, clock: Clock
) -> AsyncIterator[WebhookSender]:
    """The one sender."""
    async with opened(database, receiver, clock) as (sender, _):
        yield sender


async def work(*senders: WebhookSender) -> None:
    """Have the senders take turns until nothing is due."""
    while any([await sender.run_once() or sender._under_way for sender in senders]):
        for sender in senders:
            await sender.answered()


async def commit_events(connection: Connection, count: int = 1) -> list[UUID]:
    """Commit events, each in the transaction that is open, or in one of its own."""
    return [await commit_event(connection) for _ in range(count)]


async def waiting(connection: Connection) -> int:
    """Return how many deliveries there are."""
    count: int = await connection.fetchval("SELECT count(*) FROM outbox_delivery")
    return count


async def test_a_committed_event_comes_once_signed_with_every_secret(
    sender: WebhookSender, receiver: Receiver, connection: Connection
) -> None:
    """The CloudEvents document, verified as the specification asks of receivers."""
    (event_id,) = await commit_events(connection)
    await work(sender)
    await work(sender)
    ((headers, body),) = receiver.requests
    document = orjson.loads(body)
    assert (str(event_id), "group.created", "Team") == (
        document["id"],
        document["type"],
        document["data"]["name"],
    )
    assert "application/cloudevents+json" == headers["Content-Type"]
    assert abs(int(headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()) < 60
    content = f"{event_id}.{headers['webhook-timestamp']}.".encode() + body
    assert [
        "v1," + base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()
        for secret in SECRETS
    ] == headers["webhook-signature"].split(" ")
    assert 0 == await waiting(connection)


async def test_what_the_creator_has_chosen_is_sent(
    sender: WebhookSender, receiver: Receiver, connection: Connection
) -> None:
    """Where there is any: else the document is the one that receivers have always had."""
    await commit_events(connection, 2)
    await connection.execute(
        """UPDATE outbox SET group_kind = 'project', metadata = '{"a": [1.5]}'
           WHERE position = (SELECT max(position) FROM outbox)"""
    )
    await work(sender)
    data = sorted(
        (orjson.loads(body)["data"] for _, body in receiver.requests),
        key=lambda each: "kind" in each,
    )
    assert [None, "project"] == [each.get("kind") for each in data]
    assert ({"a": [1.5]}, False) == (data[1]["metadata"], "metadata" in data[0])


async def test_events_from_before_the_first_start_are_not_sent(
    database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """A later start goes on where the one before has ended."""
    await commit_events(connection)
    async with opened(database, receiver, clock):
        pass
    ids = await commit_events(connection)
    async with opened(database, receiver, clock) as (sender, _):
        await work(sender)
    assert ids == receiver.ids


@pytest.mark.parametrize(
    "row",
    [
        pytest.param((NO_TIME, None, None), id="no time"),
        pytest.param((NO_TIME, "group.changed", None), id="no time of a change"),
        pytest.param((uuid7(), "group.changed", '"x"'), id="no document"),
    ],
)
async def test_a_row_of_which_no_event_can_be_made_is_a_dead_letter_and_holds_up_no_other(
    row: tuple[uuid.UUID, str | None, str | None],
    database: Database,
    receiver: Receiver,
    clock: Clock,
    connection: Connection,
) -> None:
    """It was written by hand."""
    async with opened(database, receiver, clock) as (sender, observed):
        await connection.execute(
            """INSERT INTO outbox_delivery (reader, event_id, subject, conversation_id, recipients,
                                            group_name, created_at, due_at, event_type, change)
               VALUES ('webhook', $1, $1, $1, '{a}', 'Team', '2026-01-01', '2026-01-01', $2, $3)""",
            *row,
        )
        ids = await commit_events(connection)
        await work(sender)
        await work(sender)
    assert ids == receiver.ids
    (letter,) = await dead_letters(connection, 10)
    assert f"webhook: {UNREADABLE}" == letter["dead_reason"]
    assert [EventDeadLettered(row[0], f"webhook: {UNREADABLE}")] == [
        each for each in observed if isinstance(each, EventDeadLettered)
    ]


async def test_an_event_that_commits_late_is_not_passed_over_and_holds_back_no_other(
    sender: WebhookSender, receiver: Receiver, connection: Connection, database_url: str
) -> None:
    """Its transaction began before that of an event that was sent meanwhile."""
    late = await connect(database_url)
    transaction = late.transaction()
    await transaction.start()
    late_ids = await commit_events(late, 3)
    (early_id,) = await commit_events(connection)
    await work(sender)
    assert [early_id] == receiver.ids
    await transaction.commit()
    await late.close()
    await work(sender)
    assert sorted([early_id, *late_ids]) == sorted(receiver.ids)
    # The twin: a reader that goes by position alone had passed it.
    rows = await connection.fetch("SELECT event_id, position FROM outbox")
    positions = {row["event_id"]: row["position"] for row in rows}
    assert positions[late_ids[0]] < positions[early_id]


async def test_a_backlog_is_enrolled_in_stretches_of_whole_transactions(
    sender: WebhookSender,
    receiver: Receiver,
    connection: Connection,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each event once, however many one transaction has, and while another commits late."""
    monkeypatch.setattr("stretto.webhook.sender.ENROLLED_MAX", 3)
    late = await connect(database_url)
    transaction = late.transaction()
    await transaction.start()
    late_ids = await commit_events(late)
    ids = []
    for size in (1, 2, 7, 1, 4):
        async with connection.transaction():
            ids += await commit_events(connection, size)
    ids += await commit_events(connection, UNDER_WAY_MAX)
    assert 3 == await sender._store.enrol(3)
    await transaction.commit()
    await late.close()
    await work(sender)
    assert sorted(ids + late_ids) == sorted(receiver.ids)


async def enrolled(connection: Connection) -> list[UUID]:
    """Return the ids of all deliveries."""
    rows = await connection.fetch("SELECT event_id FROM outbox_delivery ORDER BY event_id")
    return [row["event_id"] for row in rows]


class SlowStore(PostgresWebhookStore):
    """A store of a process that stands still between its page and its enrolment."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, URL_DIGEST)
        self.has_read, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        page = await super().page(begin, events_max, users)
        self.has_read.set()
        await self.may_go_on.wait()
        return page


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_turn_that_was_overtaken_sends_nothing_twice(
    is_guarded: bool,
    database: Database,
    connection: Connection,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another process has enrolled since its page, also what was not yet committed then.

    Without the guard the place goes back.
    """
    guard = "history = $4::integer AND seen::text = $5::text"
    assert guard in QUERIES["enrol"]
    if not is_guarded:
        unguarded = QUERIES["enrol"].replace(guard, "$4::integer >= 0 AND $5::text <> ''")
        monkeypatch.setattr(webhook_store, "QUERIES", {**QUERIES, "enrol": unguarded})
    store, slow = PostgresWebhookStore(database, URL_DIGEST), SlowStore(database)
    await store.open()
    late = await connect(database_url)
    transaction = late.transaction()
    await transaction.start()
    ids = await commit_events(late) + await commit_events(connection, 3)
    overtaken = asyncio.create_task(slow.enrol(100))
    await slow.has_read.wait()
    await transaction.commit()
    ids += await commit_events(connection)
    assert 5 == await store.enrol(100)
    assert sorted(ids) == await enrolled(connection)
    # All are sent.
    await connection.execute("DELETE FROM outbox_delivery")
    slow.may_go_on.set()
    assert (0 if is_guarded else 3) == await overtaken
    while await store.enrol(100):
        pass
    assert ([] if is_guarded else sorted(ids)) == await enrolled(connection)
    await late.close()


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_turn_that_was_overtaken_within_a_transaction_enrols_nothing_twice(
    is_guarded: bool, database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The place covers no more than before: only the part that was had tells."""
    guard = "AND parts = $6::text"
    assert guard in QUERIES["enrol"]
    if not is_guarded:
        unguarded = QUERIES["enrol"].replace(guard, "AND $6::text IS NOT NULL")
        monkeypatch.setattr(webhook_store, "QUERIES", {**QUERIES, "enrol": unguarded})
    store, slow = PostgresWebhookStore(database, URL_DIGEST), SlowStore(database)
    await store.open()
    async with connection.transaction():
        first, *ids = sorted(await commit_events(connection, 6))
    assert 1 == await store.enrol(1)
    await connection.execute("DELETE FROM outbox_delivery")
    seen = await connection.fetchval("SELECT seen::text FROM outbox_reader WHERE name = 'webhook'")
    overtaken = asyncio.create_task(slow.enrol(2))
    await slow.has_read.wait()
    assert 2 == await store.enrol(2)
    assert ids[:2] == await enrolled(connection)
    # As where no transaction on the server has ended in between; other tests' do.
    await connection.execute(
        "UPDATE outbox_reader SET seen = $1::text::pg_snapshot WHERE name = 'webhook'", seen
    )
    # They are sent.
    await connection.execute("DELETE FROM outbox_delivery")
    slow.may_go_on.set()
    assert (0 if is_guarded else 2) == await overtaken
    assert 2 == await store.enrol(2)
    assert (ids[2:4] if is_guarded else ids[:4]) == await enrolled(connection)
    assert first not in await enrolled(connection)


async def test_two_senders_share_the_work(
    database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """No event is sent by both while the leases run."""
    async with (
        opened(database, receiver, clock) as (one, _),
        opened(database, receiver, clock) as (two, _),
    ):
        ids = await commit_events(connection, 3 * UNDER_WAY_MAX)
        while len(receiver.ids) < len(ids) or await waiting(connection):
            await asyncio.gather(one.run_once(), two.run_once())
            await asyncio.gather(one.answered(), two.answered())
    assert sorted(ids) == sorted(receiver.ids)


class CutOff(WebhookEndpoint):
    """The endpoint, from an instance that has no way to it."""

    has_way = False

    def _socket(self, addr_info: AddrInfoType) -> socket.socket:
        if not self.has_way:
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        return super()._socket(addr_info)


@pytest.mark.parametrize("is_alone", [True, False])
async def test_an_instance_that_cannot_reach_the_endpoint_puts_no_event_off(
    is_alone: bool, receiver: Receiver, database: Database, clock: Clock, connection: Connection
) -> None:
    """The others send what is due; if there is none, all is sent as soon as there is a way."""
    now, tried = 0.0, list["Observation"]()
    async with (
        opened(database, receiver, clock) as (other, _),
        CutOff(settings_of(receiver)) as endpoint,
    ):
        store = PostgresWebhookStore(database, endpoint.url_digest, clock)
        sender = WebhookSender(store, endpoint, tried.append, clock_seconds=lambda: now)
        await sender.open()
        event_ids = await commit_events(connection, 3 * UNDER_WAY_MAX)
        await work(sender)
        tries = sum(isinstance(each, WebhookTried) for each in tried)
        assert UNREACHED_MAX <= tries < 3 * UNDER_WAY_MAX
        assert not receiver.requests
        if not is_alone:
            await work(other)
        else:
            endpoint.has_way, now = True, POLL_SECONDS
            await work(sender)
    assert sorted(map(str, event_ids)) == sorted(
        headers["webhook-id"] for headers, _ in receiver.requests
    )
    assert 0 == await waiting(connection)


async def test_once_the_endpoint_takes_connections_again_no_event_waits_for_requests_that_hang(
    receiver: Receiver,
    database: Database,
    clock: Clock,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first one is a try; that it has its connection is enough to send the others."""
    monkeypatch.setattr("stretto.webhook.sender.STOP_SECONDS", 0)
    now = 0.0
    async with CutOff(settings_of(receiver)) as endpoint:
        store = PostgresWebhookStore(database, endpoint.url_digest, clock)
        sender = WebhookSender(store, endpoint, lambda _: None, clock_seconds=lambda: now)
        await sender.open()
        event_ids = await commit_events(connection, 2 * UNREACHED_MAX)
        await work(sender)
        endpoint.has_way, receiver.is_held, now = True, True, POLL_SECONDS
        await sender.run_once()
        await receiver.until(1)
        assert 1 == len(sender._under_way)
        await sender.run_once()
        await receiver.until(len(event_ids))
        await sender.close()
    assert sorted(event_ids) == sorted(receiver.ids)


@pytest.mark.parametrize(("expected", "lease_seconds"), [(2, NO_LEASE_SECONDS), (1, 60.0)])
async def test_a_lease_that_runs_out_only_repeats_the_event(
    expected: int,
    lease_seconds: float,
    database: Database,
    receiver: Receiver,
    clock: Clock,
    connection: Connection,
) -> None:
    """Another sender takes it then, and not before."""
    async with (
        opened(database, receiver, clock, lease_seconds=lease_seconds) as (one, _),
        opened(database, receiver, clock) as (two, _),
    ):
        ids = await commit_events(connection)
        while not one._under_way:
            await one.run_once()
        await one.answered()
        await work(two)
        await work(one)
    assert ids * expected == receiver.ids
    assert 0 == await waiting(connection)


@pytest.mark.parametrize(("expected", "dies"), [(2, True), (1, False)])
async def test_a_sender_that_dies_before_it_settles_leaves_the_event_to_the_next(
    expected: int,
    dies: bool,
    database: Database,
    receiver: Receiver,
    clock: Clock,
    connection: Connection,
) -> None:
    """Twice under one id rather than never; the twin has settled it."""
    async with opened(database, receiver, clock) as (dying, _):
        ids = await commit_events(connection)
        while not dying._under_way:
            await dying.run_once()
        await dying.answered()
        if not dies:
            await dying.run_once()
    async with opened(database, receiver, clock) as (next_one, _):
        await work(next_one)
        assert ids == receiver.ids
        clock.move(61)
        await work(next_one)
    assert ids * expected == receiver.ids
    assert 0 == await waiting(connection)


async def test_what_fails_is_tried_by_the_schedule_then_dies_and_can_be_retried(
    database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """Ten tries in three days, each signed anew; its death says why."""
    async with opened(database, receiver, clock) as (sender, observed):
        (event_id,) = await commit_events(connection)
        receiver.answers.extend({"status": 500} for _ in range(10))
        for tries, pause in enumerate(RETRY_SECONDS, start=1):
            await work(sender)
            assert tries == len(receiver.requests)
            clock.move(pause - 1)
            await work(sender)
            assert tries == len(receiver.requests)
            clock.move(1 + pause * JITTER_RATIO_MAX)
        await work(sender)
        assert [EventDeadLettered(event_id, "webhook: answered 500")] == [
            event for event in observed if isinstance(event, EventDeadLettered)
        ]
        clock.move(10 * RETRY_SECONDS[-1])
        await work(sender)
        assert 10 == len(receiver.requests)
        (letter,) = await dead_letters(connection, 10)
        assert (event_id, 10, "webhook: answered 500") == (
            letter["event_id"],
            letter["tries"],
            letter["dead_reason"],
        )
        assert 0 == await retry_dead_letters(connection, [uuid.uuid4()])
        assert 1 == await retry_dead_letters(connection, [event_id])
        await work(sender)
    assert [event_id] * 11 == receiver.ids
    assert [] == await dead_letters(connection, 10)
    assert 0 == await waiting(connection)


async def test_gone_disables_the_endpoint_everywhere_until_it_is_enabled(
    database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """For every replica and after restarts; what was committed meanwhile then comes."""
    receiver.answers.append({"status": 410})
    async with opened(database, receiver, clock) as (sender, observed):
        ids = await commit_events(connection)
        await work(sender)
        assert [WebhookDisabled(), WebhookTried("gone")] == observed
    async with opened(database, receiver, clock) as (sender, _):
        ids += await commit_events(connection)
        clock.move(10 * RETRY_SECONDS[-1])
        await work(sender)
        assert ids[:1] == receiver.ids
        assert 1 == await waiting(connection)
        assert await disabled_at(connection) is not None
        assert [True, False] == [await enable(connection), await enable(connection)]
        assert await disabled_at(connection) is None
        await work(sender)
    assert sorted([ids[0], *ids]) == sorted(receiver.ids)


@pytest.mark.parametrize("status", [429, 503])
async def test_an_endpoint_that_asks_for_a_pause_gets_it_from_every_sender(
    status: int, database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """For all events, and at no event's cost; the twin without `Retry-After` waits as after a failure."""
    receiver.answers.append({"status": status, "headers": {"Retry-After": "100"}})
    async with (
        opened(database, receiver, clock) as (one, _),
        opened(database, receiver, clock) as (two, _),
    ):
        (first,) = await commit_events(connection)
        await work(one)
        (second,) = await commit_events(connection)
        clock.move(99)
        await work(one, two)
        assert [first] == receiver.ids
        assert 0 == await connection.fetchval("SELECT max(tries) FROM outbox_delivery")
        clock.move(2)
        await work(one, two)
    assert sorted([first, first, second]) == sorted(receiver.ids)


async def test_a_shorter_pause_does_not_end_a_longer_one(
    database: Database, clock: Clock, connection: Connection
) -> None:
    """Two replicas were asked for one, and the endpoint meant both."""
    store = PostgresWebhookStore(database, URL_DIGEST, clock)
    await store.open()
    await store.pause(100)
    clock.move(10)
    await store.pause(5)
    paused = await connection.fetchval("SELECT paused_until FROM outbox_reader")
    assert clock.now + timedelta(seconds=90) == paused
    await store.pause(95)
    paused = await connection.fetchval("SELECT paused_until FROM outbox_reader")
    assert clock.now + timedelta(seconds=95) == paused


async def test_the_lag_is_the_age_of_the_oldest_event_that_is_owed(
    database: Database,
    receiver: Receiver,
    clock: Clock,
    connection: Connection,
    database_url: str,
) -> None:
    """Enrolled, under way, put off, or not even enrolled; neither what is dead nor what has come."""
    async with opened(database, receiver, clock) as (sender, _):
        store = sender._store
        assert await store.oldest_seconds() is None
        late = await connect(database_url)
        transaction = late.transaction()
        await transaction.start()
        await commit_events(late)
        await late.execute("UPDATE outbox SET created_at = $1", clock.now - timedelta(minutes=9))
        await commit_events(connection)
        await connection.execute(
            "UPDATE outbox SET created_at = $1", clock.now - timedelta(minutes=3)
        )
        assert 180 == await store.oldest_seconds()
        receiver.answers.append({"status": 500})
        await work(sender)
        clock.move(1)
        # A turn that sends what is new does not make what is put off any younger.
        await commit_events(connection)
        await work(sender)
        assert 181 == await store.oldest_seconds()
        # It began before the place that was noted, and is not passed over.
        await transaction.commit()
        await late.close()
        assert 541 == await store.oldest_seconds()
        await work(sender)
        assert 181 == await store.oldest_seconds()
        clock.move(119)
        await store.pause(3600)
        assert 300 == await store.oldest_seconds()
        await sender.lag.look()
        assert 180 < (sender.lag.seconds or 0.0)
        await store.disable()
        assert await store.oldest_seconds() is None
        await enable(connection)
        assert 300 == await store.oldest_seconds()
        await connection.execute("UPDATE outbox_delivery SET dead_reason = 'x'")
        assert await store.oldest_seconds() is None


async def test_an_event_that_is_enrolled_late_is_as_old_as_it_is(
    database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """After a time in which no process looked after the webhook."""
    async with opened(database, receiver, clock) as (sender, _):
        await commit_events(connection)
        await connection.execute("UPDATE outbox SET created_at = $1", clock.now)
        clock.move(3600)
        await sender._store.enrol(10)
        assert 3600 == await sender._store.oldest_seconds()


async def test_the_gauges_say_how_far_relay_and_webhook_are_behind(
    database_url: str, receiver: Receiver, connection: Connection
) -> None:
    """While the endpoint only retries, too: that turn once said 0."""
    settings = ComponentSettings(webhook=settings_of(receiver))
    receiver.answers.extend({"status": 500} for _ in RETRY_SECONDS)
    async with api_for(database_url, settings=settings) as api:
        await api.create("k")
        await receiver.until(1)
        await until(lambda: connection.fetchval("SELECT max(tries) FROM outbox_delivery"))
        await connection.execute(
            "UPDATE outbox_delivery SET created_at = clock_timestamp() - interval '300 s'"
        )

        async def late() -> float:
            shown = await gauge(api, "stretto_webhook_lag_seconds")
            return shown if shown >= 300 else 0.0

        assert await until(late) < 300 + DEADLINE_SECONDS


@pytest.mark.parametrize("events", [0, 1])
async def test_an_instance_that_cannot_ask_its_database_shows_no_lag(
    events: int, database_url: str, receiver: Receiver, connection: Connection
) -> None:
    """A 0 would hide what others see; an event that waited when it last looked may have been sent."""
    settings = ComponentSettings(webhook=settings_of(receiver))
    receiver.answers.extend({"status": 500} for _ in RETRY_SECONDS)
    async with api_for(database_url, settings=settings) as api:
        for number in range(events):
            await api.create(f"k{number}")
        await receiver.until(events)
        await connection.execute(
            "UPDATE outbox_delivery SET created_at = clock_timestamp() - interval '300 s'"
        )

        async def is_shown() -> bool:
            return b"\nstretto_webhook_lag_seconds " in (await api.get("/metrics")).body

        async def is_hidden() -> bool:
            return not await is_shown()

        async def is_seen() -> bool:
            shown = await gauge(api, "stretto_webhook_lag_seconds")
            return (shown >= 300) == bool(events)

        await until(is_shown)
        await until(is_seen)
        await connection.execute("ALTER TABLE outbox_delivery RENAME TO outbox_delivery_away")
        try:
            await until(is_hidden)
        finally:
            await connection.execute("ALTER TABLE outbox_delivery_away RENAME TO outbox_delivery")
        await until(is_shown)


async def test_a_gauge_says_that_the_webhook_is_disabled(
    database_url: str, receiver: Receiver, connection: Connection
) -> None:
    """Of each instance, and after a restart, until it is enabled: a counter tells it only once."""
    settings = ComponentSettings(webhook=settings_of(receiver))
    receiver.answers.append({"status": 410})

    async def is_shown(api: Api) -> bool:
        return bool(await gauge(api, "stretto_webhook_disabled"))

    async with api_for(database_url, settings=settings) as api:
        assert not await is_shown(api)
        await api.create("k")
        await until(lambda: is_shown(api))
    async with api_for(database_url, settings=settings) as api:
        await until(lambda: is_shown(api))
        await enable(connection)

        async def is_enabled() -> bool:
            return not await is_shown(api)

        await until(is_enabled)


async def test_a_service_says_at_its_start_that_its_webhook_is_not_called(
    start_service: StartService,
    database_url: str,
    receiver: Receiver,
) -> None:
    """An address of its own keeps it from starting; behind a name, it may be another one tomorrow."""
    settings = {"WEBHOOK_URL": receiver.url, "WEBHOOK_SECRET": SECRET_SETTING}
    for workers in ("1", "2"):
        code, _, errors = await stretto(
            "serve",
            DATABASE_URL=database_url,
            JWT_SECRET=SECRET,
            WORKERS=workers,
            PORT="0",
            **settings,
        )
        assert code == 2
        assert "STRETTO_WEBHOOK_ALLOW_PRIVATE=true allows it" in errors
        assert "hidden" not in errors
    settings["WEBHOOK_URL"] = receiver.url.replace("127.0.0.1", "localhost")
    service = await start_service(**settings)
    await service.logged(b"webhook.blocked")
    assert b"hidden" not in b"".join(service.log)
    assert [] == receiver.requests


async def gauge(api: Api, name: str) -> float:
    """Return what a scrape says; 0 where it says nothing."""
    async with api.session.get(f"{api.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


async def test_a_redirect_is_not_followed(
    sender: WebhookSender, receiver: Receiver, connection: Connection
) -> None:
    """It is a failure like others."""
    receiver.answers.append({"status": 302, "headers": {"Location": "/elsewhere"}})
    ids = await commit_events(connection)
    await work(sender)
    assert ids == receiver.ids
    assert 1 == await connection.fetchval("SELECT tries FROM outbox_delivery")


async def test_an_answer_in_pieces_is_read_to_its_end(
    sender: WebhookSender, receiver: Receiver, connection: Connection
) -> None:
    """Otherwise each event would have a connection of its own, and the endpoint an error."""
    receiver.pieces = (b"o", b"k", b"\n")
    for _ in range(3):
        await commit_events(connection)
        await work(sender)
    assert (3, 1) == (len(receiver.ids), len(receiver.clients))


async def test_nobody_waits_for_the_rest_of_an_answer(
    sender: WebhookSender,
    receiver: Receiver,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An endpoint that keeps it open has accepted the event, and would hold a place for 15 s."""
    monkeypatch.setattr(endpoint_module, "ANSWER_SECONDS", 0.05)
    receiver.keeps_open = True
    ids = await commit_events(connection)
    async with asyncio.timeout(endpoint_module.SEND_SECONDS - 3):
        while await waiting(connection) or not receiver.ids:
            await sender.run_once()
            await sender.answered()
    assert ids == receiver.ids


async def test_a_request_that_hangs_holds_back_no_other(
    sender: WebhookSender, receiver: Receiver, connection: Connection
) -> None:
    """It has one of many places."""
    receiver.is_held = True
    (slow,) = await commit_events(connection)
    while not sender._under_way:
        await sender.run_once()
    await receiver.until(1)
    receiver.is_held = False
    others = await commit_events(connection, 3)
    while await waiting(connection) > 1 or len(receiver.ids) < 4:
        await sender.run_once()
        await asyncio.sleep(0)
    assert slow == receiver.ids[0]
    assert sorted(others) == sorted(receiver.ids[1:])
    sender.stop()
    await sender.close()


async def test_a_sender_that_stops_gives_back_what_has_no_answer(
    database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """The next one need not wait for the lease."""
    receiver.is_held = True
    async with opened(database, receiver, clock) as (sender, _):
        ids = await commit_events(connection)
        running = asyncio.create_task(Run(sender, lambda _: None).turns())
        await receiver.until(1)
        sender.stop()
        await running
    receiver.is_held = False
    async with opened(database, receiver, clock) as (sender, _):
        await work(sender)
    assert ids * 2 == receiver.ids
    assert 0 == await waiting(connection)


async def test_a_restored_place_from_another_server_passes_nothing_over(
    database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """Its transaction ids are of the future here: the rest of the old history comes, then the new."""
    async with opened(database, receiver, clock):
        pass
    sent = await commit_events(connection)
    ids = await commit_events(connection)
    await connection.execute(
        "UPDATE outbox SET position = ('90000000000000' || (event_id = $1)::integer)::xid8", ids[0]
    )
    await connection.execute("UPDATE outbox_reader SET seen = '900000000000001:900000000000001:'")
    await connection.execute(
        "INSERT INTO outbox_history (number, server_started_at, table_id) VALUES (1, now(), '')"
    )
    async with opened(database, receiver, clock) as (sender, _):
        ids += await commit_events(connection)
        await work(sender)
    assert sorted(ids) == sorted(receiver.ids)
    assert sent[0] not in receiver.ids


@pytest.mark.parametrize("is_full", [False, True])
async def test_a_reader_whose_row_was_lost_begins_again_where_it_was(
    is_full: bool, database: Database, receiver: Receiver, clock: Clock, connection: Connection
) -> None:
    """An asynchronous standby had not got it. At the present, what was committed since would be lost.

    Also where so much was due before that nothing was enrolled: without the row nothing is due.
    """
    async with opened(database, receiver, clock) as (sender, observed):
        ids = await commit_events(connection)
        await work(sender)
        await connection.execute("DELETE FROM outbox_reader")
        if is_full:
            sender._enrolled_max = 0
            # The next turn looks for what waits.
            sender.lag._due_at = 0
        ids += await commit_events(connection)
        await work(sender)
    assert ids == receiver.ids
    assert [PlaceLost("webhook")] == [each for each in observed if isinstance(each, PlaceLost)]


async def test_a_component_starts_while_the_webhooks_row_cannot_be_had(
    database_url: str, receiver: Receiver, connection: Connection
) -> None:
    """Groups are created meanwhile; the webhook begins as soon as its row can be had."""
    settings = replace(ComponentSettings(), webhook=settings_of(receiver))
    await connection.execute("BEGIN; LOCK TABLE outbox_reader IN SHARE MODE")
    async with open_component(database_url, settings=settings) as component:
        await component.creator.create(IdempotencyKey("a"), TEAM)
        await connection.execute("COMMIT")
        await until(lambda: connection.fetchval("SELECT EXISTS (SELECT FROM outbox_reader)"))
        answer = await component.creator.create(IdempotencyKey("b"), TEAM)
        await receiver.until(1)
    assert str(answer.group.group_id) in str(receiver.requests[-1][1])


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_page_of_a_history_that_a_failover_has_lost_moves_no_place(
    is_guarded: bool, database: Database, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new primary has begun another history of that number, whose events would be passed over."""
    guard = "EXISTS (SELECT FROM outbox_history WHERE number = $7::integer AND id = $12)"
    assert guard in QUERIES["enrol"]
    if not is_guarded:
        unguarded = QUERIES["enrol"].replace(guard, "$12 <> ''")
        monkeypatch.setattr(webhook_store, "QUERIES", {**QUERIES, "enrol": unguarded})
    store, slow = PostgresWebhookStore(database, URL_DIGEST), SlowStore(database)
    await store.open()
    ids = await commit_events(connection, 3)
    enrolling = asyncio.create_task(slow.enrol(100))
    await slow.has_read.wait()
    await connection.execute("UPDATE outbox_history SET id = '10571057'")
    slow.may_go_on.set()
    assert (0 if is_guarded else 3) == await enrolling
    await store.enrol(100)
    assert sorted(ids) == await enrolled(connection)


async def test_a_hanging_endpoint_delays_neither_sessions_nor_creations(
    database_url: str, receiver: Receiver
) -> None:
    """They hear of a group while the endpoint still owes its answer to the one before."""
    receiver.is_held = True
    settings = ComponentSettings(webhook=settings_of(receiver))
    async with api_for(database_url, settings=settings) as api:
        assert (await api.create("first")).status == 201
        await receiver.until(1)
        headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {token_of('alice')}"}
        async with api.session.get(f"{api.url}/v1/events", headers=headers) as session:
            created = (await api.create("second")).json
            async for line in session.content:
                if created["group_id"].encode() in line:
                    break
        receiver.is_held = False


class NoBus:
    """A bus that is away."""

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        raise BusUnavailable("away")


async def test_each_group_comes_to_the_endpoint_from_whichever_replica_made_it(
    database_url: str, receiver: Receiver
) -> None:
    """Also while there is no bus: the two do not wait for each other."""
    settings = ComponentSettings(webhook=settings_of(receiver))
    async with (
        open_component(database_url, settings=settings, bus=NoBus()) as one,
        open_component(database_url, settings=settings, bus=NoBus()) as two,
    ):
        for number in range(10):
            component = (one, two)[number % 2]
            await component.creator.create(IdempotencyKey(f"k{number}"), TEAM)
        await receiver.until(10)
    assert 10 == len(set(receiver.ids))


@pytest.mark.parametrize(
    "asked_for", [{"status": 410}, {"status": 429, "headers": {"Retry-After": "3000"}}]
)
async def test_another_url_ends_what_the_old_one_has_asked_for(
    asked_for: dict[str, object],
    database: Database,
    receiver: Receiver,
    clock: Clock,
    connection: Connection,
) -> None:
    """Twin: the same endpoint, opened again, stays paused or disabled."""
    receiver.answers.append(asked_for)
    old = settings_of(receiver)
    committed: list[uuid.UUID] = []
    moved = replace(old, webhook_url=f"{old.webhook_url}?moved")
    for settings, tries in ((old, 1), (old, 1), (moved, 2)):
        async with WebhookEndpoint(settings) as endpoint:
            store = PostgresWebhookStore(database, endpoint.url_digest, clock)
            await store.open()
            committed = committed or await commit_events(connection)
            await work(WebhookSender(store, endpoint, lambda _: None))
        assert committed * tries == receiver.ids


async def test_the_command_lists_replays_and_enables(
    sender: WebhookSender, receiver: Receiver, connection: Connection, database_url: str
) -> None:
    """What an operator does after an endpoint was mended."""
    (event_id,) = await commit_events(connection)
    receiver.answers.append({"status": 410})
    await work(sender)
    await connection.execute("UPDATE outbox_delivery SET dead_reason = 'answered 500', tries = 10")
    code, listed, _ = await stretto("events", DATABASE_URL=database_url)
    assert 0 == code
    assert f"{event_id} group.created of " in listed
    assert "10 tries: webhook: answered 500\n1 dead letters\nthe webhook is disabled" in listed
    code, said, _ = await stretto(
        "events", "--enable-webhook", "--retry-all", DATABASE_URL=database_url
    )
    assert (0, "the webhook is enabled\n1 events will be tried again\n") == (code, said)
    await work(sender)
    assert [event_id] * 2 == receiver.ids
    assert [] == await dead_letters(connection, 10)
