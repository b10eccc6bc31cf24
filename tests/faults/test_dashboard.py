"""The dashboard of `monitoring/` on real services that break, scraped by a real Prometheus."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from dashboard.panels import Line, Target, answers, panels
from dashboard.picture import page
from dashboard.scene import Scene, staged
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 24
# For scrapes that the scene has kept from being answered.
SCRAPES_SECONDS = 60
# What a scene does not bring about: a bug, or a sweep, whose first one comes minutes after the start.
# Of a comparison, what it compares has data; the others are counted in tests of their own.
QUIET = {
    'stretto_actor_up{job="stretto",instance=~"$instance"} == 0': "stretto_actor_up",
    "sum by (actor) (increase("
    'stretto_actor_crashes_total{job="stretto",instance=~"$instance"}[1h]))': "",
    "sum by (table) (rate("
    'stretto_swept_rows_total{job="stretto",instance=~"$instance"}[$__rate_interval]))': "",
}


async def lines_of(scene: Scene, target: Target) -> list[Line]:
    """Return the lines of a target from the scene's start until now."""
    return await answers(scene.prometheus, target, scene.started, time.time())


async def lines_seen(scene: Scene, target: Target) -> list[Line]:
    """Wait for the lines of a target: a growth is seen by the second scrape."""
    try:
        return await until(lambda: lines_of(scene, target), SCRAPES_SECONDS)
    except TimeoutError:
        raise AssertionError(f"no data: {target.expression}") from None


async def test_every_query_of_the_dashboard_has_data(server_url: str, tmp_path: Path) -> None:
    """Of each panel, each line that it may have; and each panel is drawn."""
    async with staged(server_url, tmp_path) as scene:
        await scene.play(SECONDS)
        shown = []
        for panel in panels():
            lines = []
            for target in panel.targets:
                if target.expression in QUIET:
                    assert [] == await lines_of(scene, target)
                    name = QUIET[target.expression]
                    if name:
                        await until(partial(scene.prometheus.has, name), SCRAPES_SECONDS)
                    continue
                lines += await lines_seen(scene, target)
            shown.append((panel, lines))
        nowhere = Target('stretto_no_such_total{job="stretto"}', "")
        assert [] == await lines_of(scene, nowhere)
    html = page(shown, scene.started, scene.broken)
    assert [] == [panel.title for panel, _ in shown if panel.title not in html]
