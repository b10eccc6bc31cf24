"""Turns observations into metrics. `docs/telemetry.md` is the contract.

A key or a token never gets here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

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
from stretto.telemetry.log_writer import dropped_lines
from stretto.telemetry.tally import SECONDS, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_WRITES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


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
        self._occurrences: Mapping[type[Observation], Counter] = {
            OwnerPaused: self._owner_pauses,
            ConnectionLost: self._connections_lost,
            GuaranteeBroken: self._guarantees_broken,
            BusTrouble: self._bus_trouble,
            EventsMissed: self._events_missed,
            EventBuried: self._events_dead,
            WebhookDisabled: self._webhooks_disabled,
        }

        # Those of which there is one thing to say: how it ended.
        self._ends: Mapping[type[Observation], Counter] = {
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

    def observe(self, event: Observation) -> None:
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
