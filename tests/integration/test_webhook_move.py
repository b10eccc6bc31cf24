"""The webhook's endpoint is replaced while instances with the old address still run beside the new ones."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from stretto.observations import EventDeadLettered, WebhookDisabled
from stretto.postgres.deliveries import dead_letters
from stretto.postgres.queries import QUERIES
from stretto.webhook.endpoint import WebhookEndpoint
from stretto.webhook.rules import RETRY_SECONDS, WebhookSettings
from stretto.webhook.sender import WebhookSender
from stretto.webhook.store import UNSERVED_SECONDS, PostgresWebhookStore, disabled_at, paused_until
from support.database import commit_event, connect
from support.waiting import until
from support.webhook_receiver import URL_DIGEST, receiving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from stretto.domain import UserId
    from stretto.events.log import LogPage
    from stretto.events.place import Place
    from stretto.observations import Observation
    from stretto.postgres.connections import Database
    from support.database import Connection
    from support.webhook_receiver import Receiver

SECRETS = (b"a secret of an endpoint, long",)
DEADLINE_SECONDS = 60
LEASE_SECONDS = 60.0
GONE = {"status": 410}
THROTTLED = {"status": 429, "headers": {"Retry-After": "3600"}}
FAILED = {"status": 500}
WAITING = """SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'"""


class Instance:
    """A sender with its receiver, which takes its turns when the test says so."""

    def __init__(
        self, sender: WebhookSender, receiver: Receiver, observed: list[Observation]
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.observed = observed

    async def work(self) -> None:
        """Take turns until nothing is due."""
        while await self.sender.run_once() or self.sender._under_way:
            await self.sender.answered()

    async def is_answered(self) -> None:
        """Take turns until an event is answered, and do not settle it yet."""
        while not self.sender._under_way:
            await self.sender.run_once()
        await self.sender.answered()


class World:
    """Starts instances on one database, with one clock."""

    def __init__(self, database: Database, stack: AsyncExitStack) -> None:
        self.now = datetime.now(UTC) + timedelta(minutes=1)
        self.database = database
        self._stack = stack

    async def receiver(self) -> Receiver:
        """Return an endpoint of its own."""
        return await self._stack.enter_async_context(receiving())

    async def start(self, receiver: Receiver) -> Instance:
        """Start an instance that sends to a receiver."""
        settings = WebhookSettings(
            webhook_url=receiver.url, webhook_secret=SECRETS, webhook_allow_private=True
        )
        endpoint = await self._stack.enter_async_context(WebhookEndpoint(settings))
        store = PostgresWebhookStore(self.database, endpoint.url_digest, lambda: self.now)
        observed: list[Observation] = []
        sender = WebhookSender(store, endpoint, observed.append, lease_seconds=LEASE_SECONDS)
        await sender.open()
        return Instance(sender, receiver, observed)

    def move(self, seconds: float) -> None:
        """Move the clock."""
        self.now += timedelta(seconds=seconds)


@pytest.fixture
async def world(database: Database) -> AsyncIterator[World]:
    """The instances of a rolling restart."""
    async with asyncio.timeout(DEADLINE_SECONDS), AsyncExitStack() as stack:
        yield World(database, stack)


async def last_try(connection: Connection) -> None:
    """Have each delivery's next failure be its last."""
    await connection.execute("UPDATE outbox_delivery SET tries = $1", len(RETRY_SECONDS))


@pytest.mark.parametrize("answer", [GONE, THROTTLED, FAILED])
async def test_what_the_old_address_answers_after_the_move_holds_nothing_up(
    answer: dict[str, object], world: World, connection: Connection
) -> None:
    """Its request was under way: neither pause nor end nor dead letter, and the new address has it."""
    old = await world.start(await world.receiver())
    old.receiver.answers.append(answer)
    event = await commit_event(connection)
    await old.sender.run_once()
    await last_try(connection)
    await old.is_answered()
    new = await world.start(await world.receiver())
    await old.work()
    assert [] == await dead_letters(connection, 10)
    assert (None, None) == (await disabled_at(connection), await paused_until(connection))
    assert [] == [
        each for each in old.observed if isinstance(each, EventDeadLettered | WebhookDisabled)
    ]
    await new.work()
    assert ([event], [event]) == (old.receiver.ids, new.receiver.ids)


@pytest.mark.parametrize("answer", [GONE, THROTTLED, FAILED])
async def test_what_the_one_address_answers_counts(
    answer: dict[str, object], world: World, connection: Connection
) -> None:
    """The twin, without a move: another instance does not send it either."""
    one = await world.start(await world.receiver())
    one.receiver.answers.append(answer)
    event = await commit_event(connection)
    await one.sender.run_once()
    await last_try(connection)
    await one.is_answered()
    two = await world.start(one.receiver)
    await one.work()
    await two.work()
    assert [event] == one.receiver.ids


async def test_an_event_that_the_old_address_took_is_not_sent_again(
    world: World, connection: Connection
) -> None:
    """It is recorded after the move, and before the new address's turn."""
    old = await world.start(await world.receiver())
    event = await commit_event(connection)
    await old.is_answered()
    new = await world.start(await world.receiver())
    await old.work()
    await new.work()
    assert ([event], []) == (old.receiver.ids, new.receiver.ids)


async def test_after_the_move_no_event_goes_to_the_old_address(
    world: World, connection: Connection
) -> None:
    """Neither one that waited nor a new one, whichever instance has its turn first."""
    old = await world.start(await world.receiver())
    old.receiver.answers.extend([FAILED])
    ids = [await commit_event(connection)]
    await old.work()
    new = await world.start(await world.receiver())
    old.receiver.answers.extend(GONE for _ in range(10))
    assert [ids[0]] == old.receiver.ids
    ids += [await commit_event(connection) for _ in range(3)]
    await old.work()
    # The new one's delivery that waits is the only one: the old one has not enrolled any.
    assert 1 == await connection.fetchval("SELECT count(*) FROM outbox_delivery")
    await new.work()
    await old.work()
    assert (ids[:1], sorted(ids)) == (old.receiver.ids, sorted(new.receiver.ids))


async def test_what_has_failed_at_the_old_address_is_untried_at_the_new_one(
    world: World, connection: Connection
) -> None:
    """One failure there does not make it a dead letter."""
    old = await world.start(await world.receiver())
    old.receiver.answers.append(FAILED)
    await commit_event(connection)
    await old.work()
    await last_try(connection)
    new = await world.start(await world.receiver())
    new.receiver.answers.append(FAILED)
    await new.work()
    assert 1 == len(new.receiver.ids)
    assert [] == await dead_letters(connection, 10)
    assert 1 == await connection.fetchval("SELECT tries FROM outbox_delivery")


@pytest.mark.parametrize("answer", [GONE, THROTTLED, None])
async def test_an_old_instance_that_restarts_does_not_keep_the_webhook(
    answer: dict[str, object] | None, world: World, connection: Connection
) -> None:
    """It decides, since it has started last; once it is gone, or was told to go, the new ones do."""
    old_receiver = await world.receiver()
    await world.start(old_receiver)
    new = await world.start(await world.receiver())
    old = await world.start(old_receiver)
    if answer is not None:
        old_receiver.answers.append(answer)
    ids = [await commit_event(connection)]
    await new.work()
    await old.work()
    ids += [await commit_event(connection)]
    world.move(UNSERVED_SECONDS)
    await new.work()
    assert [] == new.receiver.ids
    assert ids[:1] == old_receiver.ids
    world.move(1)
    await new.work()
    await new.work()
    expected = ids if answer is not None else ids[1:]
    assert sorted(expected) == sorted(new.receiver.ids)


async def test_an_address_that_is_served_is_not_taken_over(
    world: World, connection: Connection
) -> None:
    """However long: a turn a minute says so, also where nothing happens."""
    other = await world.start(await world.receiver())
    served = await world.start(await world.receiver())
    for _ in range(10):
        world.move(61)
        await served.work()
        await other.work()
    event = await commit_event(connection)
    await other.work()
    await served.work()
    assert ([event], []) == (served.receiver.ids, other.receiver.ids)


@pytest.mark.parametrize("is_busy", [True, False])
async def test_an_address_whose_sender_has_no_free_slot_is_served(
    is_busy: bool, world: World, connection: Connection
) -> None:
    """It enrols nothing as long as it can only send; the twin sends nothing either."""
    other = await world.start(await world.receiver())
    busy = await world.start(await world.receiver())
    for _ in range(2):
        await commit_event(connection)
    await busy.sender.run_once()
    world.move(UNSERVED_SECONDS + 1)
    if is_busy:
        assert 1 == len(await busy.sender._store.take(1, LEASE_SECONDS))
    await other.work()
    await other.work()
    assert (0 if is_busy else 2) == len(other.receiver.ids)


async def test_an_answer_that_is_settled_during_the_move_waits_for_it(
    world: World, connection: Connection
) -> None:
    """Without that it would be judged by the target before, and its event be a dead letter."""
    old = await world.start(await world.receiver())
    old.receiver.answers.append(FAILED)
    event = await commit_event(connection)
    await old.sender.run_once()
    await last_try(connection)
    await old.is_answered()
    async with connection.transaction():
        assert await connection.fetchval(QUERIES["lock_target"], URL_DIGEST, None, world.now)
        await connection.execute(QUERIES["move_target"], URL_DIGEST, world.now)
        settling = asyncio.create_task(old.sender.run_once())
        await until(lambda: connection.fetchval(WAITING))
    await settling
    assert [] == await dead_letters(connection, 10)
    store = PostgresWebhookStore(world.database, URL_DIGEST, lambda: world.now)
    (taken,) = await store.take(1, LEASE_SECONDS)
    assert (event, 0) == (taken.event.event_id, taken.tries)


async def test_what_is_settled_before_the_move_is_due_after_it(
    world: World, connection: Connection
) -> None:
    """The move waits for a settlement that has begun, and sees what it has put off for longest."""
    old = await world.start(await world.receiver())
    event = await commit_event(connection)
    await old.sender.run_once()
    store = PostgresWebhookStore(world.database, URL_DIGEST, lambda: world.now)
    async with connection.transaction():
        await connection.execute("SELECT FROM outbox_reader FOR KEY SHARE")
        await connection.execute(
            "UPDATE outbox_delivery SET due_at = due_at + interval '1 day', tries = tries + 1"
        )
        moving = asyncio.create_task(store.open())
        await until(lambda: connection.fetchval(WAITING))
    await moving
    (taken,) = await store.take(1, LEASE_SECONDS)
    assert (event, 0) == (taken.event.event_id, taken.tries)
    await old.sender.answered()


class MovedStore(PostgresWebhookStore):
    """A store whose webhook is moved between its page and its enrolment."""

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        page = await super().page(begin, events_max, users)
        await PostgresWebhookStore(self._database, bytes(32)).open()
        return page


async def test_a_turn_that_the_move_overtakes_enrols_nothing(
    database: Database, connection: Connection
) -> None:
    """The new address's sender does."""
    store = MovedStore(database, URL_DIGEST)
    await store.open()
    await commit_event(connection)
    assert 0 == await store.enrol(10)
    assert 1 == await PostgresWebhookStore(database, bytes(32)).enrol(10)


async def test_an_instance_that_freezes_in_the_move_is_ended_by_the_server(
    world: World, connection: Connection, database_url: str
) -> None:
    """Behind a pooler nothing else would end it, and no instance would send anything meanwhile."""
    one = await world.start(await world.receiver())
    event = await commit_event(connection)
    frozen = await connect(database_url)
    await frozen.execute("BEGIN")
    assert await frozen.fetchval(QUERIES["lock_target"], URL_DIGEST, None, world.now)

    async def is_sent() -> bool:
        await one.work()
        return [event] == one.receiver.ids

    await until(is_sent)
    await frozen.close()
