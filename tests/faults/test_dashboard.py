"""The dashboard of `monitoring/` on real services that break, scraped by a real Prometheus."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dashboard.panels import Target, answers, panels
from dashboard.picture import page
from dashboard.scene import staged

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 24
# What a scene does not bring about: a bug, or a sweep, whose first one comes minutes after the start.
# Of a comparison, what it compares has data; the others are counted in tests of their own.
QUIET = {
    'stretto_actor_up{job="stretto",instance=~"$instance"} == 0': "stretto_actor_up",
    "sum by (actor) (increase("
    'stretto_actor_crashes_total{job="stretto",instance=~"$instance"}[1h]))': "",
    "sum by (table) (rate("
    'stretto_swept_rows_total{job="stretto",instance=~"$instance"}[$__rate_interval]))': "",
}


async def test_every_query_of_the_dashboard_has_data(server_url: str, tmp_path: Path) -> None:
    """Of each panel, each line that it may have; and each panel is drawn."""
    async with staged(server_url, tmp_path) as scene:
        await scene.play(SECONDS)
        shown = []
        empty = []
        for panel in panels():
            lines = []
            for target in panel.targets:
                found = await answers(scene.prometheus, target, scene.started, time.time())
                lines += found
                if target.expression in QUIET:
                    assert [] == found
                    name = QUIET[target.expression]
                    assert not name or await scene.prometheus.has(name)
                elif not found:
                    empty.append(f"{panel.title}: {target.expression}")
            shown.append((panel, lines))
        assert [] == empty
        nowhere = Target('stretto_no_such_total{job="stretto"}', "")
        assert [] == await answers(scene.prometheus, nowhere, scene.started, time.time())
    html = page(shown, scene.started, scene.broken)
    assert [] == [panel.title for panel, _ in shown if panel.title not in html]
