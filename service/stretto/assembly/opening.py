"""Opens a component: its connections, then its parts.

What a host hands in is checked before anything connects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
from stretto.assembly.parts import Inputs, put_together
from stretto.assembly.settings import ComponentSettings
from stretto.kinds import require_kind
from stretto.postgres.connections import Database
from stretto.runtime.opening import Opening
from stretto.runtime.runner import Runner
from stretto.setting import require_settings
from stretto.telemetry.logs import flush_log, log_observation
from stretto.telemetry.tracing import Tracing
from stretto.webhook.endpoint import WebhookEndpoint

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager, AsyncExitStack

    from opentelemetry.trace import TracerProvider

    from stretto.assembly.component import Component
    from stretto.creation.authorization import Authorize
    from stretto.observations import Observer
    from stretto.postgres.driver_connection import Pool
    from stretto.postgres.hook import OnCreate
    from stretto.targets.bus import EventBus


def open_component(  # noqa: PLR0913 a host names each of its options
    dsn: str = "",
    *,
    pool: Pool | None = None,
    settings: ComponentSettings | None = None,
    on_create: OnCreate | None = None,
    authorize: Authorize | None = None,
    observe: Observer = log_observation,
    bus: EventBus | None = None,
    tracer_provider: TracerProvider | None = None,
) -> AbstractAsyncContextManager[Component]:
    """Run the component on a database of its own connections, or on a host's pool.

    A host's pool needs `settings.writers` connections for good and three others, for each component
    that shares it, and a search_path that leads to the tables. Close it after this.

    What it observes is logged (logger `stretto`), unless there is another `observe`.

    Raises `TypeError` and `ConfigurationError` for what cannot work, such as names on NATS that are
    another deployment's, and `Unreachable` when the database does not answer.
    """

    async def enter(stack: AsyncExitStack) -> Component:
        chosen = _component_settings(settings, dsn, pool, on_create)
        require_observer(observe)
        require_bus(bus)
        require_authorize(authorize)
        require_tracer_provider(tracer_provider)
        report = guarded(observe)
        # The last: what the parts report as they stop may still be counted for a line.
        stack.callback(flush_log)
        if pool is not None:
            stack.enter_context(sharing(pool, chosen.writers))
        database = await stack.enter_async_context(
            Database(dsn, schema=chosen.db_schema, pool=pool, observe=report)
        )
        mark = await require_database(database, is_hosts_pool=pool is not None)
        runner = await stack.enter_async_context(Runner(report))
        endpoint = None
        if chosen.webhook.webhook_url:
            endpoint = await stack.enter_async_context(WebhookEndpoint(chosen.webhook))
        component = put_together(
            Inputs(
                database,
                pool,
                mark,
                runner,
                endpoint,
                bus,
                on_create,
                report,
                None if tracer_provider is None else Tracing(tracer_provider, report_tracing),
                authorize,
            ),
            chosen,
        )
        await stack.enter_async_context(component.creator)
        stack.push_async_callback(component.stop)
        await component.start()
        return component

    return Opening(enter)


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
