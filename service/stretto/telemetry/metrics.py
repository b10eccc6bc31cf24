"""Turns observations into metrics, as the table says; shows them beside gauges of the parts."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from stretto.errors import Overloaded
from stretto.observations import AttemptAnswered
from stretto.telemetry.instance import report
from stretto.telemetry.log_writer import dropped_lines
from stretto.telemetry.table import GAUGES, TABLE, Count, CountEach, Line, Measure
from stretto.telemetry.tally import PlainCounter, RequestTally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stretto.observations import Observation
    from stretto.telemetry.table import Metric

    Move = Callable[[Observation], object]
    # By the label's value, or the tuple of the labels' values.
    Reading: TypeAlias = float | Mapping[Any, float]

_REJECTED: Final = AttemptAnswered(Overloaded.code)


class Metrics:
    """What `/metrics` shows, in a registry of its own: a host's names stay the host's."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        requests = RequestTally()
        self.count_request = requests.count
        self.time_fast_path = requests.time_fast_path
        self.count_closed = requests.count_closed
        self.registry.register(requests)
        self.registry.register(LogLines())
        ProcessCollector(registry=self.registry)
        self._moves: Mapping[type[Observation], tuple[Move, ...]] = {
            kind: tuple(_move(each, self.registry) for each in row if not isinstance(each, Line))
            for kind, row in TABLE.items()
        }

    def watch(self, readers: Mapping[str, Callable[[], Reading]]) -> None:
        """Show gauges of the table: by name, what reads each when metrics are read."""
        self.registry.register(_Gauges(readers))

    def observe(self, observation: Observation) -> None:
        """Move the observation's metrics."""
        for move in self._moves[type(observation)]:
            move(observation)

    def count_shed(self) -> None:
        """Count a creation that was rejected before it was parsed: it has taken no time."""
        self.observe(_REJECTED)
        self.count_request("POST", "/v1/groups", 503, None)

    def report(self) -> bytes:
        """Return the metrics as a supervisor takes them, to add them to those of other workers."""
        return report(self.registry)

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


def _move(metric: Metric, registry: CollectorRegistry) -> Move:
    """Register a metric; return what moves it."""
    match metric:
        case Count(name, meaning, labels, is_per_request=True):
            plain = PlainCounter(name, meaning, labels)
            registry.register(plain)
            counts, key_of = plain.counts, attrgetter(*labels)

            def count(observation: Observation) -> None:
                counts[key_of(observation)] += 1

            return count
        case Count():
            return _counting(metric, registry)
        case CountEach(name, meaning, labels, amounts):
            counter = Counter(name, meaning, labels, registry=registry)

            def count_each(observation: Observation) -> None:
                for amount in amounts:
                    counter.labels(amount).inc(getattr(observation, amount))

            return count_each
        case Measure(name, meaning, attribute, bounds):
            histogram = Histogram(name, meaning, buckets=bounds, registry=registry)
            value_of = attrgetter(attribute)
            return lambda observation: histogram.observe(value_of(observation))
        case _:
            assert_never(metric)


def _counting(metric: Count, registry: CollectorRegistry) -> Move:
    counter = Counter(metric.name, metric.meaning, metric.labels, registry=registry)
    amount_of = attrgetter(metric.amount) if metric.amount else lambda _: 1
    if not metric.labels:
        return lambda observation: counter.inc(amount_of(observation))
    key_of = attrgetter(*metric.labels)
    # The library looks a series up with a lock and strings; the values of labels are few.
    series: dict[object, Counter] = {}

    def count(observation: Observation) -> None:
        key = key_of(observation)
        if key not in series:
            values = (getattr(observation, label) for label in metric.labels)
            series[key] = counter.labels(*values)
        series[key].inc(amount_of(observation))

    return count


class LogLines:
    """What the log of this process has lost; a collector for the library's registry."""

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the number as the registry wants it."""
        yield CounterMetricFamily(
            "stretto_log_lines_dropped_total",
            "Lines of the log that were dropped, because nothing read the log.",
            value=dropped_lines.total,
        )


class _Gauges:
    def __init__(self, readers: Mapping[str, Callable[[], Reading]]) -> None:
        self._readers = readers

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for gauge in GAUGES:
            if gauge.name not in self._readers:
                continue
            family = GaugeMetricFamily(gauge.name, gauge.meaning, labels=gauge.labels)
            read = self._readers[gauge.name]()
            for key, value in (read if isinstance(read, Mapping) else {(): read}).items():
                family.add_metric((key,) if isinstance(key, str) else key, value)
            yield family
