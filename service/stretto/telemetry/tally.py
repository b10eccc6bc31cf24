"""Counts what every request counts, in plain numbers.

One request would take five of the metrics library's locks; so the library asks for the numbers
when somebody asks for the metrics.

Used from the event loop's thread alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from stretto.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.core import Metric

SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Tally:
    """Requests and answers since the start; a collector for the metrics library's registry."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        """Requests for a group by outcome."""
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._request_seconds: defaultdict[str, _Durations] = defaultdict(_Durations)

    def count_request(self, method: str, route: str, status: int, seconds: float | None) -> None:
        """Count an answered request, and its time if it had one."""
        self._requests[method, route, status] += 1
        if seconds is not None:
            self._request_seconds[route].add(seconds)

    def count_shed(self) -> None:
        """Count a creation that was shed at the door: it has taken no time."""
        self.attempts[Overloaded.code] += 1
        self._requests["POST", "/v1/groups", 503] += 1

    def collect(self) -> Iterable[Metric]:
        """Return the numbers as the registry wants them."""
        requests = CounterMetricFamily(
            "stretto_http_requests", "Requests answered.", labels=["method", "route", "status"]
        )
        for (method, route, status), count in self._requests.items():
            requests.add_metric([method, route, str(status)], count)
        seconds = HistogramMetricFamily(
            "stretto_http_request_seconds",
            "From a request's first line to its answer.",
            labels=["route"],
        )
        for route, durations in self._request_seconds.items():
            seconds.add_metric([route], list(durations.buckets()), durations.total_seconds)
        attempts = CounterMetricFamily(
            "stretto_attempts",
            "Requests for a group, by how they were answered.",
            labels=["outcome"],
        )
        for outcome, count in self.attempts.items():
            attempts.add_metric([outcome], count)
        return requests, seconds, attempts


class _Durations:
    """How many durations fell between which bounds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(SECONDS) + 1)
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(SECONDS, seconds)] += 1
        self.total_seconds += seconds

    def buckets(self) -> Iterator[tuple[str, float]]:
        """Yield each upper bound with how many durations it holds, those below it included."""
        held = 0
        for bound, count in zip((*SECONDS, "+Inf"), self._counts, strict=True):
            held += count
            yield str(bound), held
