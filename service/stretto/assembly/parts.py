"""Puts the parts of a component together; nothing runs yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from stretto.assembly.component import Component
from stretto.assembly.host_bus import HostsBus
from stretto.creation.age import AttemptAge
from stretto.creation.authorization import Authorization
from stretto.creation.baton import Baton
from stretto.creation.breakers import OwnerBreakers
from stretto.creation.creator import GroupCreator
from stretto.creation.deletion import GroupDeleter
from stretto.creation.flight import rejection_of
from stretto.creation.hook_calls import HookCalls
from stretto.creation.host_errors import last_raised
from stretto.creation.lookup import AttemptLookup
from stretto.creation.reads import Reads
from stretto.creation.trail import TrailRecorder
from stretto.creation.writer import GroupWriter, turns_of
from stretto.events.deletion_watch import DeletionWatch
from stretto.events.history_reader import HistoryReader
from stretto.events.hub import SessionHub
from stretto.events.subscriptions import Subscriptions
from stretto.events.tail import Announcer, LogTail
from stretto.nats.opening import Bus, make_nats
from stretto.observations import AttemptStrayed, ConnectionLost
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.hook_errors import without_row_data
from stretto.postgres.hosts_pool import PoolWatch
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.readiness import Readiness, rehearse_for_others
from stretto.postgres.retention import RetentionSweeper, sweep
from stretto.postgres.stalls import StepTimes
from stretto.postgres.tail import PostgresTail
from stretto.postgres.trail import PostgresTrailStore
from stretto.postgres.writes import PostgresWriteStore
from stretto.runtime.mailbox import Mailbox
from stretto.targets.doubted_relay import DoubtedRelay
from stretto.targets.relay import OutboxRelay
from stretto.webhook.sender import WebhookSender
from stretto.webhook.store import PostgresWebhookStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import CodeType

    from stretto.assembly.settings import ComponentSettings
    from stretto.creation.authorization import Authorize
    from stretto.creation.ports import Write, WriteResult
    from stretto.events.scan import Ask, Stretch
    from stretto.nats.opening import Nats
    from stretto.observations import Observation, Observer
    from stretto.postgres.connections import Database
    from stretto.postgres.driver_connection import Pool
    from stretto.postgres.hook import OnCreate
    from stretto.runtime.runner import Runner
    from stretto.targets.bus import EventBus
    from stretto.telemetry.tracing import Tracing
    from stretto.webhook.endpoint import WebhookEndpoint


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a component is put together from: connections, and what the host has handed in."""

    database: Database
    pool: Pool | None
    origin: str
    """Identifies the database."""
    runner: Runner
    endpoint: WebhookEndpoint | None
    bus: EventBus | None
    on_create: OnCreate | None
    observe: Observer
    tracing: Tracing | None = None
    authorize: Authorize | None = None


def put_together(inputs: Inputs, settings: ComponentSettings) -> Component:
    """Put the parts together; nothing runs yet."""
    database = inputs.database
    trail = TrailRecorder(PostgresTrailStore(database))
    observe = _noting(inputs.observe, trail)

    def on_lost() -> None:
        creator.forget()
        observe(ConnectionLost())

    mailbox: Mailbox[Write, WriteResult] = Mailbox(
        settings.mailbox_max, lambda write: write.new_group.owner, rejection_of, turns_of
    )
    breakers, hooks, times = OwnerBreakers(observe), HookCalls(), StepTimes()

    others_wait = partial(breakers.others_wait, mailbox)
    write_stores = [
        PostgresWriteStore(database, on_lost, inputs.on_create, others_wait, hooks, times)
        for _ in range(settings.writers)
    ]
    reads = _reads(database, write_stores)
    creator = GroupCreator(
        *(mailbox, reads.attempts, settings.creator, observe),
        hooks=hooks,
        authorization=_authorization(inputs, settings, reads, hooks),
    )
    age = AttemptAge(settings.first_sent_seconds_max)
    rehearse = partial(rehearse_for_others, database, write_stores)
    nats = _nats(inputs, settings, creator, age, rehearse)
    relay, webhook = _relay(inputs, settings, nats), _webhook(inputs)
    live = _live_readers(inputs, settings, relay)
    # The readers of the log, which a writer wakes.
    readers = (live.tail, live.announcer, live.subscriptions, relay, webhook)
    wakes = [each.wake for each in readers if each is not None]
    return Component(
        creator=creator,
        lookup=AttemptLookup(reads.attempts, settings.creator.lease_seconds, places=creator.places),
        deleter=_deleter(database, creator, wakes),
        deletion_watch=_deletion_watch(database, creator),
        reads=reads,
        age=age,
        database=database,
        mailbox=mailbox,
        hub=live.hub,
        history=live.history,
        tail=live.tail,
        announcer=live.announcer,
        subscriptions=live.subscriptions,
        relay=relay,
        webhook=webhook,
        trail=trail,
        sweeper=_sweeper(inputs, settings),
        history_reader=live.history_reader,
        writers=_writers(Baton(mailbox), write_stores, settings, observe, breakers, wakes),
        write_stores=write_stores,
        wakes=wakes,
        pool_watch=_pool_watch(inputs, live.tail, write_stores),
        nats=nats,
        runner=inputs.runner,
        tracing=inputs.tracing,
    )


def _noting(observe: Observer, trail: TrailRecorder) -> Observer:
    """Return an observer that also has trails keep what belongs there."""

    def observe_and_note(observation: Observation) -> None:
        observe(observation)
        if isinstance(observation, AttemptStrayed):
            trail.note(observation)

    return observe_and_note


def _deletion_watch(database: Database, creator: GroupCreator) -> DeletionWatch:
    log = PostgresLogStore(database.upkeep_with_writes, database.home)
    return DeletionWatch(log, creator.forget_group, creator.forget, creator.confirm)


def _authorization(
    inputs: Inputs, settings: ComponentSettings, reads: Reads, hooks: HookCalls
) -> Authorization | None:
    if inputs.authorize is None:
        return None
    lease_seconds = settings.creator.lease_seconds
    return Authorization(
        inputs.authorize, reads.attempts, lease_seconds, inputs.observe, without_row_data, hooks
    )


@dataclass(frozen=True, slots=True)
class _LiveReaders:
    """What reads the log from the present on: for sessions, and for the host."""

    hub: SessionHub
    history: Mailbox[Ask, Stretch]
    history_reader: HistoryReader
    tail: LogTail
    announcer: Announcer
    subscriptions: Subscriptions


def _live_readers(
    inputs: Inputs, settings: ComponentSettings, relay: OutboxRelay | None
) -> _LiveReaders:
    database, observe = inputs.database, inputs.observe
    hub = SessionHub(settings.hub, observe, tracing=inputs.tracing)
    store = PostgresTail(database, uuid4())
    # The webhook is not among them: whichever process has written wakes its own sender.
    others = [relay.wake] if relay else []
    tail = LogTail(store, hub, observe, is_unheard=database.is_shared, others=others)
    asks: Mailbox[Ask, Stretch] = Mailbox(settings.hub.sessions_max, lambda ask: ask.user)
    history_log = PostgresLogStore(partial(database.connection, Lane.HISTORY), database.home)
    return _LiveReaders(
        hub,
        asks,
        HistoryReader(asks, history_log, observe, hub.turns.catching_up),
        tail,
        Announcer(store.announce),
        Subscriptions(
            PostgresLogStore(database.upkeep, database.home),
            tail,
            inputs.runner,
            observe,
            _without_our_frames,
        ),
    )


def _without_our_frames(error: BaseException, entry: CodeType) -> BaseException | None:
    """Return what a host's code has raised, as a log may show it."""
    return without_row_data(last_raised(error, entry))


def _writers(
    baton: Baton,
    stores: Sequence[PostgresWriteStore],
    settings: ComponentSettings,
    observe: Observer,
    breakers: OwnerBreakers,
    wakes: Sequence[Callable[[], None]],
) -> Sequence[GroupWriter]:
    return [
        GroupWriter(
            baton, store, observe, batch_max=settings.batch_max, wakes=wakes, breakers=breakers
        )
        for store in stores
    ]


def _sweeper(inputs: Inputs, settings: ComponentSettings) -> RetentionSweeper:
    upkeep, retention = inputs.database.upkeep, settings.retention
    return RetentionSweeper(
        lambda progress: sweep(upkeep, retention, None, progress), inputs.observe
    )


def _pool_watch(
    inputs: Inputs, tail: LogTail, write_stores: Sequence[PostgresWriteStore]
) -> PoolWatch | None:
    if inputs.pool is None:
        return None
    releases = [tail.close, *(store.release for store in write_stores)]
    return PoolWatch(inputs.pool.is_closing, releases)


def _deleter(
    database: Database, creator: GroupCreator, wakes: Sequence[Callable[[], None]]
) -> GroupDeleter:
    store = PostgresDeletionStore(database)
    slow = GroupDeleter(store, creator.forget_group, wakes)
    return GroupDeleter(store, creator.forget_group, wakes, slow)


def _reads(database: Database, write_stores: Sequence[PostgresWriteStore]) -> Reads:
    check = Readiness(database, write_stores).check
    attempts, trails = PostgresAttemptStore(database), PostgresTrailStore(database)
    return Reads(attempts, trails, PostgresGroupStore(database), check)


def _webhook(inputs: Inputs) -> WebhookSender | None:
    if (endpoint := inputs.endpoint) is None:
        return None
    store = PostgresWebhookStore(inputs.database, endpoint.url_digest, observe=inputs.observe)
    return WebhookSender(store, endpoint, inputs.observe, tracing=inputs.tracing)


def _nats(
    inputs: Inputs,
    settings: ComponentSettings,
    creator: GroupCreator,
    age: AttemptAge,
    rehearse: Callable[[str], Awaitable[None]],
) -> Nats | None:
    if not settings.nats_url:
        return None
    bus = Bus(settings.nats_url, settings.nats_prefix, inputs.origin, settings.nats)
    return make_nats(bus, creator, age, inputs.observe, inputs.tracing, rehearse=rehearse)


def _relay(inputs: Inputs, settings: ComponentSettings, nats: Nats | None) -> OutboxRelay | None:
    """Return what publishes the log; without a bus, of a host or of ours, there is none."""
    observe = inputs.observe
    store = PostgresBusStore(inputs.database, observe=observe)
    if inputs.bus is not None:
        hosts = HostsBus(inputs.bus, observe, settings.relay.relay_lease_seconds)
        return DoubtedRelay(store, hosts, observe, settings.relay, tracing=inputs.tracing)
    if nats is None:
        return None
    return OutboxRelay(store, nats.events, observe, settings.relay, tracing=inputs.tracing)
