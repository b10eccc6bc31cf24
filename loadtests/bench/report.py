"""The figures as tables and pictures; ratios first, since they hold on other machines too."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from loadtests.bench.against import BEFORE, Ratio
from loadtests.bench.goals import GOALS
from loadtests.bench.picture import Bar, draw
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from loadtests.bench.goals import Results
    from loadtests.bench.machinery import Measure

    Row = tuple[str, ...]

_MARKS = "<!-- figures: drawn by make bench -->", "<!-- end of figures -->"
_OURS = ("create", "replay", "mix", "same", "grow", "a million", "cost: create", "cost: replay")
_GOAL_HEADS = ("ratio", "landed", "goal", "measured", "")
_COST_HEADS = ("part", "service, µs", "PostgreSQL, µs", "idle share", "WAL bytes")
_COSTS = ("service_us", "postgres_us", "idle_share", "wal_bytes_per_creation")
_AGAINST_HEADS = ("part", "per second", "p50", "p99", "more")
_PART_HEADS = ("part", "per second", "min - max", "p50 ms", "p99 ms", "more")


def goal_rows(results: Results) -> list[Row]:
    """Return a row for each goal whose parts were measured."""
    rows: list[Row] = []
    for goal in GOALS:
        try:
            value = goal.ratio(results)
        except (KeyError, ValueError):
            continue
        verdict = "met" if goal.is_met(value) else "missed"
        rows.append((goal.name, goal.landed, goal.goal, f"{value:,.3g}", verdict))
    return rows


def cost_rows(results: Results) -> list[Row]:
    """Return the costs of each part that measures them, with the spread of the rounds."""
    return [
        (name, *(_spread([m.more[cost] for m in found if cost in m.more]) for cost in _COSTS))
        for name, found in results.items()
        if "idle_share" in found[0].more
    ]


def against_rows(results: Results) -> list[Row]:
    """Return each compared part's figures as multiples of the other revision's."""
    rows: list[Row] = []
    for name in _compared(results):
        more = {key: _ratio(results, name, _more(key)) for key in results[name][0].more}
        rows.append(
            (
                name,
                *(str(_ratio(results, name, figure) or "") for figure in (_rate, _p50, _p99)),
                ", ".join(f"{key} {ratio}" for key, ratio in more.items() if ratio),
            )
        )
    return rows


def part_rows(results: Results) -> list[Row]:
    """Return each part's median, spread and other figures."""
    rows: list[Row] = []
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
                f"{statistics.median(map(_p50, measures)):.2f}",
                f"{statistics.median(map(_p99, measures)):.2f}",
                ", ".join(f"{key} {value:,.4g}" for key, value in more.items()),
            )
        )
    return rows


def tables(results: Results) -> Iterator[Table]:
    """Yield all tables for a terminal."""
    yield _table("Ratios of this run's medians", _GOAL_HEADS, goal_rows(results))
    if rows := against_rows(results):
        yield _table("÷ the same at the other revision", _AGAINST_HEADS, rows)
    if rows := cost_rows(results):
        yield _table("Costs of an operation", _COST_HEADS, rows)
    yield _table("Parts", _PART_HEADS, part_rows(results))


def publish(page: Path, results: Results, machine: Mapping[str, object]) -> None:
    """Write the figures between the page's marks, and the pictures beside the page."""
    begin, end = _MARKS
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    described = ", ".join(f"{name} {value}" for name, value in machine.items())
    sections = [f"Measured on: {described}.\n", _markdown(_GOAL_HEADS, goal_rows(results))]
    if rows := against_rows(results):
        picture = page.with_name(f"{page.stem}-against.svg")
        picture.write_text(draw(_ratio_bars(results), mark=1.0))
        sections += [f"![rates ÷ those before]({picture.name})\n", _markdown(_AGAINST_HEADS, rows)]
    if rows := cost_rows(results):
        sections.append(_markdown(_COST_HEADS, rows))
    page.with_suffix(".svg").write_text(draw(_rate_bars(results)))
    sections += [
        f"![rates of the parts]({page.stem}.svg)\n",
        _markdown(_PART_HEADS, part_rows(results)),
    ]
    figures = "\n".join(sections)
    page.write_text(f"{before}{begin}\n\n{figures}\n{end}{after}")


def _rate(measure: Measure) -> float:
    return measure.per_second


def _p50(measure: Measure) -> float:
    return measure.p50_ms


def _p99(measure: Measure) -> float:
    return measure.p99_ms


def _more(key: str) -> Callable[[Measure], float]:
    return lambda measure: measure.more[key]


def _compared(results: Results) -> list[str]:
    return [name for name in results if BEFORE + name in results]


def _ratio(results: Results, name: str, figure: Callable[[Measure], float]) -> Ratio | None:
    now, before = (list(map(figure, results[each])) for each in (name, BEFORE + name))
    return Ratio.of(now, before)


def _spread(values: Sequence[float]) -> str:
    """Return the median and the extremes; nothing of nothing."""
    if not values:
        return ""
    return f"{statistics.median(values):,.4g} ({min(values):,.4g} - {max(values):,.4g})"


def _table(title: str, heads: Sequence[str], rows: Sequence[Row]) -> Table:
    table = Table(*heads, title=title)
    for row in rows:
        table.add_row(*row)
    return table


def _markdown(heads: Sequence[str], rows: Sequence[Row]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rate_bars(results: Results) -> list[Bar]:
    bars = []
    for name, measures in results.items():
        rates = list(map(_rate, measures))
        median = statistics.median(rates)
        text = f"{median:,.0f}/s"
        bars.append(Bar(name, median, min(rates), max(rates), text, name.startswith(_OURS)))
    return bars


def _ratio_bars(results: Results) -> list[Bar]:
    ratios = {name: _ratio(results, name, _rate) for name in _compared(results)}
    return [
        Bar(name, ratio.of_medians, ratio.least, ratio.most, f"{ratio.of_medians:.2f}")
        for name, ratio in ratios.items()
        if ratio
    ]
