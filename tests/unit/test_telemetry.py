"""What is logged and counted, and nothing that must not be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from stretto.domain import UserId
from stretto.errors import Failure, GroupRejected
from stretto.events.close_codes import CloseCode
from stretto.observations import (
    ActorCrashed,
    ActorRestarted,
    AttemptAnswered,
    AttemptStrayed,
    BatchWritten,
    ConnectionLost,
    EventDeadLettered,
    EventDelivered,
    EventsRelayed,
    GuaranteeBroken,
    OwnerPaused,
    OwnerResumed,
    ReclaimTried,
    RowsSwept,
    SessionEnded,
    SessionFellBehind,
    UpkeepFailed,
    WebhookBlocked,
    WebhookDisabled,
    WebhookTried,
    WriteFailed,
)
from stretto.store_errors import (
    HookError,
    HookInterrupted,
    OutcomeUnknown,
    Refused,
    Transient,
    Unreachable,
)
from stretto.telemetry.logs import log_observation
from stretto.telemetry.metrics import Metrics
from support.logged_events import logged

if TYPE_CHECKING:
    from stretto.observations import Observation
    from stretto.store_errors import StoreError


def raised(error: Exception, cause: Exception | None = None) -> Any:
    """Return the error as if it had been raised, from a function with a secret."""
    secret = "a token"  # noqa: F841 it must not show
    try:
        raise error from cause
    except type(error) as caught:
        return caught


def test_an_event_is_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With its level and its time."""
    (line,) = logged(capsys, GuaranteeBroken(UUID(int=1)))
    assert ("guarantee.broken", "critical", "G4", str(UUID(int=1))) == (
        line["event"],
        line["level"],
        line["guarantee"],
        line["group_id"],
    )
    assert line["timestamp"].endswith("Z")
    assert "webhook.disabled" == logged(capsys, WebhookDisabled())[0]["event"]
    (blocked,) = logged(capsys, WebhookBlocked())
    assert ("webhook.blocked", "error") == (blocked["event"], blocked["level"])
    assert "STRETTO_WEBHOOK_ALLOW_PRIVATE=true" in blocked["remedy"]
    assert "writer.connection_lost" == logged(capsys, ConnectionLost())[0]["event"]


def test_the_normal_case_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    """It is counted."""
    for event in (
        AttemptAnswered("created"),
        BatchWritten(1, 1, 0.1),
        EventsRelayed(1, 0, 0.1),
        WebhookTried("sent"),
        RowsSwept("attempt", 1),
    ):
        assert [] == logged(capsys, event)


@pytest.mark.parametrize(
    ("has_traceback", "error", "cause"),
    [
        (True, HookError("on_create raised"), KeyError("x")),
        (True, HookInterrupted("on_create raised"), OSError()),
        (False, HookError("on_create took longer"), None),
        (False, Refused(Failure("quota", "x")), GroupRejected("quota", "x")),
        (False, OutcomeUnknown("OSError"), OSError()),
    ],
)
def test_only_a_bug_is_logged_with_its_traceback(
    has_traceback: bool,
    error: StoreError,
    cause: Exception | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A host's veto and the network's failures need none; and no variables are shown."""
    failure = WriteFailed(raised(error, cause and raised(cause)), 3)
    (line,) = logged(capsys, failure)
    assert ("write.failed", type(error).__name__, 3) == (
        line["event"],
        line["kind"],
        line["writes"],
    )
    assert has_traceback == ("Traceback" in line.get("exception", ""))
    assert "a token" not in str(line).replace('secret = "a token"', "")


def test_a_paused_owner_is_logged_with_its_cause_and_without_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The group's id leads an operator to the attempt; the kind is one that the docs name."""

    class _Own(Transient):
        """A writer's own."""

    (line,) = logged(capsys, OwnerPaused(_Own("row"), UUID(int=1), 2.54))
    assert ("owner.paused", "Transient", "row", str(UUID(int=1)), 2.5) == (
        *(line[name] for name in ("event", "kind", "cause", "group_id", "seconds")),
    )
    (line,) = logged(capsys, OwnerResumed())
    assert ("owner.resumed", "info") == (line["event"], line["level"])


def test_a_hosts_handler_gets_ids_as_text(caplog: pytest.LogCaptureFixture) -> None:
    """It need not know how to write any other type."""
    log_observation(GuaranteeBroken(UUID(int=1)))
    (record,) = caplog.records
    assert str(UUID(int=1)) == vars(record)["group_id"]


def test_a_plain_handler_of_a_hosts_shows_the_fields(caplog: pytest.LogCaptureFixture) -> None:
    """Such as that of `logging.basicConfig`; others find each field in the record."""
    log_observation(UpkeepFailed("relay", Unreachable("no answer")))
    (record,) = caplog.records
    assert "upkeep.failed actor=relay kind=Unreachable cause='no answer'" == record.getMessage()
    fields = vars(record)
    assert ("upkeep.failed", "upkeep.failed", "relay") == (
        *(fields[name] for name in ("msg", "event", "actor")),
    )


def test_a_crashed_actor_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """With its name, and its traceback: it is a bug. That it runs again is said as well."""
    (line,) = logged(capsys, ActorCrashed("writer", raised(ZeroDivisionError())))
    assert ("actor.crashed", "error", "writer") == (line["event"], line["level"], line["actor"])
    assert "ZeroDivisionError" in line["exception"]
    (line,) = logged(capsys, ActorRestarted("writer"))
    assert ("actor.restarted", "info", "writer") == (line["event"], line["level"], line["actor"])


def test_an_error_whose_text_is_not_unicode_is_one_line_of_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As of a file whose name is no UTF-8: the line says what it can, and is not lost."""
    (line,) = logged(capsys, ActorCrashed("writer", raised(OSError("no file caf\udce9"))))
    assert ("actor.crashed", "writer") == (line["event"], line["actor"])
    assert "OSError: no file caf?" in line["exception"]


@pytest.mark.parametrize(
    ("expected", "event"),
    [
        ('stretto_attempts_total{outcome="created"} 1.0', AttemptAnswered("created")),
        ("stretto_batch_writes_sum 7.0", BatchWritten(7, 6, 0.1)),
        ('stretto_write_failures_total{kind="Transient"} 3.0', WriteFailed(Transient(), 3)),
        ("stretto_owner_pauses_total 1.0", OwnerPaused(Transient(), UUID(int=1), 5.0)),
        ("stretto_owner_pauses_total 0.0", OwnerResumed()),
        ('stretto_reclaims_total{result="lost"} 1.0', ReclaimTried("lost")),
        (
            'stretto_attempts_strayed_total{what="unknown"} 1.0',
            AttemptStrayed("unknown", UUID(int=1), UserId("alice")),
        ),
        ("stretto_writer_connections_lost_total 1.0", ConnectionLost()),
        (
            'stretto_actor_crashes_total{actor="writer"} 1.0',
            ActorCrashed("writer", ValueError()),
        ),
        ('stretto_webhook_tries_total{result="failed"} 1.0', WebhookTried("failed")),
        ('stretto_events_relayed_total{result="published"} 7.0', EventsRelayed(7, 2, 0.1)),
        ('stretto_events_relayed_total{result="refused"} 2.0', EventsRelayed(7, 2, 0.1)),
        ("stretto_relay_seconds_count 1.0", EventsRelayed(7, 2, 0.1)),
        ("stretto_events_dead_total 1.0", EventDeadLettered(UUID(int=1), "x")),
        ('stretto_swept_rows_total{table="attempt"} 5.0', RowsSwept("attempt", 5)),
        (
            'stretto_upkeep_failures_total{actor="relay",kind="Transient"} 1.0',
            UpkeepFailed("relay", Transient()),
        ),
        (
            'stretto_upkeep_failures_total{actor="sweeper",kind="Transient"} 1.0',
            UpkeepFailed("sweeper", Transient()),
        ),
        ("stretto_guarantees_broken_total 1.0", GuaranteeBroken(UUID(int=1))),
        ("stretto_events_delivered_total 7.0", EventDelivered(7)),
        ('stretto_sessions_ended_total{code="4408"} 1.0', SessionEnded(CloseCode.TOO_SLOW)),
        ("stretto_sessions_fell_behind_total 1.0", SessionFellBehind()),
    ],
)
def test_every_event_is_counted(expected: str, event: Observation) -> None:
    """Under the name that the docs give."""
    metrics = Metrics()
    metrics.observe(event)
    assert expected in metrics.exposition().decode().splitlines()


def test_actors_that_run_are_shown_by_name() -> None:
    """Also those of which none does."""
    metrics = Metrics()
    metrics.watch({"stretto_actor_up": lambda: {"writer": 2, "relay": 0}})
    lines = metrics.exposition().decode().splitlines()
    assert 'stretto_actor_up{actor="writer"} 2.0' in lines
    assert 'stretto_actor_up{actor="relay"} 0.0' in lines


def test_each_value_of_a_label_has_a_series_of_its_own() -> None:
    """Although a series is looked up once."""
    metrics = Metrics()
    for actor in ("relay", "sweeper", "relay"):
        metrics.observe(UpkeepFailed(actor, Transient()))
    lines = metrics.exposition().decode().splitlines()
    assert 'stretto_upkeep_failures_total{actor="relay",kind="Transient"} 2.0' in lines
    assert 'stretto_upkeep_failures_total{actor="sweeper",kind="Transient"} 1.0' in lines


def test_answers_on_the_fast_path_have_their_own_times() -> None:
    """They are a hundred times as fast as other requests."""
    metrics = Metrics()
    for seconds in (0.00003, 0.0002):
        metrics.time_fast_path("replayed", seconds)
    lines = metrics.exposition().decode().splitlines()
    for le, count in (("2.5e-05", 0), ("5e-05", 1), ("0.00025", 2), ("+Inf", 2)):
        labels = f'le="{le}",outcome="replayed"'
        assert f"stretto_fast_path_seconds_bucket{{{labels}}} {count:.1f}" in lines


def test_lists_of_groups_have_other_times_than_creations() -> None:
    """They share a route."""
    metrics = Metrics()
    for method, seconds in (("POST", 0.25), ("GET", 2.0), ("GET", 4.0)):
        metrics.count_request(method, "/v1/groups", 200, seconds)
    lines = metrics.exposition().decode().splitlines()
    for method, total in (("POST", 0.25), ("GET", 6.0)):
        labels = f'method="{method}",route="/v1/groups"'
        assert f"stretto_http_request_seconds_sum{{{labels}}} {total}" in lines


def test_a_process_shows_what_it_uses() -> None:
    """Under the names that every library for Prometheus gives."""
    text = Metrics().exposition().decode()
    for name in ("cpu_seconds_total", "resident_memory_bytes", "start_time_seconds", "open_fds"):
        assert f"\nprocess_{name} " in text


def test_a_rejected_creation_is_a_request_and_an_attempt() -> None:
    """It has taken no time."""
    metrics = Metrics()
    metrics.count_shed()
    lines = metrics.exposition().decode().splitlines()
    assert 'stretto_attempts_total{outcome="overloaded"} 1.0' in lines
    labels = 'method="POST",route="/v1/groups",status="503"'
    assert f"stretto_http_requests_total{{{labels}}} 1.0" in lines
    assert not [line for line in lines if line.startswith("stretto_http_request_seconds_")]
