"""Metrics of several processes as those of one: what is added, what is kept, what is left out."""

from __future__ import annotations

import re
from uuid import UUID

from stretto.observations import BatchWritten, GuaranteeBroken, ReclaimTried
from stretto.telemetry.instance import InstanceMetrics
from stretto.telemetry.metrics import Metrics


def worker(*, flights: int = 0, relays: int = 1, lag: float = 0, reclaims: int = 0) -> Metrics:
    """A process that has done and has these."""
    metrics = Metrics()
    metrics.watch(
        {
            "stretto_build_info": lambda: {("1.0", "3.11"): 1},
            "stretto_actor_up": lambda: {"relay": relays},
            "stretto_flights": lambda: {"0s": flights},
            "stretto_relay_lag_seconds": lambda: lag,
        }
    )
    for _ in range(reclaims):
        metrics.observe(ReclaimTried("won"))
        metrics.observe(BatchWritten(3, 3, 0.2))
        metrics.count_request("POST", "/v1/groups", 201, 0.01)
    return metrics


def shown(instance: InstanceMetrics, *current: object) -> dict[str, float]:
    """Return the series of an instance, by name and labels."""
    text = instance.exposition(current).decode()
    series = (re.split(r" (?=\S+$)", line) for line in text.splitlines() if line[0] != "#")
    return {name: float(value) for name, value in series}


def one(metrics: Metrics) -> InstanceMetrics:
    """An instance of a single process."""
    instance = InstanceMetrics()
    instance.put("a", metrics.report())
    return instance


def of_work(exposition: bytes) -> list[bytes]:
    """Return the lines but for what the process itself uses: that changes while it is looked at."""
    return [line for line in exposition.splitlines() if b"process_" not in line]


def test_one_process_is_shown_as_it_shows_itself() -> None:
    """Names, types, help, labels and order."""
    metrics = worker(flights=2, reclaims=3)
    assert of_work(metrics.exposition()) == of_work(one(metrics).exposition(["a"]))


def test_counters_and_histograms_are_added_up() -> None:
    """Whatever only one of them has is there, too."""
    instance = InstanceMetrics()
    both = worker(reclaims=2), worker(reclaims=5)
    both[1].observe(ReclaimTried("lost"))
    for number, each in enumerate(both):
        instance.put(number, each.report())
    series = shown(instance, 0, 1)
    assert 7 == series['stretto_reclaims_total{result="won"}']
    assert 1 == series['stretto_reclaims_total{result="lost"}']
    assert 21 == series["stretto_batch_writes_sum"]
    assert 7 == series['stretto_batch_writes_bucket{le="4.0"}']
    assert 7 == series['stretto_http_request_seconds_count{method="POST",route="/v1/groups"}']


def test_gauges_become_one_as_the_table_says() -> None:
    """Added up, but for those of which a sum says nothing."""
    instance = InstanceMetrics()
    instance.put("a", worker(flights=2, lag=7).report())
    instance.put("b", worker(flights=3, lag=5, relays=0).report())
    series = shown(instance, "a", "b")
    assert 5 == series['stretto_flights{age="0s"}']
    assert 7 == series["stretto_relay_lag_seconds"]
    assert 0 == series['stretto_actor_up{actor="relay"}']
    assert 1 == series['stretto_build_info{python="3.11",version="1.0"}']


def test_what_processes_use_is_added_up_and_their_start_is_the_first_one() -> None:
    """A worker that is replaced must not look like a restart of the instance."""
    alone = shown(one(worker()), "a")
    instance = one(worker())
    instance.put("b", worker().report())
    series = shown(instance, "a", "b")
    assert series["process_resident_memory_bytes"] > 1.5 * alone["process_resident_memory_bytes"]
    assert series["process_start_time_seconds"] == alone["process_start_time_seconds"]


def test_what_an_ended_process_has_counted_stays() -> None:
    """A counter that went back would be counted again; its gauges are gone with it."""
    instance = InstanceMetrics()
    instance.put("a", worker(flights=2, reclaims=4).report())
    instance.put("b", worker(flights=1, reclaims=1).report())
    created = shown(instance, "a", "b")["stretto_batch_writes_created"]
    instance.end("a")
    instance.end("a")
    series = shown(instance, "b")
    assert 5 == series['stretto_reclaims_total{result="won"}']
    assert 5 == series["stretto_batch_writes_count"]
    assert 1 == series['stretto_flights{age="0s"}']
    assert created == series["stretto_batch_writes_created"]
    instance.put("c", worker(reclaims=1).report())
    assert 6 == shown(instance, "b", "c")['stretto_reclaims_total{result="won"}']
    instance.end("b")
    instance.end("c")
    assert 6 == shown(instance)['stretto_reclaims_total{result="won"}']


def test_a_process_that_does_not_report_keeps_its_counters_alone() -> None:
    """What it has counted is true for ever, what it had in flight is not."""
    instance = InstanceMetrics()
    stuck = worker(flights=2, reclaims=4)
    stuck.observe(GuaranteeBroken(UUID(int=1)))
    instance.put("a", stuck.report())
    instance.put("b", worker(flights=1).report())
    series = shown(instance, "b")
    assert 1 == series["stretto_guarantees_broken_total"]
    assert 4 == series['stretto_reclaims_total{result="won"}']
    assert 1 == series['stretto_flights{age="0s"}']
    assert series["process_cpu_seconds_total"] > 0
