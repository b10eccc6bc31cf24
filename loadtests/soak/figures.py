"""Judges a soak's samples: memory's slope and return, failures by kind, repeated lines of the log.

No I/O here, so that the judgement itself can be tested.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from statistics import linear_regression, median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Faster growth would double a process's memory within a few days.
SLOPE_MIB_PER_HOUR_MAX: Final = 10.0
# Over a shorter time, the noise of single samples looks like a slope.
SLOPE_SECONDS_MIN: Final = 900.0
# The median of a window ignores memory that a single batch holds for a moment.
WINDOW_SECONDS: Final = 30.0
RETURN_RATIO_MAX: Final = 1.3
# A read may fail as often as a creation, or in a thousandth of all cases.
READ_FAILURES_MAX: Final = 0.001
CREATION: Final = "create"


@dataclass(frozen=True, slots=True)
class Sample:
    """The service's memory at one moment of the run."""

    seconds: float
    mib: float


@dataclass(slots=True)
class Figures:
    """The results of a run."""

    samples: list[Sample]
    start_mib: float
    end_mib: float
    requests: Counter[str]
    failures: Counter[str]
    problems: Counter[str] = field(default_factory=Counter)
    """Answers to failed requests, by kind and code."""
    log_bytes: int = 0
    log_events: Counter[str] = field(default_factory=Counter)
    log_repeats: int = 0

    @property
    def slope_mib_per_hour(self) -> float:
        """Growth of memory in the second half, by least squares over medians of windows."""
        half = self.samples[-1].seconds / 2
        points = _windows([sample for sample in self.samples if sample.seconds >= half])
        if len(points) < 2:
            return 0.0
        return 3600 * linear_regression(*zip(*points, strict=True)).slope

    @property
    def return_ratio(self) -> float:
        """Memory after the sessions have ended, as a multiple of the start value."""
        return self.end_mib / self.start_mib

    def misses(self) -> list[str]:
        """Return the goals that were missed."""
        missed = []
        is_long = self.samples[-1].seconds / 2 >= SLOPE_SECONDS_MIN
        if is_long and self.slope_mib_per_hour > SLOPE_MIB_PER_HOUR_MAX:
            missed.append(f"memory grows by {self.slope_mib_per_hour:.1f} MiB/h")
        if is_long and self.return_ratio > RETURN_RATIO_MAX:
            missed.append(f"memory ends at {self.return_ratio:.2f} of its start")
        allowed = max(self._share(CREATION), READ_FAILURES_MAX)
        missed += [
            f"{kind} fails in {self._share(kind):.2%}, creations in {self._share(CREATION):.2%}"
            for kind in sorted(self.requests)
            if self._share(kind) > allowed and self.failures[kind] > self.failures[CREATION]
        ]
        if self.log_repeats:
            missed.append(f"{self.log_repeats} lines of the log repeat another of the same second")
        return missed

    def document(self) -> dict[str, Any]:
        """Return the JSON document of the results."""
        return {
            "minutes": round(self.samples[-1].seconds / 60, 1),
            "start_mib": round(self.start_mib, 1),
            "peak_mib": round(max(sample.mib for sample in self.samples), 1),
            "end_mib": round(self.end_mib, 1),
            "return_ratio": round(self.return_ratio, 2),
            "slope_mib_per_hour": round(self.slope_mib_per_hour, 1),
            "requests": dict(sorted(self.requests.items())),
            "failures": dict(sorted(self.failures.items())),
            "problems": dict(sorted(self.problems.items())),
            "log_bytes": self.log_bytes,
            "log_events": dict(sorted(self.log_events.items())),
            "log_repeats": self.log_repeats,
            "misses": self.misses(),
            "samples": [[round(s.seconds), round(s.mib, 1)] for s in self.samples],
        }

    def read_log(self, lines: Iterable[str]) -> None:
        """Count the lines; a line equal to another one of the same second is a repeat."""
        said: set[tuple[str, str]] = set()
        for line in lines:
            self.log_bytes += len(line)
            try:
                document = json.loads(line)
            except ValueError:
                # A message for a person at the start, or a traceback.
                continue
            second = str(document.pop("timestamp", ""))[:19]
            self.log_events[document.get("event", "")] += 1
            line_without_time = json.dumps(document, sort_keys=True)
            self.log_repeats += (second, line_without_time) in said
            said.add((second, line_without_time))

    def _share(self, kind: str) -> float:
        return self.failures[kind] / self.requests[kind] if self.requests[kind] else 0.0


def table(figures: Figures) -> str:
    """Return the most important results as a table."""
    document = figures.document()
    lines = [
        f"{name.replace('_', ' '):>20}  {document[name]}"
        for name in (
            *("minutes", "start_mib", "peak_mib", "end_mib", "return_ratio"),
            *("slope_mib_per_hour", "log_bytes", "log_repeats"),
        )
    ]
    lines += [
        f"{kind:>20}  {count:>8} sent, {figures.failures[kind]:>6} failed"
        for kind, count in sorted(figures.requests.items())
    ]
    lines += [f"{kind:>32}  {count}" for kind, count in sorted(figures.problems.items())]
    lines += [f"{'log ' + event:>32}  {n}" for event, n in sorted(figures.log_events.items())]
    return "\n".join(lines)


def _windows(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Return the medians of the samples' windows, each at its middle."""
    windows: dict[int, list[float]] = {}
    for sample in samples:
        windows.setdefault(int(sample.seconds // WINDOW_SECONDS), []).append(sample.mib)
    return [((number + 0.5) * WINDOW_SECONDS, median(mib)) for number, mib in windows.items()]
