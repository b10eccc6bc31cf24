"""The contract as an aiohttp application: its own (`create_app`) or on a host's (`setup`)."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

from aiohttp import web

from stretto.assembly.handle import Handle
from stretto.assembly.host_options import (
    require_authorize,
    require_bus,
    require_free,
    require_hook,
    require_observer,
    require_one_source,
    require_options,
    require_prefix,
    require_tracer_provider,
)
from stretto.assembly.host_pool import pool_of
from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.http.admission import LoadShedder
from stretto.http.app import build_app
from stretto.http.cors import Cors
from stretto.http.service import Service
from stretto.http.settings import StreamSettings
from stretto.http.tokens.authenticator import Authenticator
from stretto.http.tokens.settings import TokenSettings
from stretto.kinds import require_kind
from stretto.misuse import NotStarted
from stretto.runtime.opening import Opening
from stretto.setting import require_settings
from stretto.telemetry.logs import flush_log, log_observation
from stretto.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from contextlib import AsyncExitStack

    from opentelemetry.trace import TracerProvider

    from stretto.assembly.component import Component
    from stretto.creation.authorization import Authorize
    from stretto.observations import Observation, Observer
    from stretto.postgres.driver_connection import Pool
    from stretto.postgres.hook import OnCreate
    from stretto.targets.bus import EventBus
    from stretto.targets.lag import Lag
    from stretto.telemetry.metrics import Reading


class AppOptions(TypedDict, total=False):
    """What a host says when it mounts the contract; needs `tokens`, and `dsn` or `pool`."""

    tokens: Required[TokenSettings]
    dsn: str
    pool: Callable[[], Pool]
    """Called when the application starts: a host's pool is seldom there any earlier."""
    settings: ComponentSettings
    on_create: OnCreate
    authorize: Authorize
    observe: Observer
    """Gets what is else logged; metrics are kept in any case."""
    bus: EventBus
    """Of the host's own: gets each event at least once."""
    streams: StreamSettings
    console: bool
    """Whether there is a console, at `/`; there is none unless it is asked for."""
    tracer_provider: TracerProvider | None
    """OpenTelemetry's; without one, nothing is traced."""


class Mounted(Handle):
    """The component of an application; it runs from the application's start to its shutdown."""

    def __init__(self) -> None:
        self.component: Component | None = None
        """None before the start."""

    @property
    def _running(self) -> Component:
        if self.component is None:
            raise NotStarted
        return self.component


def create_app(**options: Unpack[AppOptions]) -> web.Application:
    """Return an application that serves the whole contract; `setup` mounts it on another.

    Raises `TypeError` for options that cannot be meant.
    """
    return _make_app(options, Mounted())


def _make_app(options: AppOptions, mounted: Mounted) -> web.Application:
    _require_options(options)
    report = options.get("observe", log_observation)

    async def enter(stack: AsyncExitStack) -> Service:
        metrics = Metrics()

        def observe(event: Observation) -> None:
            metrics.observe(event)
            report(event)

        streams = options.get("streams") or StreamSettings()
        has_host_code = not options.keys().isdisjoint({"on_create", "authorize"})
        # The last to leave: what the others say as they stop is counted until then.
        stack.callback(flush_log)
        authenticator = await stack.enter_async_context(
            Authenticator(options["tokens"], keeps_claims=has_host_code)
        )
        component = await stack.enter_async_context(
            open_component(
                options.get("dsn", ""),
                pool=pool_of(options["pool"]) if "pool" in options else None,
                settings=options.get("settings"),
                on_create=options.get("on_create"),
                authorize=options.get("authorize"),
                observe=observe,
                bus=options.get("bus"),
                tracer_provider=options.get("tracer_provider"),
            )
        )
        metrics.watch(_gauges(component))
        authenticator.on_withdrawn = component.hub.withdraw
        component.hub.on_tick = authenticator.refresh_keys
        mounted.component = component
        return Service(
            component.creator,
            component.lookup,
            component.deleter,
            component.reads,
            component.age,
            authenticator,
            metrics,
            component.hub,
            component.history,
            streams,
            Cors(streams.origins),
            LoadShedder(component.mailbox, metrics.count_shed),
            asyncio.Event(),
            component.runner,
            component.tracing,
        )

    return build_app(lambda: Opening(enter), has_console=options.get("console", False))


def setup(app: web.Application, prefix: str, **options: Unpack[AppOptions]) -> Handle:
    """Mount the contract on a host's application below `prefix` (such as "/chat").

    Return the component for the host's own code: it runs once the application has started.
    Raises `ConfigurationError` for another prefix, or one that is taken, and as `create_app` does.
    """
    require_kind("app", app, web.Application)
    require_prefix(prefix)
    require_free(app, prefix)
    handle = Mounted()
    mounted = _make_app(options, handle)
    app.add_subapp(prefix, mounted)

    async def stop(_: web.Application) -> None:
        await mounted.shutdown()

    async def clean_up(_: web.Application) -> AsyncIterator[None]:
        yield
        # Where the host's own start fails, aiohttp cleans up the host alone.
        await mounted.shutdown()

    # First: of the host's handlers, one that raises keeps aiohttp from calling those behind it, and
    # one that closes what we use must not run while requests are under way.
    app.on_shutdown.insert(0, stop)
    app.cleanup_ctx.append(clean_up)
    return handle


def _require_options(options: AppOptions) -> None:
    require_options(options, known=tuple(AppOptions.__annotations__), required=("tokens",))
    require_one_source(options.get("dsn", ""), options.get("pool"))
    kinds = {"tokens": TokenSettings, "settings": ComponentSettings, "streams": StreamSettings}
    given: Mapping[str, object] = {**options}
    for name in kinds.keys() & given.keys():
        require_kind(name, given[name], kinds[name])
        require_settings(given[name])
    if "pool" in options and not callable(options["pool"]):
        message = "pool must be a function that returns the pool: `pool=lambda: app[POOL]`"
        raise TypeError(message)
    require_kind("console", options.get("console", False), bool)
    require_hook(options.get("on_create"))
    require_authorize(options.get("authorize"))
    require_observer(options.get("observe", log_observation))
    require_bus(options.get("bus"))
    require_tracer_provider(options.get("tracer_provider"))


def _ages(lag: Lag) -> Reading:
    seconds = lag.seconds
    return {} if seconds is None else {(): round(seconds)}


def _gauges(component: Component) -> dict[str, Callable[[], Reading]]:
    """Return what reads the gauges of the table of telemetry."""
    creator, mailbox = component.creator, component.mailbox
    relay, webhook = component.relay, component.webhook
    build = version("stretto"), python_version()
    # Without a bus there is no lag: 0 would hide that of the instances that have one. So with a webhook,
    # and while an instance cannot ask its database.
    lags: dict[str, Callable[[], Reading]] = {}
    if relay:
        lags["stretto_relay_lag_seconds"] = lambda: _ages(relay.lag)
    if webhook:
        lags["stretto_webhook_lag_seconds"] = lambda: _ages(webhook.lag)
    return {
        "stretto_build_info": lambda: {build: 1},
        "stretto_actor_up": lambda: component.runner.up,
        "stretto_flights": creator.flights_by_age,
        "stretto_outcomes": lambda: creator.outcomes,
        "stretto_mailbox_messages": lambda: len(mailbox),
        "stretto_sessions": lambda: len(component.hub),
        "stretto_webhook_disabled": lambda: int(webhook.is_disabled) if webhook else 0,
        **lags,
    }
