"""The contract as an aiohttp application: its own (`create_app`) or on a host's (`setup`)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

from aiohttp import web

from stretto.assembly.host_options import (
    require_authorize,
    require_hook,
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
from stretto.http.event_streams import StreamSettings
from stretto.http.service import Service
from stretto.http.tokens.authenticator import Authenticator, TokenSettings
from stretto.kinds import require_kind
from stretto.setting import require_settings
from stretto.telemetry.logs import flush_log, log_observation
from stretto.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from opentelemetry.trace import TracerProvider

    from stretto.assembly.component import Component
    from stretto.creation.authorization import Authorize
    from stretto.observations import Observation
    from stretto.postgres.driver_connection import Pool
    from stretto.postgres.hook import OnCreate
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
    streams: StreamSettings
    console: bool
    """Whether there is a console, at `/`; there is none unless it is asked for."""
    tracer_provider: TracerProvider | None
    """OpenTelemetry's; without one, nothing is traced."""


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

        has_host_code = not options.keys().isdisjoint({"on_create", "authorize"})
        stack = AsyncExitStack()
        # The last to leave: what the others say as they stop is counted until then.
        stack.callback(flush_log)
        async with (
            stack,
            Authenticator(options["tokens"], keeps_claims=has_host_code) as authenticator,
            open_component(
                options.get("dsn", ""),
                pool=pool_of(options["pool"]) if "pool" in options else None,
                settings=options.get("settings"),
                on_create=options.get("on_create"),
                authorize=options.get("authorize"),
                observe=observe,
                tracer_provider=options.get("tracer_provider"),
            ) as component,
        ):
            metrics.watch(_gauges(component))
            authenticator.on_withdrawn = component.hub.withdraw
            component.hub.on_tick = authenticator.refresh_keys
            yield Service(
                component.creator,
                component.lookup,
                component.reads,
                component.age,
                authenticator,
                metrics,
                component.hub,
                component.history,
                options.get("streams") or StreamSettings(),
                LoadShedder(component.mailbox, metrics.count_shed),
                asyncio.Event(),
                component.runner,
                component.tracing,
            )

    return build_app(open_service, has_console=options.get("console", False))


def setup(app: web.Application, prefix: str, **options: Unpack[AppOptions]) -> None:
    """Mount the contract on a host's application below `prefix` (such as "/chat").

    Raises `ConfigurationError` for another prefix, and as `create_app` does.
    """
    require_kind("app", app, web.Application)
    require_prefix(prefix)
    mounted = create_app(**options)
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
    require_tracer_provider(options.get("tracer_provider"))


def _gauges(component: Component) -> dict[str, Callable[[], Reading]]:
    """Return what reads the gauges of the table of telemetry."""
    creator, mailbox = component.creator, component.mailbox
    relay, webhook = component.relay, component.webhook
    build = version("stretto"), python_version()
    return {
        "stretto_build_info": lambda: {build: 1},
        "stretto_actor_up": lambda: component.runner.up,
        "stretto_flights": creator.flights_by_age,
        "stretto_outcomes": lambda: creator.outcomes,
        "stretto_mailbox_messages": lambda: len(mailbox),
        "stretto_sessions": lambda: len(component.hub),
        "stretto_relay_lag_seconds": lambda: round(relay.lag.seconds) if relay else 0,
        "stretto_webhook_lag_seconds": lambda: round(webhook.lag.seconds) if webhook else 0,
    }
