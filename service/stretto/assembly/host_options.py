"""Checks the options that a host hands in, before anything uses them.

A misspelt option, or a hook that is not a coroutine function, would otherwise fail the first
request, with an error that does not name the cause. Wrong kinds of arguments are `TypeError`s.
Values that do not fit together are a `ConfigurationError`, whose message says what to do.
"""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from aiohttp.web_urldispatcher import PrefixedSubAppResource

from stretto.kinds import require_kind
from stretto.start_errors import ConfigurationError
from stretto.telemetry.logs import logger
from stretto.telemetry.safe_calls import never_raising

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from aiohttp import web

    from stretto.observations import Observation, Observer
    from stretto.webhook.rules import WebhookSettings

# The characters of a path that need no encoding (RFC 3986, 3.3).
_PART_MARKS: Final = "-._~!$&'()*+,;=:@"
_PART: Final = re.compile(f"[A-Za-z0-9{re.escape(_PART_MARKS)}]+")


def require_options(
    options: Mapping[str, object], known: Collection[str], required: Collection[str]
) -> None:
    """Raise `TypeError` for an option that is not known, and for one that is missing."""
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            message = f"unknown option {name!r}: {advice}"
            raise TypeError(message)
    for name in required:
        if name not in options:
            message = f"the option {name!r} is needed"
            raise TypeError(message)


def require_tracer_provider(provider: object) -> None:
    """Raise `TypeError` unless it makes tracers, or there is none."""
    if provider is not None and not callable(getattr(provider, "get_tracer", None)):
        message = (
            "tracer_provider must be an opentelemetry.trace.TracerProvider, such as"
            f" trace.get_tracer_provider() returns, not {type(provider)!r}"
        )
        raise TypeError(message)


def require_observer(observe: object) -> None:
    """Raise `TypeError` unless it is a function of one observation that needs no `await`."""
    if not callable(observe) or _is_async(observe):
        message = (
            "observe must be a function of one event, and no async one: `def observe(event)`, not"
            f" {observe!r}"
        )
        raise TypeError(message)


def require_bus(bus: object) -> None:
    """Raise `TypeError` unless it has an async method `publish`."""
    if bus is not None and not _is_async(getattr(bus, "publish", None)):
        message = (
            "bus must be an object with `async def publish(self, events)`, which returns the reasons"
            f" of refused events by their ids, not {bus!r}"
        )
        raise TypeError(message)


def require_signed(webhook: WebhookSettings) -> None:
    """Raise `ConfigurationError` for a webhook without a secret: its events could be forged."""
    if webhook.webhook_url and not webhook.webhook_secret:
        raise ConfigurationError("WebhookSettings.webhook_url needs a webhook_secret")


def _is_async(function: object) -> bool:
    """Whether it is an async function, or an object that is called like one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 which kind?
    )


def require_hook(on_create: object) -> None:
    """Raise `TypeError` unless it is an async function, or an object that is called like one."""
    if on_create is None or _is_async(on_create):
        return
    message = (
        "on_create must be an async function of a connection and the created groups:"
        " `async def on_create(connection, created)`"
    )
    raise TypeError(message)


def require_authorize(authorize: object) -> None:
    """Raise `TypeError` unless it is an async function, or an object that is called like one."""
    if authorize is not None and not _is_async(authorize):
        message = (
            "authorize must be an async function of a new group, which returns or raises"
            f" GroupRejected: `async def authorize(new_group)`, not {authorize!r}"
        )
        raise TypeError(message)


def require_on_event(callback: object) -> None:
    """Raise `TypeError` unless it is an async function, or an object that is called like one."""
    if not _is_async(callback):
        message = (
            "on_event needs an async function of one event: `async def greet(event)`, not"
            f" {callback!r}"
        )
        raise TypeError(message)


def guarded(observe: Observer) -> Observer:
    """Return an observer that never raises: it is called in the middle of writes and of answers."""

    def report(error: BaseException, observation: Observation) -> None:
        logger.error("observer.failed", kind=type(observation).__name__, exc_info=error)

    return never_raising(observe, report)


def report_tracing(error: BaseException) -> None:
    """Log what the host's sampler or processor of spans has raised."""
    logger.error("tracing.failed", kind=type(error).__name__, exc_info=error)


def require_one_source(dsn: str, pool: object) -> None:
    """Raise `TypeError` unless there is either a `dsn` or a `pool`."""
    if dsn:
        require_kind("dsn", dsn, str)
    if bool(dsn) == (pool is not None):
        given = "both were given" if dsn else "neither was given"
        message = f"one of dsn and pool is needed: {given}"
        raise TypeError(message)


def require_free(app: web.Application, prefix: str) -> None:
    """Raise `ConfigurationError` if an application is mounted there: it would get every request."""
    mounted = (each for each in app.router.resources() if isinstance(each, PrefixedSubAppResource))
    if any(each.canonical == prefix for each in mounted):
        message = f"the prefix {prefix!r} is taken: mount each application below one of its own"
        raise ConfigurationError(message)


def require_prefix(prefix: str) -> None:
    """Raise `ConfigurationError` unless the prefix is a path that is sent as it is written.

    Any other would be found under another path, under none, or under one for each value of a
    pattern; and `Location` would lead nowhere.
    """
    require_kind("prefix", prefix, str)
    if not prefix.startswith("/") or prefix.endswith("/"):
        right = "/" + (prefix.strip("/") or "chat")
        message = f"the prefix {prefix!r} must begin with a slash and not end with one: {right!r}"
        raise ConfigurationError(message)
    parts = prefix[1:].split("/")
    if any(_PART.fullmatch(part) is None or part in {".", ".."} for part in parts):
        message = (
            f"the prefix {prefix!r} must be a path such as '/chat' or '/api/chat', without a pattern,"
            f" a query or an empty part: each part has letters, digits or {_PART_MARKS}, and is"
            " neither '.' nor '..'"
        )
        raise ConfigurationError(message)
