"""Everything that runs is started, loaded, crashed and stopped fifty times, on real servers.

Each round ends in another way: at rest, in the back-off after a crash, or with work under way. Then no
task is left, no caller waits in vain, and the next round finds what it needs.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import uuid
import weakref
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from nats.js.errors import NoStreamResponseError

from stretto.assembly.opening import open_component
from stretto.assembly.parts import Inputs, put_together
from stretto.assembly.settings import ComponentSettings
from stretto.codec import created_document
from stretto.creation.attempt import AnswerStatus
from stretto.creation.flight import Answer
from stretto.domain import CreatedGroup, IdempotencyKey, NewGroup, UserId
from stretto.errors import NotFound
from stretto.events.close_codes import CloseCode
from stretto.events.scan import Ask
from stretto.events.subscriptions import Subscriber
from stretto.nats import connection as connection_module
from stretto.nats.commands import CommandConsumer, CommandSettings
from stretto.nats.opening import Bus, Nats, make_nats
from stretto.nats.outage import Outage
from stretto.observations import ActorCrashed, ActorRestarted, AttemptStrayed, RowsSwept
from stretto.postgres.connections import Database
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.queries import QUERIES
from stretto.postgres.readiness import rehearse_for_others
from stretto.runtime.actor import Actor
from stretto.runtime.backoff import Backoff
from stretto.runtime.memory import GROWTH_BYTES_MIN, GarbageCollector, MemoryTrimmer
from stretto.runtime.runner import Runner
from stretto.webhook.rules import Answered, WebhookSettings, parse_secrets
from support.database import commit_event
from support.nats_process import OURS, NatsProcess, nats_client
from support.waiting import until
from support.webhook_receiver import URL_DIGEST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from stretto.assembly.component import Component
    from stretto.domain import UserId as User
    from stretto.events.log import CommittedEvent
    from support.database import Connection

    Load = Callable[["Stage"], Coroutine[Any, Any, object]]

ROUNDS = 50
DEADLINE_SECONDS = 60
ALICE = UserId("alice")
SECRET = "whsec_" + "QUJD" * 8
TEAM = NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})
AT_ONCE = Backoff(1e-6, 1e-6)
NEVER = Backoff(3600.0, 3600.0)
# A command that goes to a connection which has just been lost comes again.
SOON_AGAIN = CommandSettings(ack_seconds=0.2, fetch_seconds=0.2)


class Crash(Exception):
    """What no actor expects."""


class Trim:
    """Memory that was given back."""


class Fuse:
    """Stands in the place of an actor's turn, and has the next one crash once it is armed."""

    def __init__(self, actor: Actor) -> None:
        self._turn = actor.run_once
        self.is_armed = False
        vars(actor)["run_once"] = self

    async def __call__(self) -> int:
        if self.is_armed:
            self.is_armed = False
            raise Crash
        return await self._turn()


class Seen:
    """Things that have happened, to be waited for."""

    def __init__(self) -> None:
        self._all: list[object] = []
        self._news = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, thing: object) -> None:
        self._all.append(thing)
        task = asyncio.create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def count(self, kind: type) -> int:
        return sum(isinstance(thing, kind) for thing in self._all)

    async def until(self, holds: Callable[[Sequence[object]], bool]) -> None:
        async with self._news, asyncio.timeout(DEADLINE_SECONDS):
            await self._news.wait_for(lambda: holds(self._all))

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


class Outside:
    """A bus, a webhook's endpoint, a host's callback and a creator in one: each sees what it gets."""

    connections_opened = 0

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        for event in events:
            self._seen.add(("published", event.event_id))
        return {}

    async def on_event(self, event: CommittedEvent) -> None:
        self._seen.add(("called", event.event_id))

    async def send(self, event_id: UUID, body: bytes, fields: Mapping[str, str]) -> Answered:
        self._seen.add(("sent", event_id))
        return Answered(204)

    @property
    def url_digest(self) -> bytes:
        return URL_DIGEST

    async def is_blocked(self) -> bool:
        return False

    async def create_from(self, owner: User, key: str, body: bytes, **_: object) -> Answer:
        self._seen.add(("created", key))
        group = CreatedGroup(uuid.uuid4(), uuid.uuid4())
        return Answer(created_document(group), AnswerStatus.CREATED)


class HostsPool:
    """A pool that is watched for being closed."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def is_closing(self) -> bool:
        self._seen.add(self)
        return True


class Stage:
    """Parts of which nothing runs, and what a round needs to load one of them."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.seen = Seen()
        self.runner = Runner(self.seen.add)
        self.connection = connection
        self.database = database
        self.pool: Any = HostsPool(self.seen)
        self.client: Any = None
        self.nats: Nats | None = None
        self.actor: Actor = GarbageCollector()
        self.component: Component

    async def build(self, name: str, url: str) -> None:
        """Make new parts, and pick the actor of that name."""
        outside: Any = Outside(self.seen)
        self.component = component = put_together(
            Inputs(
                self.database,
                self.pool,
                OURS.database,
                self.runner,
                outside,
                outside,
                None,
                self.seen.add,
            ),
            ComponentSettings(writers=1),
        )
        log = PostgresLogStore(self.database.upkeep)
        # Gathering would take most of the test's time.
        component.trail.pace = replace(component.trail.pace, gather_seconds=0)
        actors: list[Actor] = [
            *component.writers,
            *component.reads.readers,
            *component.deleters,
            component.deletion_watch,
            component.history_reader,
            component.tail,
            component.announcer,
            component.sweeper,
            component.trail,
            component.hub,
            Subscriber(outside.on_event, log, await log.present(), self.seen.add, lambda *_: None),
            GarbageCollector(),
            MemoryTrimmer(
                itertools.count(step=GROWTH_BYTES_MIN).__next__, lambda: self.seen.add(Trim())
            ),
        ]
        if component.pool_watch is not None:
            actors.append(component.pool_watch)
        if component.relay is not None:
            await component.relay.open()
            actors.append(component.relay)
        if component.webhook is not None:
            await component.webhook.open()
            actors.append(component.webhook)
        if url:
            bus, age = Bus(url, "stretto", OURS.database), component.age
            rehearse = partial(
                rehearse_for_others, self.component.database, self.component.write_stores
            )
            nats = make_nats(bus, outside, age, self.seen.add, rehearse=rehearse)
            commands = CommandConsumer(
                *(nats.connection, OURS, outside, age, self.seen.add, SOON_AGAIN),
                outage=Outage(rehearse),
            )
            self.nats = replace(nats, commands=commands)
            actors += [self.nats.connection, self.nats.commands]
        (self.actor,) = (actor for actor in actors if actor.name == name)


async def create(stage: Stage) -> None:
    """Create a group."""
    await stage.component.creator.create(IdempotencyKey(uuid.uuid4().hex), TEAM)


async def ask_history(stage: Stage) -> None:
    """Ask what has come since a place."""
    present = await PostgresLogStore(stage.database.upkeep).present()
    await stage.component.history.ask(Ask(ALICE, present))


async def follow(stage: Stage) -> None:
    """Have a session join, commit an event, and wait until it is delivered."""
    with stage.component.hub.session(ALICE, 1e12) as session:
        assert session.go_live(await stage.component.hub.followed())
        event_id = await commit_event(stage.connection)
        stage.actor.wake()
        while event_id not in [each.event.event_id for each in await session.take()]:
            pass


async def delete(stage: Stage) -> None:
    """Ask for a group to be deleted that there is not."""
    with suppress(NotFound):
        await stage.component.deleter.delete(uuid.uuid4(), ALICE)


async def delete_slowly(stage: Stage) -> None:
    """Ask for it as an owner does whose deletions have taken long."""
    stage.component.deleter.suspects.note_untried(ALICE, 1.0)
    await delete(stage)


async def forget(stage: Stage) -> None:
    """Commit the event of a deletion, and wait until the key's outcome is forgotten."""
    id_ = uuid.uuid4()
    memory = stage.component.creator._memory
    memory.remember(id_.bytes, bytes(16), b"{}", bytes(16))
    await commit_event(stage.connection, subject=id_, event_type="group.deleted")
    stage.actor.wake()
    await until(lambda: memory.find(id_.bytes) is None)


async def announce(stage: Stage) -> None:
    """Have an announcement heard."""
    heard = asyncio.Event()
    channel = await stage.connection.fetchval(QUERIES["announcements"])

    def hear(*_: object) -> None:
        heard.set()

    await stage.connection.add_listener(channel, hear)
    stage.actor.wake()
    await heard.wait()
    await stage.connection.remove_listener(channel, hear)


async def relay(stage: Stage) -> None:
    """Commit an event, and wait until it is published."""
    event_id = await commit_event(stage.connection)
    stage.actor.wake()
    await stage.seen.until(lambda seen: ("published", event_id) in seen)


async def send(stage: Stage) -> None:
    """Commit an event, and wait until the endpoint has it."""
    event_id = await commit_event(stage.connection)
    stage.actor.wake()
    await stage.seen.until(lambda seen: ("sent", event_id) in seen)


async def call_back(stage: Stage) -> None:
    """Commit an event, and wait until the host has got it."""
    event_id = await commit_event(stage.connection)
    stage.actor.wake()
    await stage.seen.until(lambda seen: ("called", event_id) in seen)


async def sweep(stage: Stage) -> None:
    """Leave a row to be swept, and wait until it is."""
    swept = stage.seen.count(RowsSwept)
    await stage.connection.execute(
        "INSERT INTO inbox (consumer, message_id, received_at)"
        " VALUES ('counter', gen_random_uuid(), '2020-01-01')"
    )
    stage.actor.wake()
    await stage.seen.until(lambda _: stage.seen.count(RowsSwept) > swept)


async def record(stage: Stage) -> None:
    """Have something noted, and wait until it is in the trail."""
    id_ = uuid.uuid4()
    stage.component.trail.note(AttemptStrayed("unknown", id_, UserId(str(id_))))
    count = "SELECT count(*) FROM attempt_trail WHERE group_id = $1"
    await until(lambda: stage.connection.fetchval(count, id_))


async def end_session(stage: Stage) -> None:
    """Have a session whose token has ended, and wait for its end."""
    with stage.component.hub.session(ALICE, 0) as session:
        stage.actor.wake()
        async with session.until_closed():
            await asyncio.Event().wait()
        assert CloseCode.TOKEN_ENDED == session.close_code


async def close_pool(stage: Stage) -> None:
    """Wait until it is seen that the pool is closing."""
    looks = stage.seen.count(HostsPool)
    stage.actor.wake()
    await stage.seen.until(lambda _: stage.seen.count(HostsPool) > looks)


async def collect(stage: Stage) -> None:
    """Leave a cycle, and wait until it is gone."""

    class Cycle:
        itself: object = None

    cycle = Cycle()
    cycle.itself, left = cycle, weakref.ref(cycle)
    del cycle
    stage.actor.wake()
    await until(lambda: left() is None)


async def trim(stage: Stage) -> None:
    """Wait until memory is given back."""
    trims = stage.seen.count(Trim)
    stage.actor.wake()
    await stage.seen.until(lambda _: stage.seen.count(Trim) > trims)


async def link(stage: Stage) -> None:
    """Wait for a connection."""
    assert stage.nats is not None
    await stage.nats.connection.linked()


async def command(stage: Stage) -> None:
    """Send a command, and wait until its group is asked for."""
    key = uuid.uuid4().hex
    headers = {"Idempotency-Key": key, "Stretto-Owner": "alice"}
    while True:
        with suppress(NoStreamResponseError):
            await stage.client.publish("stretto.commands.create_group", b"{}", headers=headers)
            break
    await stage.seen.until(lambda seen: ("created", key) in seen)


LOADS: dict[str, Load] = {
    "writer": create,
    "reader of attempts": lambda s: s.component.reads.attempts.look(uuid.uuid4(), 5.0, ALICE),
    "reader of trails": lambda s: s.component.reads.trail(ALICE, uuid.uuid4()),
    "reader of groups": lambda s: s.component.reads.groups.group_of_member(uuid.uuid4(), ALICE),
    "reader of lists": lambda s: s.component.reads.groups.groups_of_member(ALICE, None, 10),
    "reader of members": lambda s: s.component.reads.groups.members_of_group(
        uuid.uuid4(), ALICE, None, 10
    ),
    "reader of health": lambda s: s.component.reads.ping(),
    "deleter of groups": delete,
    "deleter of slow groups": delete_slowly,
    "deletion watch": forget,
    "history reader": ask_history,
    "log tail": follow,
    "announcer": announce,
    "relay": relay,
    "sweeper": sweep,
    "trail recorder": record,
    "webhook": send,
    "session hub": end_session,
    "subscriber": call_back,
    "pool watch": close_pool,
    "garbage collector": collect,
    "memory trimmer": trim,
    "nats connection": link,
    "commands": command,
}
ON_NATS = ("nats connection", "commands")


@pytest_asyncio.fixture
async def stage(database_url: str, connection: Connection) -> AsyncIterator[Stage]:
    """A stage on a database of this test's."""
    async with Database(database_url) as database:
        yield Stage(database, connection)


@asynccontextmanager
async def bus_for(stage: Stage, name: str, folder: Path) -> AsyncIterator[str]:
    """Run a nats-server where the actor needs one; yields its URL."""
    if name not in ON_NATS:
        yield ""
        return
    async with NatsProcess(folder) as server, nats_client(server.url) as client:
        stage.client = client.jetstream()
        yield server.url


async def provoke(stage: Stage, load: Load) -> None:
    """Have a turn begin: the one that is armed."""
    if stage.actor.name in ON_NATS:
        assert stage.nats is not None
        await (await stage.nats.connection.linked()).client.close()
    elif stage.actor.pace is None:
        # It waits for work within a turn: that one ends, and the next one is armed.
        await load(stage)
    stage.actor.wake()


def is_quiet(database: Database) -> bool:
    """Whether no connection of a lane is in use."""
    return all(pool.get_idle_size() == pool.get_size() for pool in database._pools.values())


async def crash(stage: Stage, fuse: Fuse, load: Load) -> None:
    """Have the actor crash, and wait until it has."""
    crashes = stage.seen.count(ActorCrashed)
    # A turn may go on for a moment after its answer, until its connection is given back: the one after
    # the next is to crash.
    await until(lambda: is_quiet(stage.database))
    for _ in range(3):
        await asyncio.sleep(0)
    fuse.is_armed = True
    await provoke(stage, load)
    await stage.seen.until(lambda _: stage.seen.count(ActorCrashed) == crashes + 1)


async def take_round(stage: Stage, load: Load, number: int) -> None:
    """Start, load, crash, load again and stop; each third round ends alike."""
    actor, fuse = stage.actor, Fuse(stage.actor)
    restarts = stage.seen.count(ActorRestarted)
    actor.backoff = AT_ONCE
    if stage.nats is not None and actor is not stage.nats.connection:
        stage.runner.start(stage.nats.connection)
    stage.runner.start(actor, is_vital=True)
    await load(stage)
    await crash(stage, fuse, load)
    await stage.seen.until(lambda _: stage.seen.count(ActorRestarted) == restarts + 1)
    await load(stage)
    loads: list[asyncio.Task[object]] = []
    if number % 3 == 0:
        actor.backoff = NEVER
        await crash(stage, fuse, load)
        assert [actor.name] == stage.runner.down
    elif number % 3 == 1:
        loads = [asyncio.create_task(load(stage)) for _ in range(10)]
        for _ in range(number // 3):
            await asyncio.sleep(0)
    if actor.name == "writer":
        stage.component.mailbox.close()
    await stage.runner.stop(actor)
    await stage.runner.stop(actor)
    if actor.pace is None:
        # All are answered, if only with an error.
        await asyncio.gather(*loads, return_exceptions=True)
    # What an actor with a pace did not get to, the next process finds; here there is none.
    await connection_module.end_tasks(loads)
    await stage.runner.stop(*stage.runner._runs)


@pytest.mark.parametrize("name", LOADS)
async def test_an_actor_is_started_loaded_crashed_and_stopped_fifty_times(
    name: str, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs again after each crash, and leaves nothing behind."""
    monkeypatch.setattr(connection_module, "RETRY", AT_ONCE)
    monkeypatch.setattr(connection_module, "NEXT_SERVER_SECONDS", 0.001)
    gc.collect()
    async with bus_for(stage, name, tmp_path) as url:
        for number in range(ROUNDS):
            await stage.build(name, url)
            async with asyncio.timeout(DEADLINE_SECONDS), stage.component.creator:
                await take_round(stage, LOADS[name], number)
            left = [task.get_name() for task in asyncio.all_tasks()]
            assert [] == [task for task in left if task.startswith("stretto ")], number
    assert ROUNDS + -(-ROUNDS // 3) == stage.seen.count(ActorCrashed)
    assert ROUNDS == stage.seen.count(ActorRestarted)


def test_every_actor_of_a_process_is_stressed() -> None:
    """A new one is listed here, with how it is loaded."""

    def kinds(kind: type[Actor]) -> set[type[Actor]]:
        return {kind}.union(*map(kinds, kind.__subclasses__()))

    ours = {each for each in kinds(Actor) if each.__module__.startswith("stretto.")} - {Actor}
    # One class of readers has six names, that of deleters two; and of the relays, that over a host's bus is
    # the other one as well.
    assert len(ours) + 6 - 1 == len(LOADS)


async def test_all_is_started_and_stopped_in_the_order_of_the_list(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the docs have it; each step is taken although the one before it has failed."""
    started: list[str] = []
    stopped: list[str] = []
    real_start, real_stop = Runner.start, Runner.stop

    def start(self: Runner, actor: Actor, *, is_vital: bool = False) -> None:
        started.append(actor.name)
        real_start(self, actor, is_vital=is_vital)

    async def stop(self: Runner, *actors: Actor) -> None:
        stopped.extend(actor.name for actor in actors)
        await real_stop(self, *actors)
        if actors:
            raise Crash(actors[0].name)

    monkeypatch.setattr(Runner, "start", start)
    monkeypatch.setattr(Runner, "stop", stop)
    webhook = WebhookSettings(
        webhook_url="http://127.0.0.1:9",
        webhook_secret=parse_secrets(SECRET),
        webhook_allow_private=True,
    )
    async with NatsProcess(tmp_path) as server:
        settings = ComponentSettings(nats_url=server.url, webhook=webhook)
        with pytest.raises(Crash):
            async with open_component(database_url, settings=settings) as component:
                await component.on_event(Outside(Seen()).on_event)
    readers = [name for name in LOADS if name.startswith("reader of")]
    order = [
        *("nats connection", "relay", "sweeper", "webhook", "deletion watch"),
        *("reader of attempts", "reader of trails"),
        *("reader of groups", "reader of lists", "reader of members"),
        *(
            "reader of health",
            "deleter of groups",
            "deleter of slow groups",
            "announcer",
            "trail recorder",
            "writer",
            "writer",
            "history reader",
            "log tail",
        ),
        *("session hub", "commands", "subscriber"),
    ]
    assert order == started
    assert [
        *("commands", "subscriber", "session hub", "history reader", "log tail"),
        *("writer", "writer", *readers),
        *("deleter of groups", "deleter of slow groups"),
        *("sweeper", "deletion watch", "announcer", "trail recorder"),
        *("relay", "webhook", "nats connection"),
    ] == stopped
    assert [] == [t.get_name() for t in asyncio.all_tasks() if t.get_name().startswith("stretto ")]
