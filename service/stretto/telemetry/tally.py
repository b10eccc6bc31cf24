"""Counts what every request counts, in plain numbers.

The metrics library takes a lock for each number, five for one request. So it reads these numbers
only when it is scraped.

Used from the event loop's thread alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from stretto.telemetry.table import FAST_PATH_SECONDS, SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from prometheus_client.core import Metric


class PlainCounter:
    """A counter without a lock; a key is its label's value, or a tuple of its labels' values."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str]) -> None:
        self._name = name
        self._meaning = meaning
        self._labels = labels
        self.counts: Counter[Any] = Counter()

    def collect(self) -> Iterable[Metric]:
        """Return the numbers as the registry wants them."""
        family = CounterMetricFamily(self._name, self._meaning, labels=self._labels)
        for key, count in self.counts.items():
            values = key if isinstance(key, tuple) else (key,)
            family.add_metric([str(value) for value in values], count)
        return [family]


class RequestTally:
    """Requests since the start, with their times; a collector for the library's registry."""

    def __init__(self) -> None:
        self._requests = PlainCounter(
            "stretto_http_requests_total", "Requests answered.", ("method", "route", "status")
        )
        self._closed = 0
        self._seconds: defaultdict[tuple[str, str], _Durations] = defaultdict(
            lambda: _Durations(SECONDS)
        )
        self._fast_path: defaultdict[str, _Durations] = defaultdict(
            lambda: _Durations(FAST_PATH_SECONDS)
        )

    def count(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count an answered request, and its time if it had one."""
        self._requests.counts[method, route, status] += 1
        if seconds is not None:
            self._seconds[method, route].add(seconds)

    def count_closed(self, connections: int) -> None:
        """Count connections that were closed because there were too many."""
        self._closed += connections

    def time_fast_path(self, outcome: str, seconds: float) -> None:
        """Take down the time of an answer on the fast path."""
        self._fast_path[outcome].add(seconds)

    def collect(self) -> Iterable[Metric]:
        """Return the numbers as the registry wants them."""
        requests = HistogramMetricFamily(
            "stretto_http_request_seconds",
            "From a request's first line to its answer.",
            labels=["method", "route"],
        )
        fast_path = HistogramMetricFamily(
            "stretto_fast_path_seconds",
            "From reading a creation to its answer on the fast path.",
            labels=["outcome"],
        )
        for labels, durations in self._seconds.items():
            requests.add_metric(labels, list(durations.buckets()), durations.total_seconds)
        for outcome, durations in self._fast_path.items():
            fast_path.add_metric([outcome], list(durations.buckets()), durations.total_seconds)
        closed = CounterMetricFamily(
            "stretto_connections_closed_total",
            "Clients' connections closed because there were too many.",
            value=self._closed,
        )
        return [*self._requests.collect(), requests, fast_path, closed]


class _Durations:
    """How many durations fell between which bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.total_seconds += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Yield each upper bound with how many durations are not above it."""
        held = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            held += count
            yield str(bound), held
