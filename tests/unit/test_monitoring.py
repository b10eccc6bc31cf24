"""Alerts and dashboard: they name metrics that exist, and sections of the runbook that are there."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from openapi.routes import ROUTES
from stretto.creation.attempt import AnswerStatus
from stretto.observations import AttemptAnswered, BatchWritten, ReclaimTried
from stretto.telemetry.metrics import Metrics
from stretto.telemetry.table import GAUGES
from support.prometheus import MISSING, MONITORING, PACE, PROMTOOL, alerts, at_pace, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DOCS = MONITORING.parent / "docs"
TELEMETRY = (DOCS / "telemetry.md").read_text()
RUNBOOK = (DOCS / "operations.md").read_text()
DASHBOARD = (MONITORING / "dashboard.json").read_text()
RULES = (MONITORING / "alerts.yml").read_text()
# What Prometheus and every process have, and what PromQL adds.
# Outcomes of a creation that its own client, or its owner, has brought about.
CLIENTS_OWN = {
    "replayed",
    "key_reused",
    "attempt_failed",
    "group_deleted",
    "rate_limited",
    "creation_refused",
}
# Those that another metric counts as well, with its alert.
ELSEWHERE = {"internal_error": "StrettoRequestCrashed"}
# Errors of the route that are in no outcome: the request, its token or its session is refused first.
BEFORE_PROTOCOL = {
    "key_missing",
    "key_invalid",
    "request_invalid",
    "body_too_large",
    "unsupported_media_type",
    "unauthenticated",
    "insufficient_scope",
}
STANDARD = {"up", "ALERTS", *re.findall(r"process_\w+", TELEMETRY)} - {"process_"}
LABELS = {"job", "instance", "le", "alertname", "alertstate"}
WORDS = re.compile(
    r"\b(?:absent|by|sum|min|max|avg|count|rate|irate|increase|unless|and|or|on|group_left|offset|max_over_time"
    r"|histogram_quantile|label_values)\b"
)


def documented() -> dict[str, set[str]]:
    """Return the metrics of the page that a test compares with the code: by name, their labels."""
    rows = re.findall(r"^\| `(stretto_\w+)` \| (\w+) \| ([^|]+) \|", TELEMETRY, re.MULTILINE)
    found: dict[str, set[str]] = dict.fromkeys(STANDARD, LABELS)
    for name, kind, labels in rows:
        names = [name]
        if kind == "histogram":
            names = [name + suffix for suffix in ("_bucket", "_sum", "_count")]
        found |= dict.fromkeys(names, {*re.findall(r"\w+", labels)} | LABELS)
    return found


def expressions(rules: str, dashboard: str) -> Iterator[str]:
    """Return all PromQL."""
    for group in yaml.safe_load(rules)["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    document = json.loads(dashboard)
    for panel in document["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    variables = (each["query"] for each in document["templating"]["list"])
    yield from (each["query"] for each in variables if isinstance(each, dict))


def unknown(rules: str, dashboard: str) -> Iterator[str]:
    """Return metrics, labels and values of labels that no page names."""
    metrics = documented()
    for expression in expressions(rules, dashboard):
        bare = re.sub(r"\[[^]]*\]|offset \w+", "", expression)
        for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", bare):
            for label, value in re.findall(r'(\w+)[=!~]+"([^"]*)"', matchers):
                if label not in metrics.get(name, ()):
                    yield f"{name}: {label}"
                if label not in LABELS | {"code", "route", "status"}:
                    yield from (each for each in value.split("|") if f"`{each}`" not in TELEMETRY)
        plain = re.sub(r'\{[^}]*\}|"[^"]*"', "", bare)
        grouped = re.findall(r"by \(([^)]*)\)", plain)
        plain = WORDS.sub("", re.sub(r"(?:by|on) \([^)]*\)|, instance\)", "", plain))
        names = {*re.findall(r"[a-zA-Z_]\w+", plain)}
        yield from names - metrics.keys()
        known = {label for name in names for label in metrics.get(name, ())}
        yield from (each for labels in grouped for each in {*labels.split(", ")} - known)


def test_every_metric_of_alerts_and_dashboard_exists() -> None:
    """With its labels, and the values that are compared with."""
    assert [] == [*unknown(RULES, DASHBOARD)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("stretto_guarantees_broken_total > 0", "stretto_guarantees_total > 0"),
        ('{outcome="overloaded"}', '{result="overloaded"}'),
        ('{outcome="overloaded"}', '{outcome="overload"}'),
        ("sum by (job, actor)", "sum by (job, reader)"),
        ("stretto_http_request_seconds_bucket", "stretto_http_request_seconds"),
    ],
)
def test_a_name_that_is_not_there_is_noticed(old: str, new: str) -> None:
    """The twin."""
    assert old in RULES
    assert [] != [*unknown(RULES.replace(old, new), DASHBOARD)]


def test_the_dashboard_shows_every_metric() -> None:
    """An operator who looks for one finds it; of a few, an alert says all that there is."""
    shown = DASHBOARD + RULES
    rows = re.findall(r"^\| `(stretto_\w+)` \|", TELEMETRY, re.MULTILINE)
    assert ["stretto_relay_seconds"] == [name for name in rows if name not in shown]


def outcomes() -> set[str]:
    """Return the values that the page gives for `outcome` of a creation."""
    text = TELEMETRY.split("- `outcome` is how a success came about", 1)[1].split(
        "A request that", 1
    )[0]
    return {*re.findall(r"`(\w+)`", text)}


def test_the_page_has_each_outcome_of_a_creation() -> None:
    """How it succeeds, and what its route answers once it has reached the protocol."""
    errors = {*ROUTES["POST /v1/groups"].codes.split()} - BEFORE_PROTOCOL
    assert {*map(str, AnswerStatus)} | errors == outcomes()


def test_each_outcome_that_is_not_the_clients_own_leads_to_an_alert() -> None:
    """Where an instance itself is the cause, no client can end it."""
    matchers = re.findall(r'stretto_attempts_total\{\s*outcome=~?"([^"]+)"', RULES)
    named = {value for each in matchers for value in each.split("|")}
    assert outcomes() - named == CLIENTS_OWN | ELSEWHERE.keys()
    for alert in ELSEWHERE.values():
        assert f"alert: {alert}\n" in RULES


def sections() -> dict[str, str]:
    """Return the sections of the runbook, by their anchors."""
    parts = re.split(r"^#{2,4} (.+)$", RUNBOOK, flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-"): text
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


@pytest.mark.parametrize(
    "rule",
    [rule for group in alerts()["groups"] for rule in group["rules"]],
    ids=lambda rule: rule["alert"],
)
def test_every_alert_leads_to_its_section(rule: dict[str, Any]) -> None:
    """Which names it, and says what is seen, what to look at and what to do."""
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert "docs/operations.md" == page
    text = sections()[anchor]
    for part in (f"`{rule['alert']}`", "**Symptoms.**", "**Checks.**", "**Actions.**"):
        assert part in text
    assert {"severity"} == {*rule["labels"]}
    assert rule["labels"]["severity"] in ("page", "soon", "look")


def test_no_section_names_an_alert_that_is_gone() -> None:
    """The other way round."""
    named = {*re.findall(r"`(Stretto[A-Z]\w+)`", RUNBOOK)} - {"StrettoClient"}
    assert {*re.findall(r"alert: (\w+)", RULES)} == named


def promtool(*arguments: str | Path, text: bytes = b"") -> tuple[int, str]:
    """Run promtool; return its exit code and what it says."""
    assert PROMTOOL is not None, MISSING
    done = subprocess.run(
        [PROMTOOL, *arguments], input=text, capture_output=True, check=False, cwd=MONITORING
    )
    return done.returncode, (done.stdout + done.stderr).decode()


def test_alerts_fire_when_they_should_and_only_then() -> None:
    """Each of them has a test, in the language of Prometheus."""
    tested = {*re.findall(r'alertname="(\w+)"', (MONITORING / "alerts_test.yml").read_text())}
    assert {*re.findall(r"alert: (\w+)", RULES)} == tested
    code, said = promtool("test", "rules", "alerts_test.yml")
    assert 0 == code, said


@pytest.mark.parametrize(
    ("alert", "old", "new"),
    [
        (
            "StrettoRelayBehind",
            "(stretto_relay_lag_seconds) > 60",
            "(stretto_relay_lag_seconds) > 95",
        ),
        ("StrettoRelayBehind", "min by (job) (stretto_relay", "max by (job) (stretto_relay"),
        ("StrettoOverloaded", '{outcome="overloaded"}[3m]))', '{outcome="overload"}[3m]))'),
        ("StrettoRefusing", "(irate(", "(rate("),
        ("StrettoRefusing", " < 0.25", ""),
        ("StrettoActorCrashed", "offset 15m", "offset 15s"),
    ],
)
def test_an_alert_that_is_wrong_is_noticed(alert: str, old: str, new: str, tmp_path: Path) -> None:
    """The twin."""
    assert old in RULES
    (tmp_path / "alerts.yml").write_text(RULES.replace(old, new))
    document = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())
    document["tests"] = [each for each in document["tests"] if alert in each["name"]]
    tests = tmp_path / "alerts_test.yml"
    tests.write_text(yaml.safe_dump(document))
    code, said = promtool("test", "rules", tests)
    assert 0 != code
    assert alert in said


def lingering(rules: str) -> list[str]:
    """Return which alerts may fire long after the end: `rate` over more than a third of their `for`.

    Behind `unless` is what ends one at once.
    """
    found = []
    for rule in (rule for group in yaml.safe_load(rules)["groups"] for rule in group["rules"]):
        expression, *ends = re.split(r"\bunless\b", rule["expr"])
        windows = re.findall(r"\brate\([^\[]*\[(\w+)\]", expression)
        if not ends and any(3 * seconds(each) > seconds(rule["for"]) for each in windows):
            found.append(rule["alert"])
    return found


def test_an_alert_falls_silent_soon_after_the_end() -> None:
    """As the head of the rules has it."""
    assert [] == lingering(RULES)


@pytest.mark.parametrize(
    ("alert", "old", "new"),
    [
        ("StrettoOverloaded", '{outcome="overloaded"}[3m]', '{outcome="overloaded"}[5m]'),
        (
            "StrettoRefusing",
            "unless sum by (job, instance) (irate",
            "and sum by (job, instance) (irate",
        ),
    ],
)
def test_an_alert_that_lingers_is_noticed(alert: str, old: str, new: str) -> None:
    """The twin."""
    assert 1 == RULES.count(old)
    assert [alert] == lingering(RULES.replace(old, new))


def test_the_configuration_is_one(tmp_path: Path) -> None:
    """As delivered; and what the test of a real Prometheus makes of the alerts."""
    code, said = promtool("check", "config", "prometheus.yml")
    assert 0 == code, said
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(at_pace(alerts(), PACE)))
    code, said = promtool("check", "rules", tmp_path / "alerts.yml")
    assert 0 == code, said


def test_metrics_are_named_as_is_usual() -> None:
    """Units, suffixes and help, as promtool judges them."""
    metrics = Metrics()
    readers = {
        gauge.name: (lambda gauge=gauge: {("x",) * len(gauge.labels): 1} if gauge.labels else 1)
        for gauge in GAUGES
    }
    metrics.watch(readers)
    metrics.count_request("GET", "/livez", 200, 0.1)
    metrics.time_fast_path("replayed", 0.1)
    for event in (AttemptAnswered("created"), BatchWritten(1, 1, 0.1), ReclaimTried("won")):
        metrics.observe(event)
    code, said = promtool("check", "metrics", text=metrics.exposition())
    assert (0, "") == (code, said)
