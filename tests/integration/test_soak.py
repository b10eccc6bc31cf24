"""The soak: what its figures mean, and that it runs; its verdict on memory takes longer than a test."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

LOADTESTS: Final = Path(__file__).parents[2] / "loadtests"
MINUTES: Final = 40


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the figures."""
    monkeypatch.syspath_prepend(LOADTESTS)
    return import_module("soak.figures")


def figures(soak: Any, memory: Callable[[float], float] = lambda _: 100.0, **fields: Any) -> Any:
    """Return a long run's figures: a good one's, unless the fields say otherwise."""
    seconds = range(0, 60 * MINUTES, 2)
    good = {
        "start_mib": 100.0,
        "end_mib": 105.0,
        "requests": Counter({"create": 10_000, "lookup": 5_000}),
        "failures": Counter(),
    }
    return soak.Figures([soak.Sample(s, memory(s)) for s in seconds], **(good | fields))


def test_a_good_run_misses_nothing(soak: Any) -> None:
    """Memory that stays and comes back, single peaks, as many failures as creations have."""

    def peaks(seconds: float) -> float:
        return 100.0 + (50.0 if seconds % 30 == 0 else 0.0) + 9.0 * seconds / 3600

    failures = Counter({"create": 50, "lookup": 20})
    run = figures(soak, peaks, failures=failures)
    assert [] == run.misses()
    assert 9.0 == pytest.approx(run.slope_mib_per_hour)


def test_only_the_second_half_is_judged(soak: Any) -> None:
    """Caches fill in the first."""
    assert [] == figures(soak, lambda seconds: min(seconds / 10, 100.0)).misses()


@pytest.mark.parametrize(
    ("expected", "fields"),
    [
        ("memory grows by 11.0 MiB/h", {"memory": lambda seconds: 100 + 11 * seconds / 3600}),
        ("memory ends at 1.31 of its start", {"end_mib": 131.0}),
        ("lookup fails in 1.00%, creations in 0.01%", {"failures": {"create": 1, "lookup": 50}}),
    ],
)
def test_each_miss_is_reported(soak: Any, expected: str, fields: dict[str, Any]) -> None:
    """One at a time."""
    if "failures" in fields:
        fields["failures"] = Counter(fields["failures"])
    assert [expected] == figures(soak, **fields).misses()


def test_a_short_run_is_not_judged_by_its_memory(soak: Any) -> None:
    """Its noise would be a slope of hundreds of MiB an hour."""
    samples = [soak.Sample(seconds, 100.0 + seconds) for seconds in range(60)]
    assert [] == soak.Figures(samples, 100.0, 160.0, Counter(), Counter()).misses()


def test_lines_that_say_the_same_in_one_second_are_repeats(soak: Any) -> None:
    """Other words, or another second, are news; what is no JSON is not counted."""
    run = figures(soak)
    at = [f'"timestamp": "2026-01-01T00:00:0{number}.5Z"' for number in (1, 1, 2)]
    lines = [f'{{"event": "write.failed", "kind": "Transient", {each}}}\n' for each in at]
    run.read_log([*lines, lines[0].replace("Transient", "Refused"), "Traceback\n"])
    assert (1, Counter({"write.failed": 4})) == (run.log_repeats, run.log_events)
    assert sum(map(len, lines)) + len(lines[0]) - 2 + 10 == run.log_bytes
    assert ["1 lines of the log repeat another of the same second"] == run.misses()


async def test_a_short_soak_runs_and_passes(tmp_path: Path) -> None:
    """All kinds of requests, sessions, the checker and the check of the database."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "soak", "--minutes", "0.1", "--scale", "0.1"),
        *("--folder", tmp_path),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(LOADTESTS)},
    )
    assert process.stdout is not None
    output = (await process.stdout.read()).decode()
    assert (0, "passed") == (await process.wait(), output.splitlines()[-1]), output
    found = json.loads((tmp_path / "figures.json").read_text())
    kinds = {"create", "replay", "same", "lookup", "list", "ready", "session"}
    assert kinds == found["requests"].keys()
