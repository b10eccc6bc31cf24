"""Turns observations into lines of the log. `docs/telemetry.md` is the contract.

A key or a token never gets here.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, assert_never

import orjson
import stamina.instrumentation
import structlog

from stretto.errors import HookError
from stretto.observations import (
    ActorCrashed,
    ActorRestarted,
    AttemptAnswered,
    BatchWritten,
    BusConnected,
    BusTrouble,
    CommandHandled,
    ConnectionLost,
    EventBuried,
    EventDelivered,
    EventsMissed,
    EventsRelayed,
    GuaranteeBroken,
    Observation,
    OwnerPaused,
    OwnerResumed,
    RowsSwept,
    SessionEnded,
    UpkeepTrouble,
    WebhookBlocked,
    WebhookDisabled,
    WebhookTried,
    WriteTrouble,
    kind_of,
)
from stretto.telemetry.log_folding import LogFolder
from stretto.telemetry.log_writer import LogWriter
from stretto.telemetry.safe_calls import SafeLogger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_folder: Final = LogFolder()
flush_log: Final = _folder.flush
# Events go through the standard library's logger, whatever a host has configured: a fallback of
# structlog's own would print local variables with a traceback, and among them tokens.
logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    SafeLogger(logging.getLogger("stretto")),
    processors=[_folder, structlog.stdlib.render_to_log_kwargs],
    wrapper_class=structlog.stdlib.BoundLogger,
    context_class=dict,
)


# Why nothing comes to the webhook's endpoint, and what an operator can do.
_WEBHOOK_STOPPED: Final[Mapping[type[Observation], tuple[str, Mapping[str, str]]]] = {
    WebhookDisabled: ("webhook.disabled", {}),
    WebhookBlocked: (
        "webhook.blocked",
        {
            "cause": "its address is not public",
            "remedy": "STRETTO_WEBHOOK_ALLOW_PRIVATE=true allows it",
        },
    ),
}

# Events of which there is nothing to say but that they happened.
_BARE: Final[Mapping[type[Observation], str]] = {
    ConnectionLost: "writer.connection_lost",
    EventsMissed: "bus.events_missed",
    OwnerResumed: "owner.resumed",
    BusConnected: "bus.connected",
}


def log_observation(event: Observation) -> None:
    """Log what an operator should know of; the normal case is only counted."""
    match event:
        # First, since it is what happens all the time.
        case (
            AttemptAnswered()
            | BatchWritten()
            | CommandHandled()
            | EventDelivered()
            | SessionEnded()
            | EventsRelayed()
            | WebhookTried()
            | RowsSwept()
        ):
            pass
        case WriteTrouble(error, writes):
            logger.warning(
                "write.trouble",
                kind=kind_of(error),
                cause=str(error),
                writes=writes,
                # The hook is the host's program: its traceback says where to mend it.
                exc_info=error.__cause__ if isinstance(error, HookError) else None,
            )
        case OwnerPaused(error, group_id, seconds):
            logger.warning(
                "owner.paused",
                kind=kind_of(error),
                cause=str(error),
                group_id=str(group_id),
                seconds=round(seconds, 1),
            )
        case ConnectionLost() | EventsMissed():
            logger.warning(_BARE[type(event)])
        case OwnerResumed() | BusConnected():
            logger.info(_BARE[type(event)])
        case GuaranteeBroken(group_id):
            logger.critical("guarantee.broken", guarantee="G4", group_id=str(group_id))
        case BusTrouble(cause):
            logger.warning("bus.trouble", cause=cause)
        case EventBuried(event_id, reason):
            logger.error("event.dead", event_id=str(event_id), reason=reason)
        case WebhookDisabled() | WebhookBlocked():
            name, fields = _WEBHOOK_STOPPED[type(event)]
            logger.error(name, **fields)
        case UpkeepTrouble(actor, error):
            logger.warning(
                "upkeep.trouble", actor=actor, kind=type(error).__name__, cause=str(error)
            )
        case ActorCrashed(actor, error):
            logger.error("actor.crashed", actor=actor, exc_info=error)
        case ActorRestarted(actor):
            logger.info("actor.restarted", actor=actor)
        case _:
            assert_never(event)


@contextmanager
def configured_logging(*, level: str, as_json: bool | None = None) -> Iterator[None]:
    """Log to stderr meanwhile: JSON lines, or coloured ones on a terminal."""
    # Retries are told as our own events.
    stamina.instrumentation.set_on_retry_hooks([])
    renderers: list[structlog.typing.Processor] = [
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    ]
    if as_json or (as_json is None and not sys.stderr.isatty()):
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(_json)]
    handler = LogWriter(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.stdlib.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _json(event: object, **_: object) -> str:
    return orjson.dumps(event, default=str).decode()
