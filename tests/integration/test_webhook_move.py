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
from stretto.webhook.rules import RETRY_SECONDS
from stretto.webhook.store import PostgresWebhookStore, disabled_at, paused_until
from stretto.webhook.target import UNSERVED_SECONDS
from support.database import commit_event, connect
from support.waiting import until
from support.webhook_instances import LEASE_SECONDS, STEP_SECONDS, Instance, World
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from stretto.domain import UserId
    from stretto.events.log import LogPage
    from stretto.events.place import Place
    from stretto.postgres.connections import Database
    from stretto.targets.delivery import ReaderTarget
    from support.database import Connection

DEADLINE_SECONDS = 60
GONE = {"status": 410}
THROTTLED = {"status": 429, "headers": {"Retry-After": "3600"}}
FAILED = {"status": 500}
WAITING = """SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'"""


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
    await world.wait(UNSERVED_SECONDS - 1, new)
    assert [] == new.receiver.ids
    assert ids[:1] == old_receiver.ids
    await world.wait(1, new)
    await new.work()
    expected = ids if answer is not None else ids[1:]
    assert sorted(expected) == sorted(new.receiver.ids)


async def test_an_address_that_is_served_is_not_taken_over(
    world: World, connection: Connection
) -> None:
    """However long: a turn a minute says so, also where nothing happens."""
    other = await world.start(await world.receiver())
    served = await world.start(await world.receiver())
    await world.wait(10 * UNSERVED_SECONDS, served, other)
    event = await commit_event(connection)
    await other.work()
    await served.work()
    assert ([event], []) == (served.receiver.ids, other.receiver.ids)


async def fill(
    instance: Instance, world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have its endpoint ask for a pause, and so many deliveries be due that nothing is enrolled."""
    monkeypatch.setattr("stretto.webhook.sender.DUE_MAX", 1)
    instance.receiver.answers.append(THROTTLED)
    for _ in range(2):
        await commit_event(connection)
        world.move(1)
        await instance.work()
    await connection.execute("UPDATE outbox_delivery SET due_at = due_at - interval '1 day'")
    await commit_event(connection)
    world.move(1)
    await instance.work()
    assert 0 >= instance.sender._enrolled_max
    assert 1 == len(instance.receiver.ids)
    assert await paused_until(connection)


@pytest.mark.parametrize("is_alive", [True, False])
async def test_who_serves_does_not_depend_on_what_is_enrolled_or_sent(
    is_alive: bool, world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pause while many are due: the target keeps it while its sender lives, and no longer."""
    other = await world.start(await world.receiver())
    target = await world.start(await world.receiver())
    await fill(target, world, connection, monkeypatch)
    await world.wait(UNSERVED_SECONDS, *[target] * is_alive, other)
    assert 0 >= other.sender._enrolled_max
    assert [] == other.receiver.ids
    await world.wait(STEP_SECONDS, *[target] * is_alive, other)
    await other.work()
    assert (0 if is_alive else 3) == len(other.receiver.ids)


async def test_a_clock_that_goes_back_delays_no_takeover(
    world: World, connection: Connection
) -> None:
    """The target's last sender has ended before: none of its own says that the clock is behind."""
    other = await world.start(await world.receiver())
    await world.start(await world.receiver())
    await other.work()
    world.jump(-3600)
    event = await commit_event(connection)
    await world.wait(UNSERVED_SECONDS - 1, other)
    assert [] == other.receiver.ids
    await world.wait(1, other)
    await other.work()
    assert [event] == other.receiver.ids


async def test_a_clock_that_jumps_ahead_takes_no_address_away(
    world: World, connection: Connection
) -> None:
    """The sender that waits has its turn first."""
    other = await world.start(await world.receiver())
    target = await world.start(await world.receiver())
    await other.work()
    event = await commit_event(connection)
    world.jump(3600)
    await world.wait(STEP_SECONDS, other, target)
    assert ([event], []) == (target.receiver.ids, other.receiver.ids)


async def test_a_pause_goes_back_with_the_clock_while_nothing_is_enrolled(
    world: World, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is due stays due: so many wait for longer than the clock has gone back."""
    target = await world.start(await world.receiver())
    await fill(target, world, connection, monkeypatch)
    until_before = await paused_until(connection)
    assert until_before is not None
    # The last time at which it was said that it is served.
    served_at = await connection.fetchval("SELECT served_at FROM outbox_reader")
    world.jump(-1800)
    world.move(1)
    await target.work()
    assert 0 >= target.sender._enrolled_max
    set_back = served_at - world.now
    assert set_back > timedelta(seconds=1700)
    (row,) = await connection.fetch("SELECT clock_ahead, paused_until FROM outbox_reader")
    assert (set_back, until_before - set_back) == (row["clock_ahead"], row["paused_until"])
    # Once, not at each turn.
    world.move(1)
    await target.work()
    assert set_back == await connection.fetchval("SELECT clock_ahead FROM outbox_reader")


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
        await connection.execute(QUERIES["lock_target"], URL_DIGEST, None, None, None)
        await connection.execute(QUERIES["move_target"], URL_DIGEST, world.now, None)
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


class WaitingStore(PostgresWebhookStore):
    """A store whose log is not to be read."""

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        raise AssertionError


async def test_a_sender_of_another_address_reads_no_events(
    database: Database, connection: Connection
) -> None:
    """It has a turn a second for as long as a move lasts."""
    store = WaitingStore(database, bytes(32))
    await store.open()
    await PostgresWebhookStore(database, URL_DIGEST).open()
    await commit_event(connection)
    assert 0 == await store.enrol(10)


async def test_an_instance_that_freezes_in_the_move_is_ended_by_the_server(
    world: World, connection: Connection, database_url: str
) -> None:
    """Behind a pooler nothing else would end it, and no instance would send anything meanwhile."""
    one = await world.start(await world.receiver())
    event = await commit_event(connection)
    frozen = await connect(database_url)
    await frozen.execute("BEGIN")
    held = await frozen.fetch(QUERIES["lock_target"], URL_DIGEST, None, None, None)
    assert 1 == len(held)

    async def is_sent() -> bool:
        await one.work()
        return [event] == one.receiver.ids

    await until(is_sent)
    await frozen.close()


class Reader:
    """The webhook's store of one address, with a time of the database that the test sets."""

    def __init__(self, database: Database, digest: bytes = URL_DIGEST) -> None:
        self.now = datetime.now(UTC) + timedelta(minutes=1)
        self.store = PostgresWebhookStore(database, digest, lambda: self.now)

    async def open(self, connection: Connection) -> None:
        """Be the target, which was served just now."""
        await self.store.open()
        await connection.execute("UPDATE outbox_reader SET served_at = $1", self.now)

    async def seen(self) -> ReaderTarget:
        """Return what is read of the target."""
        await self.store.oldest_seconds()
        assert self.store.target is not None
        return self.store.target


@pytest.mark.parametrize("seconds", [1, 0, -1, -60])
async def test_each_time_that_it_is_said_the_time_of_it_grows(
    seconds: float, database: Database, connection: Connection
) -> None:
    """Also while the clock is behind, by a minute at most: that moves nothing else."""
    reader = Reader(database)
    await reader.open(connection)
    before = reader.now
    reader.now += timedelta(seconds=seconds)
    await reader.store.serve(await reader.seen())
    (row,) = await connection.fetch("SELECT served_at, clock_ahead FROM outbox_reader")
    assert max(reader.now, before + timedelta(microseconds=1)) == row["served_at"]
    assert timedelta(0) == row["clock_ahead"]


@pytest.mark.parametrize("is_said", [True, False])
async def test_what_was_said_meanwhile_is_not_said_again(
    is_said: bool, database: Database, connection: Connection
) -> None:
    """However many senders there are, it is one write a minute."""
    reader = Reader(database)
    await reader.open(connection)
    seen = await reader.seen()
    reader.now += timedelta(seconds=60)
    if is_said:
        await reader.store.serve(seen)
    version = await connection.fetchval("SELECT xmin::text FROM outbox_reader")
    await reader.store.serve(seen)
    assert is_said == (version == await connection.fetchval("SELECT xmin::text FROM outbox_reader"))


@pytest.mark.parametrize(
    "change", ["disabled_at = now()", "target_digest = sha256('x')", "name = name"]
)
async def test_only_a_target_that_is_ours_and_enabled_is_said_to_be_served(
    change: str, database: Database, connection: Connection
) -> None:
    """Another sender may have changed it since the last look."""
    reader = Reader(database)
    await reader.open(connection)
    seen = await reader.seen()
    await connection.execute(f"UPDATE outbox_reader SET {change}")
    reader.now += timedelta(seconds=60)
    await reader.store.serve(seen)
    served_at = await connection.fetchval("SELECT served_at FROM outbox_reader")
    assert (change == "name = name") == (reader.now == served_at)


async def test_nothing_waits_for_a_reader_that_another_session_holds(
    database: Database, connection: Connection
) -> None:
    """A sender has more to do, and says it a second later."""
    reader = Reader(database)
    await reader.open(connection)
    reader.now += timedelta(seconds=60)
    seen = await reader.seen()
    async with connection.transaction():
        await connection.execute("SELECT FROM outbox_reader FOR UPDATE")
        await reader.store.serve(seen)
    assert seen == await reader.seen()
    await reader.store.serve(seen)
    assert seen != await reader.seen()


async def test_a_time_that_was_written_by_hand_keeps_no_target_unserved(
    database: Database, connection: Connection
) -> None:
    """None can be taken from it, and nothing goes back with it."""
    reader = Reader(database)
    await reader.open(connection)
    await connection.execute("UPDATE outbox_reader SET served_at = 'infinity'")
    seen = await reader.seen()
    assert seen.is_ahead
    await reader.store.serve(seen)
    (row,) = await connection.fetch("SELECT served_at, clock_ahead FROM outbox_reader")
    assert (reader.now, timedelta(0)) == (row["served_at"], row["clock_ahead"])


@pytest.mark.parametrize("meanwhile", ["it is served", "a third one", "nothing"])
async def test_a_target_that_has_changed_since_is_not_taken_over(
    meanwhile: str, database: Database, connection: Connection
) -> None:
    """Another sender serves it, or has taken it over, since the last look."""
    other, target = Reader(database, bytes(32)), Reader(database)
    await target.open(connection)
    seen = await other.seen()
    assert not seen.is_ours
    if meanwhile == "it is served":
        await target.store.serve(await target.seen())
    elif meanwhile == "a third one":
        third = Reader(database, bytes([3] * 32))
        third.now = target.now
        await third.store.open()
    await other.store.take_over(seen)
    assert (meanwhile == "nothing") == (await other.seen()).is_ours
