"""The figures as tables and as a picture; ratios first, since they hold on other machines too."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from loadtests.bench.machinery import Measure
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

Results = dict[str, list[Measure]]

_CREATE = "create, {} connections"
_ALONE = "create, 1 connection"
_MARKS = "<!-- figures: drawn by make bench -->", "<!-- end of figures -->"
_ROW_PIXELS, _LABEL_PIXELS, _BAR_PIXELS = 24, 290, 420


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio, and its lower (or upper) bound."""

    name: str
    ratio: Callable[[Results], float]
    bound: float
    is_upper: bool = False

    def is_met(self, value: float) -> bool:
        """Whether the value is on the right side of the bound."""
        return value <= self.bound if self.is_upper else value >= self.bound


def _rate(results: Results, part: str) -> float:
    return statistics.median(measure.per_second for measure in results[part])


def _p50(results: Results, part: str) -> float:
    return statistics.median(measure.p50_ms for measure in results[part])


def _best_create(results: Results) -> float:
    """Return the best rate at 32 to 256 connections, of one or two processes."""
    parts = [part for part in results if part.startswith("create, ") and part != _ALONE]
    return max(_rate(results, part) for part in parts)


def _over(divisor: str, part: str | None = None) -> Callable[[Results], float]:
    def ratio(results: Results) -> float:
        dividend = _rate(results, part) if part else _best_create(results)
        return dividend / _rate(results, divisor)

    return ratio


def _over_create_of_one_process(part: str) -> Callable[[Results], float]:
    """Return a rate as a share of one process's best rate of creations."""

    def ratio(results: Results) -> float:
        rates = [
            _rate(results, each)
            for each in results
            if each.startswith("create, ") and "processes" not in each
        ]
        return _rate(results, part) / max(rates)

    return ratio


def _median_more(part: str, name: str) -> Callable[[Results], float]:
    return lambda results: statistics.median(m.more[name] for m in results[part])


GOALS = (
    Goal("create ÷ conventional, 16 clients", _over("conventional, 16 clients"), 2.5),
    Goal("create ÷ own statements, 16 clients", _over("own statements, 16 clients"), 1.2),
    Goal("create ÷ one by one", _over("one by one"), 3.0),
    Goal("create ÷ limit", _over("limit"), 0.5),
    Goal("replay ÷ floor", _over("floor", "replay"), 0.6),
    Goal("same key ÷ replay", _over("replay", "same key, 2 processes"), 0.5),
    Goal(
        "p99 ÷ p50 of create, 32 connections",
        lambda r: statistics.median(m.p99_ms / m.p50_ms for m in r[_CREATE.format(32)]),
        3.0,
        is_upper=True,
    ),
    Goal(
        "p50 of one creation alone ÷ conventional, 1 client",
        lambda r: _p50(r, _ALONE) / _p50(r, "conventional, 1 client"),
        1.0,
        is_upper=True,
    ),
    Goal(
        "WAL flushes per creation, 128 connections",
        _median_more(_CREATE.format(128), "flushes_per_creation"),
        0.15,
        is_upper=True,
    ),
    Goal(
        "create at 5 million groups, sweeping ÷ empty",
        _over("grow: empty", "grow: 5 million groups"),
        0.85,
    ),
    Goal(
        "p99 of create at 5 million groups, sweeping ÷ not sweeping",
        lambda r: statistics.median(
            m.p99_ms / m.more["p99_ms_without_sweep"] for m in r["grow: 5 million groups"]
        ),
        1.5,
        is_upper=True,
    ),
    Goal(
        # Each creation leaves an attempt and an event to sweep.
        "rows swept beside it ÷ two for each creation",
        lambda r: statistics.median(
            m.more["swept_per_second"] / (2 * m.per_second) for m in r["grow: 5 million groups"]
        ),
        1.0,
    ),
    Goal(
        "MiB of a process after a million creations",
        _median_more("a million creations", "memory_mib"),
        150.0,
        is_upper=True,
    ),
    Goal(
        "the same ÷ after the first 200,000",
        lambda r: statistics.median(
            m.more["memory_mib"] / m.more["memory_mib_first"] for m in r["a million creations"]
        ),
        1.1,
        is_upper=True,
    ),
    Goal("relay ÷ best create of one process", _over_create_of_one_process("relay"), 1.0),
    Goal("the same to NATS", _over_create_of_one_process("relay to NATS"), 1.0),
    Goal(
        "p99 in ms from a request to its event, at half of peak",
        lambda r: statistics.median(m.p99_ms for m in r["events: create to session"]),
        100.0,
        is_upper=True,
    ),
    Goal(
        "the same through NATS",
        lambda r: statistics.median(m.p99_ms for m in r["events: create to session, NATS"]),
        200.0,
        is_upper=True,
    ),
    Goal(
        "milliseconds from one event to the last of 5,000 sessions",
        _median_more("events: one to 5,000 sessions", "slowest_ms"),
        1000.0,
        is_upper=True,
    ),
    Goal(
        "KiB of an idle session among 10,000",
        _median_more("events: 10,000 idle sessions", "kib_per_session"),
        40.0,
        is_upper=True,
    ),
    Goal(
        # Its queue of 256 events of 4 KB, and its buffers.
        "KiB that a mute session costs",
        _median_more("events: a mute session", "grown_kib"),
        1200.0,
        is_upper=True,
    ),
    Goal(
        "created at three times the peak ÷ at peak",
        _median_more("overload: three times the peak", "of_peak"),
        0.8,
    ),
    Goal(
        "memory at the end of that ÷ half-way",
        lambda r: statistics.median(
            m.more["end_mib"] / m.more["half_mib"] for m in r["overload: three times the peak"]
        ),
        1.1,
        is_upper=True,
    ),
    Goal(
        "seconds to 95 % of the rate after the database stood still for ten",
        _median_more("overload: a database that stood still", "recovered_seconds"),
        30.0,
        is_upper=True,
    ),
    Goal(
        "writes per key at half as much again as the peak, with retries",
        _median_more("overload: clients that retry", "writes_per_key"),
        1.1,
        is_upper=True,
    ),
    Goal(
        "p50 of good clients beside hostile ones ÷ alone",
        _median_more("hostile clients beside good ones", "p50_ratio"),
        2.0,
        is_upper=True,
    ),
)


def ratio_rows(results: Results) -> list[tuple[str, str, str, str]]:
    """Return a row for each goal whose parts were measured."""
    rows = []
    for goal in GOALS:
        try:
            value = goal.ratio(results)
        except (KeyError, ValueError):
            continue
        sign = "≤" if goal.is_upper else "≥"
        verdict = "met" if goal.is_met(value) else "missed"
        rows.append((goal.name, f"{sign} {goal.bound:g}", f"{value:,.3g}", verdict))
    return rows


def part_rows(results: Results) -> list[tuple[str, ...]]:
    """Return each part's median, spread and other figures."""
    rows = []
    for name, measures in results.items():
        rates = [measure.per_second for measure in measures]
        more = {
            key: statistics.median(measure.more[key] for measure in measures)
            for key in measures[0].more
        }
        rows.append(
            (
                name,
                f"{statistics.median(rates):,.0f}",
                f"{min(rates):,.0f} - {max(rates):,.0f}",
                f"{_p50(results, name):.2f}",
                f"{statistics.median(m.p99_ms for m in measures):.2f}",
                ", ".join(f"{key} {value:,.4g}" for key, value in more.items()),
            )
        )
    return rows


_RATIO_HEADS = ("ratio", "goal", "measured", "")
_PART_HEADS = ("part", "per second", "min - max", "p50 ms", "p99 ms", "more")


def ratios_table(results: Results) -> Table:
    """Return the goals for a terminal."""
    return _table("Ratios of this run's medians", _RATIO_HEADS, ratio_rows(results))


def results_table(results: Results) -> Table:
    """Return the parts for a terminal."""
    return _table("Parts", _PART_HEADS, part_rows(results))


def publish(page: Path, results: Results, machine: Mapping[str, object]) -> None:
    """Write the figures between the page's marks, and the picture beside the page."""
    page.with_suffix(".svg").write_text(draw(results))
    begin, end = _MARKS
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    described = ", ".join(f"{name} {value}" for name, value in machine.items())
    figures = (
        f"Measured on: {described}.\n\n{_markdown(_RATIO_HEADS, ratio_rows(results))}\n"
        f"![rates of the parts]({page.stem}.svg)\n\n{_markdown(_PART_HEADS, part_rows(results))}"
    )
    page.write_text(f"{before}{begin}\n\n{figures}\n{end}{after}")


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(*row)
    return table


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def draw(results: Results) -> str:
    """Return the rates as bars, with the spread of the rounds as a line, in SVG."""
    highest = max(measure.per_second for measures in results.values() for measure in measures)
    scale = _BAR_PIXELS / highest
    bars = []
    for row, (name, measures) in enumerate(results.items()):
        top = row * _ROW_PIXELS + 8
        rates = [measure.per_second for measure in measures]
        median, end = statistics.median(rates), _LABEL_PIXELS + max(rates) * scale
        colour = (
            "#2f6f9f"
            if name.startswith(("create", "replay", "mix", "same", "grow", "a million"))
            else "#9aa5ad"
        )
        bars.append(
            f'<text x="{_LABEL_PIXELS - 8}" y="{top + 12}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LABEL_PIXELS}" y="{top}" width="{median * scale:.1f}" height="16"'
            f' fill="{colour}"/>'
            f'<path d="M{_LABEL_PIXELS + min(rates) * scale:.1f} {top + 8}H{end:.1f}"'
            ' stroke="#222"/>'
            f'<text x="{end + 8:.1f}" y="{top + 12}">{median:,.0f}/s</text>'
        )
    height, width = len(results) * _ROW_PIXELS + 16, _LABEL_PIXELS + _BAR_PIXELS + 90
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{"".join(bars)}</svg>\n'
    )
