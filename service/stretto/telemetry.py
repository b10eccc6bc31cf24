"""Turns what happens into metrics and log events. `docs/telemetry.md` is the contract.

One adapter per sink; the protocol knows neither. A key or a token never gets here.
"""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, assert_never

import orjson
import stamina.instrumentation
import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from stretto.log_folding import LogFolder
from stretto.log_writer import LogWriter, dropped_lines
from stretto.observations import ActorCrashed, ActorRestarted, UpkeepTrouble, kind_of
from stretto.protocol.ports import (
    AttemptAnswered,
    BatchWritten,
    BusConnected,
    BusTrouble,
    CommandHandled,
    ConnectionLost,
    Event,
    EventBuried,
    EventDelivered,
    EventsMissed,
    EventsRelayed,
    GuaranteeBroken,
    HookError,
    OwnerPaused,
    OwnerResumed,
    RowsSwept,
    SessionEnded,
    WebhookBlocked,
    WebhookDisabled,
    WebhookTried,
    WriteTrouble,
)
from stretto.safe_log import SafeLogger
from stretto.tally import SECONDS, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_WRITES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

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


class Metrics:
    """What `/metrics` shows, in a registry of its own, so that a host's names stay the host's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tally = Tally()
        self.registry.register(self._tally)
        self.registry.register(_LogLines())
        self.count_request = self._tally.count_request
        self.count_shed = self._tally.count_shed
        self._batch_writes = Histogram(
            "stretto_batch_writes",
            "Writes per batch.",
            buckets=_WRITES,
            registry=self.registry,
        )
        self._batch_seconds = Histogram(
            "stretto_batch_seconds",
            "From a batch's claim to its last answer.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._trouble = Counter(
            "stretto_write_trouble_total",
            "Writes that did not go through at once, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._owner_pauses = Counter(
            "stretto_owner_pauses_total",
            "Times that an owner was paused, because its failures cost others their time.",
            registry=self.registry,
        )
        self._connections_lost = Counter(
            "stretto_writer_connections_lost_total",
            "Database connections that a writer gave up.",
            registry=self.registry,
        )
        self._actor_crashes = Counter(
            "stretto_actor_crashes_total",
            "Faults in the program that an actor has met, by actor.",
            ["actor"],
            registry=self.registry,
        )
        self._guarantees_broken = Counter(
            "stretto_guarantees_broken_total",
            "Contradictions that must never be: wake somebody.",
            registry=self.registry,
        )
        self._bus_trouble = Counter(
            "stretto_bus_trouble_total",
            "Times that the message bus was lost or not understood.",
            registry=self.registry,
        )
        self._events_missed = Counter(
            "stretto_events_missed_total",
            "Times that live sessions were told to resume, because the bus had lost events.",
            registry=self.registry,
        )
        self._commands = Counter(
            "stretto_commands_total",
            "Commands from the message bus, by what became of them.",
            ["outcome"],
            registry=self.registry,
        )
        self._events_delivered = Counter(
            "stretto_events_delivered_total",
            "Events handed to the sessions of this process, once per session.",
            registry=self.registry,
        )
        self._sessions_ended = Counter(
            "stretto_sessions_ended_total",
            "Live sessions that are over, by close code.",
            ["code"],
            registry=self.registry,
        )
        self._relayed = Counter(
            "stretto_events_relayed_total",
            "Events given to the bus, by its answer.",
            ["result"],
            registry=self.registry,
        )
        self._relay_seconds = Histogram(
            "stretto_relay_seconds",
            "From taking a batch of events to its last mark.",
            buckets=SECONDS,
            registry=self.registry,
        )
        self._events_dead = Counter(
            "stretto_events_dead_total",
            "Events that became dead letters.",
            registry=self.registry,
        )
        self._upkeep_trouble = Counter(
            "stretto_upkeep_trouble_total",
            "Turns of upkeep that did not go through, by actor and kind.",
            ["actor", "kind"],
            registry=self.registry,
        )
        self._webhook_tries = Counter(
            "stretto_webhook_tries_total",
            "Events sent to the webhook's endpoint, by what came of it.",
            ["result"],
            registry=self.registry,
        )
        self._webhooks_disabled = Counter(
            "stretto_webhook_disabled_total",
            "Times that the webhook's endpoint wanted nothing any more (410).",
            registry=self.registry,
        )
        self._swept = Counter(
            "stretto_swept_rows_total",
            "Rows deleted past their retention.",
            ["table"],
            registry=self.registry,
        )
        # Events of which there is nothing to say but that they happened.
        self._occurrences: Mapping[type[Event], Counter] = {
            OwnerPaused: self._owner_pauses,
            ConnectionLost: self._connections_lost,
            GuaranteeBroken: self._guarantees_broken,
            BusTrouble: self._bus_trouble,
            EventsMissed: self._events_missed,
            EventBuried: self._events_dead,
            WebhookDisabled: self._webhooks_disabled,
        }

        # Those of which there is one thing to say: how it ended.
        self._ends: Mapping[type[Event], Counter] = {
            CommandHandled: self._commands,
            WebhookTried: self._webhook_tries,
        }

    def watch(
        self,
        gauges: Mapping[str, tuple[str, Callable[[], int]]],
        actors_up: Callable[[], Mapping[str, int]],
    ) -> None:
        """Show these values, read when asked: by name, what each means and how to read it."""
        self.registry.register(_Gauges(gauges, actors_up))

    def observe(self, event: Event) -> None:
        """Count the event."""
        match event:
            case AttemptAnswered(outcome):
                self._tally.attempts[outcome] += 1
            case BatchWritten(writes, _, seconds):
                self._batch_writes.observe(writes)
                self._batch_seconds.observe(seconds)
            case WriteTrouble(error, writes):
                self._trouble.labels(kind_of(error)).inc(writes)
            case (
                OwnerPaused()
                | ConnectionLost()
                | GuaranteeBroken()
                | BusTrouble()
                | EventsMissed()
                | EventBuried()
                | WebhookDisabled()
            ):
                self._occurrences[type(event)].inc()
            case EventDelivered(sessions):
                self._events_delivered.inc(sessions)
            case SessionEnded(code):
                self._sessions_ended.labels(int(code)).inc()
            case CommandHandled(end) | WebhookTried(end):
                self._ends[type(event)].labels(end).inc()
            case BusConnected() | WebhookBlocked() | ActorRestarted() | OwnerResumed():
                pass
            case EventsRelayed(delivered, refused, seconds):
                self._relayed.labels("delivered").inc(delivered)
                self._relayed.labels("refused").inc(refused)
                self._relay_seconds.observe(seconds)
            case RowsSwept(table, rows):
                self._swept.labels(table).inc(rows)
            case UpkeepTrouble(actor, error):
                self._upkeep_trouble.labels(actor, type(error).__name__).inc()
            case ActorCrashed(actor):
                self._actor_crashes.labels(actor).inc()
            case _:
                assert_never(event)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _LogLines:
    def collect(self) -> Iterable[CounterMetricFamily]:
        yield CounterMetricFamily(
            "stretto_log_lines_dropped",
            "Lines of the log that were dropped, since nobody read it.",
            value=dropped_lines.total,
        )


class _Gauges:
    def __init__(
        self,
        gauges: Mapping[str, tuple[str, Callable[[], int]]],
        actors_up: Callable[[], Mapping[str, int]],
    ) -> None:
        self._gauges = gauges
        self._actors_up = actors_up

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, (meaning, read) in self._gauges.items():
            yield GaugeMetricFamily(name, meaning, value=read())
        up = GaugeMetricFamily("stretto_actor_up", "Actors that run.", labels=["actor"])
        for actor, count in self._actors_up().items():
            up.add_metric([actor], count)
        yield up


# Why nothing comes to the webhook's endpoint, and what an operator can do.
_WEBHOOK_STOPPED: Final[Mapping[type[Event], tuple[str, Mapping[str, str]]]] = {
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
_BARE: Final[Mapping[type[Event], str]] = {
    ConnectionLost: "writer.connection_lost",
    EventsMissed: "bus.events_missed",
    OwnerResumed: "owner.resumed",
    BusConnected: "bus.connected",
}


def log_event(event: Event) -> None:
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
