"""The table of telemetry: complete, and the same as the page that is the contract."""

from __future__ import annotations

import ast
import re
from dataclasses import is_dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stretto
from stretto import observations
from stretto.telemetry.table import GAUGES, TABLE, CountEach, Line, Measure

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/telemetry.md").read_text()
SOURCES = [path.read_text() for path in Path(stretto.__file__).parent.rglob("*.py")]
LEVELS = {"info", "warning", "error", "critical", "exception"}


def test_every_observation_has_a_row_of_what_it_has() -> None:
    """A name that it lacks would raise when it is observed, in the middle of a write."""
    kinds: set[Any] = {each for each in vars(observations).values() if is_dataclass(each)}
    assert kinds == {*TABLE}
    assert [] == [
        (kind.__name__, name)
        for kind, row in TABLE.items()
        for each in row
        for name in attributes(each)
        if not hasattr(kind, name)
    ]


def attributes(part: Any) -> list[str]:
    """Return which attributes of its observation a part of a row reads."""
    match part:
        case Line():
            names = [*part.fields, part.exception]
        case Measure():
            names = [part.attribute]
        case CountEach():
            names = [*part.amounts]
        case _:
            names = [*part.labels, part.amount]
    return [name for name in names if name]


def documented(text: str, header: str) -> dict[str, tuple[str, set[str]]]:
    """Return the rows of a table: by name, the second column and the names in the third."""
    rows = text.split(f"{header} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    cells = [row.split(" | ") for row in rows]
    return {
        row[0].strip("| `"): (row[1].strip(), {*re.findall(r"`(\w+)`", row[2])}) for row in cells
    }


def logger_calls(source: str) -> Iterator[tuple[str, tuple[str, set[str]]]]:
    """Return the events that are logged without an observation, with level and fields."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                ast.Attribute(ast.Name("logger"), level), [ast.Constant(str(event))], keywords
            ) if level in LEVELS:
                fields = {str(each.arg) for each in keywords}
                if level == "exception" or "exc_info" in fields:
                    fields = fields - {"exc_info"} | {"exception"}
                yield event, ("error" if level == "exception" else level, fields)


def differences(page: str) -> Iterator[str]:
    """Return the metrics and events of which the page says something else than the code."""
    metrics = documented(page, "| name | type | labels")
    in_code = {*chain(*(re.findall(r'"(stretto_\w+)"', source) for source in SOURCES))}
    yield from metrics.keys() ^ in_code
    events = {
        "log.lines_dropped": ("warning", {"lines"}),
        **dict(chain(*map(logger_calls, SOURCES))),
    }
    for each in chain(*TABLE.values()):
        if isinstance(each, Line):
            events[each.event] = each.level, {*each.fields, *["exception"][: bool(each.exception)]}
            continue
        expected: tuple[str, set[str]] = "histogram", set()
        if not isinstance(each, Measure):
            expected = "counter", {*each.labels}
        if metrics.get(each.name) != expected:
            yield each.name
    for gauge in GAUGES:
        if metrics.get(gauge.name) != ("gauge", {*gauge.labels}):
            yield gauge.name
    listed = documented(page, "| event | level | fields")
    yield from (name for name in events.keys() | listed if events.get(name) != listed.get(name))


def test_the_page_says_what_the_code_does() -> None:
    """Names, types, labels, levels and fields are a contract."""
    assert [] == sorted(differences(PAGE))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("stretto_swept_rows_total", "| `stretto_swept_rows_total` |", "| `stretto_rows_total` |"),
        (
            "stretto_relay_seconds",
            "| `stretto_relay_seconds` | histogram",
            "| `stretto_relay_seconds` | gauge",
        ),
        (
            "stretto_commands_total",
            "counter | `outcome` | deliveries",
            "counter | `end` | deliveries",
        ),
        ("stretto_flights", "gauge | `age` | keys", "gauge | `ages` | keys"),
        ("event.dead", "| error | `event_id`, `reason`", "| error | `event_id`"),
        ("owner.resumed", "| `owner.resumed` | info", "| `owner.resumed` | error"),
        ("worker.died", "| `worker.died` | error | `worker`", "| `worker.died` | error | `number`"),
        ("service.stopped", "| `service.stopped` |", "| `service.ended` |"),
    ],
)
def test_a_page_that_says_something_else_is_noticed(name: str, old: str, new: str) -> None:
    """The twin."""
    assert old in PAGE
    assert name in differences(PAGE.replace(old, new))
