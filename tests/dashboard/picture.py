"""A page that shows panels with their lines, as Grafana lays them out; plain SVG, without scripts."""

from __future__ import annotations

import html
import itertools
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dashboard.panels import Line, Panel

# Grafana's: columns, and the height of a row with the gap below it.
COLUMNS: Final = 24
WIDTH: Final = 1440
ROW: Final = 38
GAP: Final = 8
HEAD: Final = 92
LEFT: Final = 58
# Of the plot, and of a line of the legend below it.
TOP, BOTTOM, LEGEND_LINE = 34, 22, 16
# Its classic palette.
COLORS: Final = (
    *("#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0"),
    *("#508642", "#cca300", "#447ebc", "#c15c17"),
)
STYLE: Final = """
body { margin: 0; background: #111217; color: #ccccdc; font: 12px sans-serif; position: relative }
.panel { position: absolute; background: #181b1f; border: 1px solid #2c2f36; overflow: hidden }
.row { position: absolute; font-size: 15px; line-height: 30px }
h1 { font-size: 20px; margin: 8px 10px 4px } p { margin: 4px 10px; color: #9fa2ab }
h2 { font-size: 13px; margin: 8px 10px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
.stats { display: flex; flex-wrap: wrap; justify-content: space-around; align-content: center;
  position: absolute; inset: 30px 6px 6px }
.stat { text-align: center; padding: 2px 8px } .stat b { display: block; font-size: 28px }
.empty { position: absolute; inset: 45% 0 0; text-align: center; color: #9fa2ab }
.legend { position: absolute; left: 10px; right: 6px; bottom: 4px; line-height: 16px;
  max-height: 48px; overflow: hidden }
.legend span { margin-right: 12px; white-space: nowrap }
.legend i { display: inline-block; width: 12px; height: 3px; margin-right: 5px; vertical-align: middle }
svg { position: absolute; left: 0; top: 0 } svg text { fill: #9fa2ab; font: 11px sans-serif }
"""


def page(
    shown: Sequence[tuple[Panel, list[Line]]], start: float, broken: Sequence[tuple[float, str]]
) -> str:
    """Return the page: the panels in their places, and above them what was broken when."""
    bottom = max(panel.place[1] + panel.place[3] for panel, _ in shown)
    acts = "; ".join(f"{at:.0f} s: {html.escape(words)}" for at, words in broken)
    return (
        f"<!doctype html><meta charset=utf-8><title>stretto</title><style>{STYLE}</style>"
        f'<body style="width:{WIDTH}px;height:{HEAD + bottom * ROW}px">'
        "<h1>stretto</h1><p>The panels of monitoring/dashboard.json with the answers of a Prometheus,"
        " drawn by tests/dashboard and not by Grafana. A second here is a minute of the rules.</p>"
        f"<p>{acts}</p>" + "".join(_panel(panel, lines, start) for panel, lines in shown)
    )


def _panel(panel: Panel, lines: list[Line], start: float) -> str:
    x, y, columns, rows = panel.place
    cell = WIDTH / COLUMNS
    width, height = columns * cell - GAP, rows * ROW - GAP
    place = f"left:{x * cell + GAP / 2}px;top:{HEAD + y * ROW}px"
    title = html.escape(panel.title)
    if panel.kind == "row":
        return f'<div class=row style="{place}">\u2304 {title}</div>'
    if not lines:
        inner = f"<div class=empty>{html.escape(panel.no_value)}</div>"
    elif panel.kind == "stat":
        inner = f"<div class=stats>{''.join(_stats(panel, lines))}</div>"
    else:
        inner = _plot(panel, lines, start, width, height)
    size = f"width:{width}px;height:{height}px"
    return f'<div class=panel style="{place};{size}"><h2>{title}</h2>{inner}</div>'


def _stats(panel: Panel, lines: list[Line]) -> Iterator[str]:
    """Return the last value of each line that has one at the end."""
    end = max(line.points[-1][0] for line in lines)
    for line in lines:
        at, value = line.points[-1]
        if at == end:
            name = html.escape(line.name)
            yield f"<div class=stat><b>{value_text(value, panel.unit)}</b>{name}</div>"


def _plot(panel: Panel, lines: list[Line], start: float, width: float, height: float) -> str:
    """Return axes, lines with the area below them, and the legend."""
    end = max(line.points[-1][0] for line in lines)
    drawn = _stacked(lines) if panel.is_stacked else [(line, {}) for line in lines]
    top_value = max((each[1] for line, _ in drawn for each in line.points), default=0.0)
    scale = 2**20 if panel.unit == "bytes" else 1
    ticks = [tick * scale for tick in _ticks(top_value / scale)]
    legend_lines = 1 + sum(len(line.name) + 6 for line in lines) * 7 // int(width)
    foot = height - BOTTOM - LEGEND_LINE * min(legend_lines, 3) - 6

    def across(at: float) -> float:
        return LEFT + (at - start) / max(end - start, 1) * (width - LEFT - 12)

    def up(value: float) -> float:
        return foot - value / ticks[-1] * (foot - TOP)

    parts = []
    for tick in ticks:
        y = up(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{width - 12:.1f}" stroke="#2c2f36"/>')
        text = value_text(tick, panel.unit)
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for second in range(0, int(end - start) + 1, 10):
        x = across(start + second)
        parts.append(
            f'<text x="{x:.1f}" y="{foot + 15:.1f}" text-anchor="middle">{second} s</text>'
        )
    for (line, below), color in zip(drawn, itertools.cycle(COLORS), strict=False):
        for piece in _pieces(line.points):
            over = "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in piece)
            under = "L".join(
                f"{across(at):.1f} {up(below.get(at, 0.0)):.1f}" for at, _ in reversed(piece)
            )
            parts.append(f'<path d="M{over}L{under}Z" fill="{color}" fill-opacity=".1"/>')
            parts.append(f'<path d="M{over}" fill="none" stroke="{color}" stroke-width="1.3"/>')
    legend = "".join(
        f'<span><i style="background:{color}"></i>{html.escape(line.name)}</span>'
        for line, color in zip(lines, itertools.cycle(COLORS), strict=False)
    )
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}">{"".join(parts)}</svg>'
        f"<div class=legend>{legend}</div>"
    )


def _pieces(points: list[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """Return the points between gaps: a line does not go on where there is no value."""
    piece: list[tuple[float, float]] = []
    for point in points:
        if piece and point[0] - piece[-1][0] > 0.3:
            yield piece
            piece = []
        piece.append(point)
    yield piece


def _stacked(lines: list[Line]) -> list[tuple[Line, dict[float, float]]]:
    """Return each line on top of those before it, and what is below it."""
    below: dict[float, float] = {}
    stacked = []
    for line in lines:
        under = dict(below)
        points = [(at, value + below.get(at, 0.0)) for at, value in line.points]
        below |= dict(points)
        stacked.append((type(line)(line.name, points), under))
    return stacked


def _ticks(top: float) -> list[float]:
    """Return round values from 0 to above the largest."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(top / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if step * factor * 4 >= top)
    return [step * number for number in range(math.ceil(top / step) + 1)]


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit, as short as Grafana has it."""
    match unit:
        case "s" if 0 < value < 1:
            return f"{_short(value * 1000)} ms"
        case "s":
            return f"{_short(value)} s"
        case "bytes":
            return f"{_short(value / 2**20)} MiB"
        case "percentunit":
            return f"{_short(value * 100)} %"
        case "reqps":
            return f"{_short(value)} req/s"
        case "ops":
            return f"{_short(value)} ops/s"
        case _:
            return _short(value)


def _short(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.3g} K"
    return f"{value:.3g}"
