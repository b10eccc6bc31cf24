"""The panels of `monitoring/dashboard.json`, and the answers to their queries."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from support.prometheus import MONITORING, faster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.prometheus import Prometheus, Series

# Of a scene of a minute. A busy machine needs more than a tenth of a second for a scrape, while a
# worker that was killed starts again; here it has a second.
PACE: Final = 15
# What Grafana makes of scrapes that are 15 s apart: four of them.
RATE_INTERVAL: Final = "60s"


@dataclass(frozen=True, slots=True)
class Target:
    """A query, and how its series are named."""

    expression: str
    legend: str

    def at_pace(self) -> str:
        """Return the query for all instances, whose windows pass as fast as the alerts of a test."""
        text = self.expression.replace("$instance", ".*").replace("$__rate_interval", RATE_INTERVAL)
        return re.sub(r"(?<=\[)\d+[smh](?=\])", lambda found: faster(found[0], PACE), text)

    def name(self, series: Series) -> str:
        """Return what the legend says of a series."""
        return re.sub(r"{{(\w+)}}", lambda found: series.labels.get(found[1], ""), self.legend)


@dataclass(frozen=True, slots=True)
class Panel:
    """What stands in a cell of the grid, which has 24 columns."""

    kind: str
    title: str
    unit: str
    is_stacked: bool
    no_value: str
    place: tuple[int, int, int, int]
    """Column, row, width, height."""
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A named series with its numbers."""

    name: str
    points: list[tuple[float, float]]


def panels() -> Iterator[Panel]:
    """Return them in their order; rows too, which have a title alone."""
    for each in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        defaults: dict[str, Any] = each.get("fieldConfig", {}).get("defaults", {})
        place = each["gridPos"]
        yield Panel(
            kind=each["type"],
            title=each["title"],
            unit=defaults.get("unit", ""),
            is_stacked=defaults.get("custom", {}).get("stacking", {}).get("mode") == "normal",
            no_value=defaults.get("noValue", "No data"),
            place=(place["x"], place["y"], place["w"], place["h"]),
            targets=tuple(
                Target(target["expr"], target["legendFormat"]) for target in each.get("targets", ())
            ),
        )


async def answers(prometheus: Prometheus, target: Target, start: float, end: float) -> list[Line]:
    """Return the lines of a target; a quantile or a share of nothing is no number, and left out."""
    lines = [
        Line(target.name(series), [point for point in series.points if math.isfinite(point[1])])
        for series in await prometheus.series(target.at_pace(), start, end)
    ]
    return [line for line in lines if line.points]
