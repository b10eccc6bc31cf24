"""The metrics of an instance: those of several processes, added up.

A counter must never go back: Prometheus would take that for a restart, and count all of it again.
So what an ended worker has counted, up to its last report, stays in the sum.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import orjson
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stretto.telemetry.table import GAUGES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping

    from prometheus_client import CollectorRegistry

    _Sample = tuple[str, tuple[tuple[str, str], ...]]

# What outlives the process that has counted it.
_COUNTED: Final = frozenset({"counter", "histogram"})
_MERGES: Final[Mapping[str, Callable[[float, float], float]]] = {
    "process_start_time_seconds": min,
    **{gauge.name: gauge.merge for gauge in GAUGES},
}


def report(registry: CollectorRegistry) -> bytes:
    """Return the metrics of a process as `InstanceMetrics` takes them."""
    return orjson.dumps(
        [
            (
                *(family.name, family.documentation, family.type),
                [(sample.name, sample.labels, sample.value) for sample in family.samples],
            )
            for family in registry.collect()
        ]
    )


@dataclass(slots=True)
class _Family:
    meaning: str
    kind: str
    samples: dict[_Sample, float] = field(default_factory=dict)


class InstanceMetrics:
    """Keeps the last report of each process, and adds them up."""

    def __init__(self) -> None:
        self._reports: dict[Hashable, dict[str, _Family]] = {}
        self._ended: dict[str, _Family] = {}
        """What ended processes have counted."""

    def put(self, process: Hashable, reported: bytes) -> None:
        """Take the report of a process, instead of its last one."""
        self._reports[process] = {
            name: _Family(
                meaning, kind, {(each, (*labels.items(),)): n for each, labels, n in samples}
            )
            for name, meaning, kind, samples in orjson.loads(reported)
        }

    def end(self, process: Hashable) -> None:
        """Keep what a process has counted; it will report no more. Idempotent."""
        _add(self._ended, self._reports.pop(process, {}), is_current=False)

    def exposition(self, current: Collection[Hashable]) -> bytes:
        """Return the sum in Prometheus' text format; only `current` processes show their gauges.

        What another one has last said of its present is not true any more.
        """
        whole: dict[str, _Family] = {}
        _add(whole, self._ended, is_current=False)
        for process, families in self._reports.items():
            _add(whole, families, is_current=process in current)
        return generate_latest(_Collected(whole))


def _add(whole: dict[str, _Family], part: Mapping[str, _Family], *, is_current: bool) -> None:
    for name, family in part.items():
        if not is_current and family.kind not in _COUNTED:
            continue
        samples = whole.setdefault(name, _Family(family.meaning, family.kind)).samples
        for sample, value in family.samples.items():
            merge = _merge(name, sample[0])
            samples[sample] = merge(samples[sample], value) if sample in samples else value


def _merge(name: str, sample: str) -> Callable[[float, float], float]:
    # The time at which a series began: that of the first process.
    return min if sample == f"{name}_created" else _MERGES.get(name, operator.add)


class _Collected(Collector):
    """Families as the library writes them."""

    def __init__(self, families: Mapping[str, _Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for name, family in self._families.items():
            metric = Metric(name, family.meaning, family.kind)
            for (sample, labels), value in family.samples.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
