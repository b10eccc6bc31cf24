"""Puts the parts together and takes them apart again, in a fixed order.

Start: connections, bus, relay, sweeper, webhook, readers, writers, history reader, hub, commands, the watch
of a host's pool, then the HTTP server. Stop, the other way round:

1. the service drains: `/readyz` is 503, all else is served, and each connection ends with its next
   answer (for `STRETTO_DRAIN_SECONDS`; `server.py`);
2. the server stops listening, and closes the connections on which no request has come;
3. commands are taken no more; those under way are settled and acknowledged (bounded);
4. the hub sends its sessions away (1001) and waits until they have gone (bounded);
5. the history reader stops; sessions that still ask are answered with an error;
6. the creator rejects new requests and lets its flights finish (bounded);
7. the mailbox closes: what is still queued is answered with an error;
8. the watch of a host's pool ends, and the writers give their connections back; a write that is still
   under way is cut off;
9. the readers stop; what still waits for them is answered with an error;
10. relay, sweeper and webhook stop; events that were being sent are given back;
11. the bus closes;
12. the pool closes, unless it is the host's;
13. the server waits until all that was read is answered (bounded), and closes the connections that
    are left.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Required, TypedDict, Unpack

from aiohttp import web

from stretto.creation.breakers import OwnerBreakers
from stretto.creation.creator import CreatorSettings, GroupCreator
from stretto.creation.lookup import AttemptLookup
from stretto.creation.reads import Reads
from stretto.creation.writer import GroupWriter
from stretto.errors import ListenError, StoreError
from stretto.events.event import BUS_PREFIX
from stretto.events.history_reader import Ask, HistoryReader, Stretch
from stretto.events.hub import HubSettings, SessionHub
from stretto.events.local_bus import LocalBus
from stretto.events.relay import OutboxRelay, RelaySettings
from stretto.host import (
    guarded,
    pool_of,
    require_bus,
    require_database,
    require_hook,
    require_kind,
    require_observer,
    require_one_source,
    require_options,
    require_pool,
    require_positive,
    require_prefix,
    require_schema,
    sharing,
)
from stretto.http.admission import LoadShedder
from stretto.http.app import build_app
from stretto.http.event_streams import StreamSettings
from stretto.http.front.limits import ConnectionLimits
from stretto.http.front.runner import ContractRunner
from stretto.http.service import Service
from stretto.http.tokens.authenticator import Authenticator, TokenSettings
from stretto.nats.opening import Bus, make_nats
from stretto.observations import ConnectionLost, Observation
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.connections import Database
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.history import PostgresHistoryStore
from stretto.postgres.hosts_pool import PoolWatch
from stretto.postgres.outbox import PostgresOutboxStore
from stretto.postgres.readiness import Readiness
from stretto.postgres.retention import Retention, RetentionSweeper, sweep
from stretto.postgres.writes import PostgresWriteStore
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Runner
from stretto.telemetry.logs import flush_log, log_observation
from stretto.telemetry.metrics import Metrics
from stretto.webhook.endpoint import WebhookEndpoint
from stretto.webhook.rules import WebhookSettings, parse_secrets
from stretto.webhook.sender import WebhookSender
from stretto.webhook.store import PostgresWebhookStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from stretto.config import Settings
    from stretto.creation.ports import Write, WriteResult
    from stretto.events.event import EventBus
    from stretto.nats.opening import Nats
    from stretto.observations import Observer
    from stretto.postgres.driver_connection import Pool
    from stretto.postgres.hook import OnCreate

# Longer than a load balancer's own time-out, so that it is never us who closes under a request.
KEEP_ALIVE_SECONDS: Final = 75.0
# Connections that the kernel accepts while the loop is busy. Where it has no room for one, a client
# that takes itself for connected is reset as it sends its request. The kernel lowers it to `somaxconn`.
BACKLOG_CONNECTIONS: Final = 4096
# After the flights have landed only answers are left to be sent.
HANDLERS_STOP_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSettings:
    """How the component behaves inside any program."""

    creator: CreatorSettings = field(default_factory=CreatorSettings)
    writers: int = 2
    """While one waits for the disk, the other fills its batch."""
    batch_max: int = 128
    """Requests per statement: beyond this, latency grows faster than throughput."""
    mailbox_max: int = 1024
    """Requests that may queue; more are shed before they claim anything."""
    schema: str = "stretto"
    hub: HubSettings = field(default_factory=HubSettings)
    nats_url: str = field(default="", repr=False)
    """Carries events to other replicas and commands to us; empty: neither."""
    nats_prefix: str = BUS_PREFIX
    """What our names on NATS begin with: no two databases on one NATS account may share it."""
    relay: RelaySettings = field(default_factory=RelaySettings)
    webhook: WebhookSettings | None = None
    """Where else every event is sent."""
    retention: Retention = field(default_factory=Retention)

    @classmethod
    def of(cls, settings: Settings) -> ComponentSettings:
        """Return the component's part of the service's settings."""
        return cls(
            creator=CreatorSettings(
                lease_seconds=settings.lease_seconds, rate_per_owner=settings.rate_limit
            ),
            writers=settings.writers,
            batch_max=settings.batch_max,
            mailbox_max=settings.mailbox_max,
            schema=settings.db_schema,
            nats_url=settings.nats_url,
            nats_prefix=settings.nats_prefix,
            hub=HubSettings(
                sessions_max=settings.sessions_max,
                sessions_per_user_max=settings.sessions_per_user,
                events_max=settings.session_events_max,
            ),
            relay=RelaySettings(lease_seconds=settings.relay_lease_seconds),
            webhook=_webhook_settings(settings),
            retention=Retention(settings.retention_days, settings.event_retention_days),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A running stretto without HTTP: `creator.create` is what it is for."""

    creator: GroupCreator
    lookup: AttemptLookup
    reads: Reads
    database: Database
    mailbox: Mailbox[Write, WriteResult]
    hub: SessionHub
    history: Mailbox[Ask, Stretch]
    relay: OutboxRelay
    webhook: WebhookSender | None
    sweeper: RetentionSweeper
    history_reader: HistoryReader
    writers: Sequence[GroupWriter]
    write_stores: Sequence[PostgresWriteStore]
    """The writers' connections."""
    pool_watch: PoolWatch | None
    """Of a host's pool."""
    nats: Nats | None
    runner: Runner
    """Runs all of these, and knows which of them do."""

    async def start(self) -> None:
        """Start what runs, in the order of the module's list.

        Vital is what a request waits for. Groups are created without relay, sweeper, webhook, commands
        and bus as well, and sending the requests elsewhere would not mend those.
        """
        start = self.runner.start
        if self.nats is not None:
            start(self.nats.connection)
            start(self.nats.events)
            await self.nats.events.ready()
        start(self.relay)
        start(self.sweeper)
        if self.webhook is not None:
            await self.webhook.open()
            start(self.webhook)
        for reader in self.reads.readers:
            start(reader, is_vital=True)
        for writer, store in zip(self.writers, self.write_stores, strict=True):
            with suppress(StoreError):
                await store.open()
            start(writer, is_vital=True)
        start(self.history_reader, is_vital=True)
        start(self.hub)
        if self.nats is not None:
            start(self.nats.commands)
        if self.pool_watch is not None:
            start(self.pool_watch)

    async def stop(self) -> None:
        """Take the steps 3 to 11 of the module's list, each whatever has become of those before.

        Also where the start has not come to its end.
        """
        stop, nats, webhook = self.runner.stop, self.nats, self.webhook
        steps: tuple[Callable[[], Awaitable[None]], ...] = (
            partial(stop, *([nats.commands] if nats else [])),  # 3
            partial(stop, self.hub),  # 4
            partial(stop, self.history_reader),  # 5
            self.creator.stop,  # 6
            self._close_mailbox,  # 7
            partial(stop, *([self.pool_watch] if self.pool_watch else []), *self.writers),  # 8
            partial(stop, *self.reads.readers),  # 9
            partial(stop, self.relay, self.sweeper, *([webhook] if webhook else [])),  # 10
            partial(stop, *([nats.events, nats.connection] if nats else [])),  # 11
        )
        async with AsyncExitStack() as stack:
            for step in reversed(steps):
                stack.push_async_callback(step)

    async def _close_mailbox(self) -> None:
        self.mailbox.close()


def _unobserved(event: Observation) -> None:
    """Take no note."""


@asynccontextmanager
async def open_component(
    dsn: str = "",
    *,
    pool: Pool | None = None,
    settings: ComponentSettings | None = None,
    on_create: OnCreate | None = None,
    observe: Observer = _unobserved,
    bus: EventBus | None = None,
) -> AsyncIterator[Component]:
    """Run the component on a database of its own connections, or on a host's pool.

    A host's pool needs `settings.writers` connections for good and two for short reads, for each
    component that shares it, and a search_path that leads to the tables. Close it after this.

    Raises `TypeError` and `ConfigurationError` for what cannot work, such as names on NATS that are
    another deployment's, and `Unreachable` when the database does not answer.
    """
    settings = _component_settings(settings, dsn, pool, on_create)
    require_observer(observe)
    require_bus(bus)
    observe = guarded(observe)
    async with AsyncExitStack() as stack:
        if pool is not None:
            stack.enter_context(sharing(pool, settings.writers))
        database = await stack.enter_async_context(Database(dsn, schema=settings.schema, pool=pool))
        await require_database(database, is_hosts_pool=pool is not None)
        runner = await stack.enter_async_context(Runner(observe))
        endpoint = None
        if settings.webhook is not None:
            endpoint = await stack.enter_async_context(WebhookEndpoint(settings.webhook))
        history = PostgresHistoryStore(database)
        await history.open()
        hub = SessionHub(await history.origin(), settings.hub, observe)
        component = _component(
            _Outside(database, pool, runner, history, endpoint, bus, on_create, observe),
            hub,
            settings,
        )
        await stack.enter_async_context(component.creator)
        stack.push_async_callback(component.stop)
        await component.start()
        yield component


@dataclass(frozen=True, slots=True)
class _Outside:
    """What a component is put together from: the world's parts, and the host's."""

    database: Database
    pool: Pool | None
    runner: Runner
    history: PostgresHistoryStore
    endpoint: WebhookEndpoint | None
    bus: EventBus | None
    on_create: OnCreate | None
    observe: Observer


def _component(outside: _Outside, hub: SessionHub, settings: ComponentSettings) -> Component:
    """Put the parts together; nothing runs yet."""
    database, observe = outside.database, outside.observe
    write_stores: list[PostgresWriteStore] = []
    reads = Reads(
        PostgresAttemptStore(database),
        PostgresGroupStore(database),
        Readiness(database, write_stores).check,
    )
    mailbox: Mailbox[Write, WriteResult] = Mailbox(settings.mailbox_max)
    creator = GroupCreator(mailbox, reads.attempts, settings.creator, observe)
    nats = _nats(settings, hub, creator, observe)
    relay = OutboxRelay(
        PostgresOutboxStore(database),
        outside.bus or (nats.events if nats else LocalBus(hub.deliver)),
        observe,
        settings.relay,
    )
    webhook = None
    if outside.endpoint is not None:
        webhook = WebhookSender(PostgresWebhookStore(database), outside.endpoint, observe)

    def on_lost() -> None:
        creator.forget()
        observe(ConnectionLost())

    breakers = OwnerBreakers(observe)

    def writer() -> GroupWriter:
        """Return one that wakes those who read the outbox."""
        store = PostgresWriteStore(database, on_lost, outside.on_create)
        write_stores.append(store)
        wakes = [each.wake for each in (relay, webhook) if each is not None]
        return GroupWriter(
            mailbox,
            store,
            observe,
            batch_max=settings.batch_max,
            wakes=wakes,
            breakers=breakers,
        )

    writers = [writer() for _ in range(settings.writers)]
    watch = None
    if outside.pool is not None:
        watch = PoolWatch(outside.pool.is_closing, [store.release for store in write_stores])
    asks: Mailbox[Ask, Stretch] = Mailbox(settings.hub.sessions_max)
    return Component(
        creator=creator,
        lookup=AttemptLookup(reads.attempts, settings.creator.lease_seconds),
        reads=reads,
        database=database,
        mailbox=mailbox,
        hub=hub,
        history=asks,
        relay=relay,
        webhook=webhook,
        sweeper=RetentionSweeper(
            lambda progress: sweep(database.upkeep, settings.retention, None, progress), observe
        ),
        history_reader=HistoryReader(asks, outside.history, hub.origin, observe),
        writers=writers,
        write_stores=write_stores,
        pool_watch=watch,
        nats=nats,
        runner=outside.runner,
    )


def _nats(
    settings: ComponentSettings, hub: SessionHub, creator: GroupCreator, observe: Observer
) -> Nats | None:
    if not settings.nats_url:
        return None
    bus = Bus(settings.nats_url, settings.nats_prefix, hub.origin)
    return make_nats(bus, hub.deliver, hub.interrupt, creator, observe)


class AppOptions(TypedDict, total=False):
    """What a host says when it mounts the contract; `tokens` and one of `dsn`, `pool` are needed."""

    tokens: Required[TokenSettings]
    dsn: str
    pool: Callable[[], Pool]
    """Called when the application starts: a host's pool is seldom there any earlier."""
    settings: ComponentSettings
    on_create: OnCreate
    streams: StreamSettings


def create_app(**options: Unpack[AppOptions]) -> web.Application:
    """Return an application that serves the whole contract; `setup` mounts it on another.

    Raises `TypeError` for options that cannot be meant.
    """
    _require_options(options)

    @asynccontextmanager
    async def open_service() -> AsyncIterator[Service]:
        metrics = Metrics()

        def observe(event: Observation) -> None:
            metrics.observe(event)
            log_observation(event)

        stack = AsyncExitStack()
        # The last to leave: what the others say as they stop is counted until then.
        stack.callback(flush_log)
        async with (
            stack,
            Authenticator(options["tokens"]) as authenticator,
            open_component(
                options.get("dsn", ""),
                pool=pool_of(options["pool"]) if "pool" in options else None,
                settings=options.get("settings"),
                on_create=options.get("on_create"),
                observe=observe,
            ) as component,
        ):
            metrics.watch(_gauges(component), lambda: component.runner.up)
            yield Service(
                component.creator,
                component.lookup,
                component.reads,
                authenticator,
                metrics,
                component.hub,
                component.history,
                options.get("streams") or StreamSettings(),
                LoadShedder(component.mailbox, metrics.count_shed),
                asyncio.Event(),
                component.runner,
            )

    return build_app(open_service)


def setup(app: web.Application, prefix: str, **options: Unpack[AppOptions]) -> None:
    """Mount the contract on a host's application below `prefix` (such as "/chat").

    Raises `ConfigurationError` for another prefix, and as `create_app` does.
    """
    require_prefix(prefix)
    mounted = create_app(**options)
    app.add_subapp(prefix, mounted)

    async def clean_up(_: web.Application) -> AsyncIterator[None]:
        yield
        # Where the host's own start fails, aiohttp cleans up the host alone.
        await mounted.shutdown()

    app.cleanup_ctx.append(clean_up)


@asynccontextmanager
async def serving(
    app: web.Application,
    *,
    host: str,
    port: int,
    share_port: bool = False,
    limits: ConnectionLimits | None = None,
) -> AsyncIterator[int]:
    """Serve the application; yields the port. Raises `ListenError`."""
    runner = ContractRunner(
        app,
        limits or ConnectionLimits(),
        # A client that hangs up frees its waiter; the flight goes on without it.
        handler_cancellation=True,
        keepalive_timeout=KEEP_ALIVE_SECONDS,
        shutdown_timeout=HANDLERS_STOP_SECONDS,
        access_log=None,
    )
    try:
        await runner.setup()
        site = web.TCPSite(
            runner,
            host,
            port,
            backlog=BACKLOG_CONNECTIONS,
            reuse_address=True,
            reuse_port=share_port or None,
        )
        try:
            await site.start()
        except OSError as error:
            message = f"cannot listen on {host}:{port} ({error.strerror}); choose another port"
            raise ListenError(message) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _component_settings(
    given: ComponentSettings | None, dsn: str, pool: Pool | None, on_create: OnCreate | None
) -> ComponentSettings:
    """Return the settings, once everything that a host has handed in can work."""
    settings = ComponentSettings() if given is None else given
    require_one_source(dsn, pool)
    require_kind("settings", settings, ComponentSettings)
    require_positive(
        writers=settings.writers, batch_max=settings.batch_max, mailbox_max=settings.mailbox_max
    )
    require_schema(settings.schema)
    require_hook(on_create)
    if pool is not None:
        require_pool(pool, settings.writers)
    return settings


def _require_options(options: AppOptions) -> None:
    require_options(options, known=tuple(AppOptions.__annotations__), required=("tokens",))
    require_one_source(options.get("dsn", ""), options.get("pool"))
    require_kind("tokens", options["tokens"], TokenSettings)
    if "settings" in options:
        require_kind("settings", options["settings"], ComponentSettings)
    if "streams" in options:
        require_kind("streams", options["streams"], StreamSettings)
    if "pool" in options and not callable(options["pool"]):
        message = "pool must be a function that returns the pool: `pool=lambda: app[POOL]`"
        raise TypeError(message)
    require_hook(options.get("on_create"))


def _gauges(component: Component) -> dict[str, tuple[str, Callable[[], int]]]:
    creator, mailbox = component.creator, component.mailbox
    return {
        "stretto_flights": ("Keys in flight.", lambda: creator.flights),
        "stretto_outcomes": ("Settled attempts remembered.", lambda: creator.outcomes),
        "stretto_mailbox_messages": ("Writes that wait for a writer.", lambda: len(mailbox)),
        "stretto_sessions": ("Live sessions.", lambda: len(component.hub)),
        "stretto_relay_lag_seconds": (
            "Age of the oldest event that is not on the bus yet.",
            lambda: round(component.relay.lag.seconds),
        ),
        "stretto_webhook_lag_seconds": (
            "Age of the oldest event that the webhook's endpoint still has to get.",
            lambda: round(component.webhook.lag.seconds) if component.webhook else 0,
        ),
    }


def _webhook_settings(settings: Settings) -> WebhookSettings | None:
    if not settings.webhook_url:
        return None
    return WebhookSettings(
        url=settings.webhook_url,
        secrets=parse_secrets(settings.webhook_secret),
        is_private_allowed=settings.webhook_allow_private,
    )
