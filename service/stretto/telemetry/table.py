"""The one table of telemetry: which metrics an observation moves, and what the log says of it.

Beside it are the gauges, which are read when metrics are. Each sink reads its part: `metrics.py`
the metrics, `logs.py` the lines. Labels and fields are attributes of the observation.
`docs/telemetry.md` is the contract; a test compares it with this table.

No key and no token is ever a label or a field.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from stretto import observations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stretto.observations import Observation

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# A repeat is answered in some 30 µs; a rejection waits for its turn of the loop.
FAST_PATH_SECONDS: Final = (
    *(0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005),
    *(0.001, 0.0025, 0.005, 0.01, 0.1, 1.0),
)
WRITES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Count:
    """A counter, which grows by one, or by what the attribute `amount` says."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    amount: str = ""
    is_per_request: bool = False
    """Whether each request moves it: it is then counted without a lock."""


@dataclass(frozen=True, slots=True)
class CountEach:
    """A counter with one label, whose values are the names in `amounts`: each grows its series."""

    name: str
    meaning: str
    labels: tuple[str]
    amounts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """A histogram of an attribute."""

    name: str
    meaning: str
    attribute: str
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A value that a part is asked for when metrics are read; with labels, a mapping of values."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    merge: Callable[[float, float], float] = operator.add
    """Makes one value of those of two workers."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log; an observation without one is the normal case, which is only counted."""

    level: Literal["info", "warning", "error", "critical"]
    event: str
    fields: tuple[str, ...] = ()
    exception: str = ""
    """The attribute whose traceback is shown, if it is an exception."""


Metric = Count | CountEach | Measure

GAUGES: Final = (
    Gauge("stretto_build_info", "The version that runs; always 1.", ("version", "python"), max),
    # An actor that is down in one worker must not be hidden by those of the others.
    Gauge("stretto_actor_up", "Actors that run.", ("actor",), min),
    Gauge("stretto_flights", "Keys in flight, by age.", ("age",)),
    Gauge("stretto_outcomes", "Settled attempts remembered."),
    Gauge("stretto_mailbox_messages", "Writes that wait for a writer."),
    Gauge("stretto_sessions", "Live sessions."),
    Gauge(
        "stretto_relay_lag_seconds",
        "Age of the oldest event that is not on the bus yet.",
        merge=max,
    ),
    Gauge(
        "stretto_webhook_lag_seconds",
        "Age of the oldest event that the webhook's endpoint still has to get.",
        merge=max,
    ),
    Gauge(
        "stretto_webhook_disabled",
        "1 while the webhook gets no events: its endpoint has answered 410.",
        merge=max,
    ),
)

TABLE: Final[Mapping[type[Observation], tuple[Metric | Line, ...]]] = {
    observations.AttemptAnswered: (
        Count(
            "stretto_attempts_total",
            "Requests for a group, by how they were answered.",
            ("outcome",),
            is_per_request=True,
        ),
    ),
    observations.BatchWritten: (
        Measure("stretto_batch_writes", "Writes per batch.", "writes", WRITES),
        Measure(
            "stretto_batch_seconds", "From a batch's claim to its last answer.", "seconds", SECONDS
        ),
    ),
    observations.WriteFailed: (
        Count(
            "stretto_write_failures_total", "Writes that failed, at each try.", ("kind",), "writes"
        ),
        Line(
            "warning", "write.failed", ("kind", "cause", "writes", "request_ids"), exception="bug"
        ),
    ),
    observations.AuthorizationFailed: (
        Count("stretto_authorization_failures_total", "Calls of the host's authorize that failed."),
        Line("warning", "authorize.failed", ("cause",), exception="bug"),
    ),
    observations.FirstSentAhead: (
        Line("warning", "request.first_sent_ahead", ("cause", "remedy")),
    ),
    observations.OwnerPaused: (
        Count("stretto_owner_pauses_total", "Owners paused, because their failures cost others."),
        Line("warning", "owner.paused", ("kind", "cause", "group_id", "seconds", "request_ids")),
    ),
    observations.OwnerResumed: (Line("info", "owner.resumed"),),
    observations.ReclaimTried: (
        Count(
            "stretto_reclaims_total",
            "Pending attempts whose lease was over, by whether this process took them over.",
            ("result",),
        ),
    ),
    observations.AttemptStrayed: (
        Count(
            "stretto_attempts_strayed_total",
            "Times that an attempt left the normal way, as far as only a process sees it.",
            ("what",),
        ),
    ),
    observations.ConnectionLost: (
        Count("stretto_writer_connections_lost_total", "Connections that a writer gave up."),
        Line("warning", "writer.connection_lost"),
    ),
    observations.StandbyAwaited: (Line("warning", "standby.awaited", ("cause", "remedy")),),
    observations.StandbyReached: (Line("info", "standby.reached", ("seconds",)),),
    observations.GuaranteeBroken: (
        Count(
            "stretto_guarantees_broken_total", "Contradictions that must never be: page at once."
        ),
        Line("critical", "guarantee.broken", ("guarantee", "group_id")),
    ),
    observations.BusConnected: (Line("info", "bus.connected"),),
    observations.BusFailed: (
        Count("stretto_bus_failures_total", "Times that the bus was lost or not understood."),
        Line("warning", "bus.failed", ("cause",)),
    ),
    observations.StreamDiffers: (
        Line("warning", "bus.stream_differs", ("stream", "replicas", "wanted")),
    ),
    observations.PlaceLost: (
        Count(
            "stretto_places_lost_total",
            "Times that the log no longer had what a reader had not had.",
            ("reader",),
        ),
        Line("warning", "log.place_lost", ("reader",)),
    ),
    observations.CommandHandled: (
        Count("stretto_commands_total", "Commands from the bus, by how each ended.", ("outcome",)),
    ),
    observations.EventsRelayed: (
        CountEach(
            "stretto_events_relayed_total",
            "Events given to the bus, by its answer.",
            ("result",),
            ("published", "refused"),
        ),
        Measure("stretto_relay_seconds", "From reading a page to moving on.", "seconds", SECONDS),
    ),
    observations.EventDeadLettered: (
        Count("stretto_events_dead_total", "Events that became dead letters."),
        Line("error", "event.dead", ("event_id", "reason")),
    ),
    # As a list the ids are no row's: many clients may read the same page, and the lines are folded.
    observations.EventsUnreadable: (Line("error", "log.row_unreadable", ("actor", "event_ids")),),
    observations.EventDelivered: (
        Count(
            "stretto_events_delivered_total",
            "Events handed to the sessions of this process, once per session.",
            amount="sessions",
        ),
    ),
    observations.SubscriberFailed: (
        Line("warning", "on_event.failed", ("cause",), exception="bug"),
    ),
    observations.SessionEnded: (
        Count("stretto_sessions_ended_total", "Sessions that ended, by close code.", ("code",)),
    ),
    observations.SessionFellBehind: (
        Count(
            "stretto_sessions_fell_behind_total",
            "Times that a live session had to catch up from the log.",
        ),
    ),
    observations.TargetFailed: (Line("warning", "target.failed", ("actor", "cause")),),
    observations.TargetRecovered: (Line("info", "target.recovered", ("actor",)),),
    observations.WebhookTried: (
        Count("stretto_webhook_tries_total", "Events sent to the webhook, by result.", ("result",)),
    ),
    observations.WebhookDisabled: (Line("error", "webhook.disabled"),),
    observations.WebhookBlocked: (Line("error", "webhook.blocked", ("cause", "remedy")),),
    observations.WebhookUnserved: (Line("warning", "webhook.unserved"),),
    observations.RowsSwept: (
        Count("stretto_swept_rows_total", "Rows past their retention.", ("table",), "rows"),
    ),
    observations.UpkeepFailed: (
        Count("stretto_upkeep_failures_total", "Turns of upkeep that failed.", ("actor", "kind")),
        Line("warning", "upkeep.failed", ("actor", "kind", "cause")),
    ),
    observations.ActorCrashed: (
        Count("stretto_actor_crashes_total", "Bugs that ended an actor's turn.", ("actor",)),
        Line("error", "actor.crashed", ("actor",), exception="error"),
    ),
    observations.ActorRestarted: (Line("info", "actor.restarted", ("actor",)),),
}
