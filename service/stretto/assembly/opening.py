"""Opens a component: its connections, then its parts, put together here.

What a host hands in is checked before anything connects.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from stretto.assembly.component import Component
from stretto.assembly.host_bus import HostsBus
from stretto.assembly.host_options import (
    guarded,
    report_tracing,
    require_authorize,
    require_bus,
    require_hook,
    require_observer,
    require_one_source,
    require_signed,
    require_tracer_provider,
)
from stretto.assembly.host_pool import require_database, require_pool, sharing
from stretto.assembly.settings import ComponentSettings
from stretto.creation.age import AttemptAge
from stretto.creation.authorization import Authorization
from stretto.creation.baton import Baton
from stretto.creation.breakers import OwnerBreakers
from stretto.creation.creator import GroupCreator
from stretto.creation.hook_calls import HookCalls
from stretto.creation.lookup import AttemptLookup
from stretto.creation.reads import Reads
from stretto.creation.trail import TrailRecorder
from stretto.creation.writer import GroupWriter
from stretto.events.history_reader import Ask, HistoryReader, Stretch
from stretto.events.hub import SessionHub
from stretto.events.tail import Announcer, LogTail
from stretto.kinds import require_kind
from stretto.nats.opening import Bus, make_nats
from stretto.observations import AttemptStrayed, ConnectionLost, Observation
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.bus import PostgresBusStore
from stretto.postgres.connections import Database, Lane
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.hook_errors import without_row_data
from stretto.postgres.hosts_pool import PoolWatch
from stretto.postgres.log import PostgresLogStore, origin
from stretto.postgres.readiness import Readiness
from stretto.postgres.retention import RetentionSweeper, sweep
from stretto.postgres.tail import PostgresTail
from stretto.postgres.trail import PostgresTrailStore
from stretto.postgres.writes import PostgresWriteStore
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Runner
from stretto.setting import require_settings
from stretto.targets.relay import OutboxRelay
from stretto.telemetry.tracing import Tracing
from stretto.webhook.endpoint import WebhookEndpoint
from stretto.webhook.sender import WebhookSender
from stretto.webhook.store import PostgresWebhookStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from opentelemetry.trace import TracerProvider

    from stretto.creation.authorization import Authorize
    from stretto.creation.ports import Write, WriteResult
    from stretto.nats.opening import Nats
    from stretto.observations import Observer
    from stretto.postgres.driver_connection import Pool
    from stretto.postgres.hook import OnCreate
    from stretto.targets.bus import EventBus


def _unobserved(event: Observation) -> None:
    """Ignore the observation."""


@asynccontextmanager
async def open_component(  # noqa: PLR0913 a host names each of its options
    dsn: str = "",
    *,
    pool: Pool | None = None,
    settings: ComponentSettings | None = None,
    on_create: OnCreate | None = None,
    authorize: Authorize | None = None,
    observe: Observer = _unobserved,
    bus: EventBus | None = None,
    tracer_provider: TracerProvider | None = None,
) -> AsyncIterator[Component]:
    """Run the component on a database of its own connections, or on a host's pool.

    A host's pool needs `settings.writers` connections for good and three others, for each component
    that shares it, and a search_path that leads to the tables. Close it after this.

    Raises `TypeError` and `ConfigurationError` for what cannot work, such as names on NATS that are
    another deployment's, and `Unreachable` when the database does not answer.
    """
    settings = _component_settings(settings, dsn, pool, on_create)
    require_observer(observe)
    require_bus(bus)
    require_authorize(authorize)
    require_tracer_provider(tracer_provider)
    observe = guarded(observe)
    async with AsyncExitStack() as stack:
        if pool is not None:
            stack.enter_context(sharing(pool, settings.writers))
        database = await stack.enter_async_context(
            Database(dsn, schema=settings.db_schema, pool=pool)
        )
        await require_database(database, is_hosts_pool=pool is not None)
        runner = await stack.enter_async_context(Runner(observe))
        endpoint = None
        if settings.webhook.webhook_url:
            endpoint = await stack.enter_async_context(WebhookEndpoint(settings.webhook))
        component = put_together(
            Inputs(
                database,
                pool,
                await origin(database),
                runner,
                endpoint,
                bus,
                on_create,
                observe,
                None if tracer_provider is None else Tracing(tracer_provider, report_tracing),
                authorize,
            ),
            settings,
        )
        await stack.enter_async_context(component.creator)
        stack.push_async_callback(component.stop)
        await component.start()
        yield component


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

    def observe(observation: Observation) -> None:
        inputs.observe(observation)
        if isinstance(observation, AttemptStrayed):
            trail.note(observation)

    def on_lost() -> None:
        creator.forget()
        observe(ConnectionLost())

    mailbox: Mailbox[Write, WriteResult] = Mailbox(
        settings.mailbox_max, lambda write: write.new_group.owner
    )
    breakers = OwnerBreakers(observe)

    def others_wait() -> bool:
        # The requests of paused owners wait in any case, such as for a probe of their own.
        return mailbox.has_besides(breakers)

    hooks = HookCalls()
    write_stores = [
        PostgresWriteStore(database, on_lost, inputs.on_create, others_wait, hooks)
        for _ in range(settings.writers)
    ]
    reads = _reads(database, write_stores)
    authorization = None
    if inputs.authorize is not None:
        lease_seconds = settings.creator.lease_seconds
        authorization = Authorization(
            inputs.authorize, reads.attempts, lease_seconds, observe, without_row_data
        )
    creator = GroupCreator(
        *(mailbox, reads.attempts, settings.creator, observe),
        hooks=hooks,
        authorization=authorization,
    )
    age = AttemptAge(settings.first_sent_seconds_max)
    nats = _nats(inputs, settings, creator, age)
    relay = _relay(inputs, settings, nats)
    webhook = _webhook(inputs)
    hub = SessionHub(settings.hub, observe, tracing=inputs.tracing)
    tail_store = PostgresTail(database, uuid4())
    # The webhook is not among them: whichever process has written wakes its own sender.
    others = [relay.wake] if relay else []
    tail = LogTail(tail_store, hub, observe, is_unheard=database.is_shared, others=others)
    announcer = Announcer(tail_store.announce)
    # The readers of the log, which a writer wakes.
    wakes = [each.wake for each in (tail, announcer, relay, webhook) if each is not None]
    baton = Baton(mailbox)
    releases = [tail_store.close, *(store.release for store in write_stores)]
    asks: Mailbox[Ask, Stretch] = Mailbox(settings.hub.sessions_max)
    history_log = PostgresLogStore(partial(database.connection, Lane.HISTORY))
    return Component(
        creator=creator,
        lookup=AttemptLookup(reads.attempts, settings.creator.lease_seconds),
        reads=reads,
        age=age,
        database=database,
        mailbox=mailbox,
        hub=hub,
        history=asks,
        tail=tail,
        announcer=announcer,
        relay=relay,
        webhook=webhook,
        trail=trail,
        sweeper=RetentionSweeper(
            lambda progress: sweep(database.upkeep, settings.retention, None, progress), observe
        ),
        history_reader=HistoryReader(asks, history_log, observe),
        writers=[
            GroupWriter(
                baton, store, observe, batch_max=settings.batch_max, wakes=wakes, breakers=breakers
            )
            for store in write_stores
        ],
        write_stores=write_stores,
        pool_watch=None if inputs.pool is None else PoolWatch(inputs.pool.is_closing, releases),
        nats=nats,
        runner=inputs.runner,
        tracing=inputs.tracing,
    )


def _reads(database: Database, write_stores: Sequence[PostgresWriteStore]) -> Reads:
    check = Readiness(database, write_stores).check
    return Reads(PostgresAttemptStore(database), PostgresGroupStore(database), check)


def _webhook(inputs: Inputs) -> WebhookSender | None:
    if inputs.endpoint is None:
        return None
    store = PostgresWebhookStore(inputs.database)
    return WebhookSender(store, inputs.endpoint, inputs.observe, tracing=inputs.tracing)


def _nats(
    inputs: Inputs, settings: ComponentSettings, creator: GroupCreator, age: AttemptAge
) -> Nats | None:
    if not settings.nats_url:
        return None
    bus = Bus(settings.nats_url, settings.nats_prefix, inputs.origin, settings.nats)
    return make_nats(bus, creator, age, inputs.observe, inputs.tracing)


def _relay(inputs: Inputs, settings: ComponentSettings, nats: Nats | None) -> OutboxRelay | None:
    """Return what publishes the log; without a bus, of a host or of ours, there is none."""
    bus: EventBus | None = nats.events if nats else None
    if inputs.bus is not None:
        bus = HostsBus(inputs.bus)
    if bus is None:
        return None
    return OutboxRelay(
        PostgresBusStore(inputs.database),
        bus,
        inputs.observe,
        settings.relay,
        tracing=inputs.tracing,
    )


def _component_settings(
    given: ComponentSettings | None, dsn: str, pool: Pool | None, on_create: OnCreate | None
) -> ComponentSettings:
    """Return the settings, once everything that a host has handed in can work."""
    settings = ComponentSettings() if given is None else given
    require_one_source(dsn, pool)
    require_kind("settings", settings, ComponentSettings)
    require_settings(settings)
    require_signed(settings.webhook)
    require_hook(on_create)
    if pool is not None:
        require_pool(pool, settings.writers)
    return settings
