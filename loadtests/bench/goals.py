"""The goals of the benchmark: ratios, which hold on other machines too, and their bounds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from loadtests.bench.against import BEFORE
from loadtests.bench.machinery import Measure

if TYPE_CHECKING:
    from collections.abc import Callable

    Ratio = Callable[["Results"], float]

Results = dict[str, list[Measure]]

ALONE = "create, 1 connection"
CREATE_32 = "create, 32 connections"
CREATE_128 = "create, 128 connections"
CONVENTIONAL = "conventional, 16 clients"
COST_CREATE = "cost: create, 128 connections"
COST_REPLAY = "cost: replay"
COST_FLOOR = "cost: floor"
COST_CONVENTIONAL = "cost: conventional, 16 clients"
FIVE_MILLION = "grow: 5 million groups"
MILLION = "a million creations"
THRICE = "overload: three times the peak"


@dataclass(frozen=True, slots=True)
class Goal:
    """A row of the table of goals."""

    name: str
    landed: str
    """The value before the present work on speed."""
    goal: str
    """A lower bound (≥) or an upper one (≤)."""
    ratio: Ratio

    def is_met(self, value: float) -> bool:
        """Whether the value is on the right side of the bound."""
        sign, bound = self.goal.split()
        return value <= float(bound) if sign == "≤" else value >= float(bound)


def _each(part: str, figure: Callable[[Measure], float]) -> Ratio:
    """Return the median of a figure of one part."""
    return lambda results: statistics.median(map(figure, results[part]))


def _more(part: str, name: str) -> Ratio:
    return _each(part, lambda measure: measure.more[name])


def _rate(part: str) -> Ratio:
    return _each(part, lambda measure: measure.per_second)


def _p50(part: str) -> Ratio:
    return _each(part, lambda measure: measure.p50_ms)


def _p99(part: str) -> Ratio:
    return _each(part, lambda measure: measure.p99_ms)


def _over(dividend: Ratio, divisor: Ratio) -> Ratio:
    return lambda results: dividend(results) / (divisor(results) or math.nan)


def _best_create(*, of_one_process: bool = False) -> Ratio:
    """Return the best rate at 32 to 256 connections, of one process or of two."""

    def ratio(results: Results) -> float:
        return max(
            _rate(part)(results)
            for part in results
            if part.startswith("create, ") and part != ALONE
            if not (of_one_process and "processes" in part)
        )

    return ratio


GOALS = (
    Goal(
        "create, 1 process, 128 connections ÷ conventional, 16 clients",
        "2.0",
        "≥ 3.2",
        _over(_rate(CREATE_128), _rate(CONVENTIONAL)),
    ),
    Goal(
        "create, 1 process, 32 connections ÷ the same",
        "1.65",
        "≥ 2.6",
        _over(_rate(CREATE_32), _rate(CONVENTIONAL)),
    ),
    Goal(
        "create, 2 processes, 256 connections ÷ the same",
        "3.0",
        "≥ 3.8",
        _over(_rate("create, 256 connections, 2 processes"), _rate(CONVENTIONAL)),
    ),
    Goal(
        "create, 1 process, 128 connections ÷ the same at the revision before",
        "1",
        "≥ 1.5",
        _over(_rate(CREATE_128), _rate(BEFORE + CREATE_128)),
    ),
    Goal(
        "p50 of one creation alone ÷ conventional, 1 client",
        "0.94 - 1.04",
        "≤ 0.8",
        _over(_p50(ALONE), _p50("conventional, 1 client")),
    ),
    Goal(
        "p99 ÷ p50 of create, 32 connections",
        "1.7 - 2.5",
        "≤ 1.8",
        _each(CREATE_32, lambda measure: measure.p99_ms / measure.p50_ms),
    ),
    Goal(
        "CPU time per creation of the service, 128 connections ÷ per request of bare aiohttp",
        "3.3 (131 µs ÷ 40 µs)",
        "≤ 2.2",
        _over(_more(COST_CREATE, "service_us"), _more(COST_FLOOR, "service_us")),
    ),
    Goal(
        "CPU time per creation of PostgreSQL, 128 connections ÷ per transaction of the conventional"
        " script",
        "0.17 (84 µs ÷ 495 µs)",
        "≤ 0.13",
        _over(_more(COST_CREATE, "postgres_us"), _more(COST_CONVENTIONAL, "postgres_us")),
    ),
    Goal("replay ÷ bare aiohttp", "1.6 - 2.1", "≥ 2", _over(_rate("replay"), _rate("floor"))),
    Goal(
        "same key, 2 processes ÷ bare aiohttp",
        "0.55",
        "≥ 1",
        _over(_rate("same key, 2 processes"), _rate("floor")),
    ),
    Goal(
        "created at three times the peak ÷ at the peak", "0.74", "≥ 0.85", _more(THRICE, "of_peak")
    ),
    Goal(
        "idle share of the machine at 128 connections, 1 process",
        "0.29",
        "≤ 0.15",
        _more(COST_CREATE, "idle_share"),
    ),
    Goal(
        "best create ÷ own statements, 16 clients",
        "1.85",
        "≥ 1.2",
        _over(_best_create(), _rate("own statements, 16 clients")),
    ),
    Goal("best create ÷ one by one", "5.95", "≥ 3", _over(_best_create(), _rate("one by one"))),
    Goal("best create ÷ limit", "0.619", "≥ 0.5", _over(_best_create(), _rate("limit"))),
    Goal(
        "WAL flushes per creation, 128 connections",
        "0.0342",
        "≤ 0.15",
        _more(COST_CREATE, "flushes_per_creation"),
    ),
    Goal(
        "create at 5 million groups, sweeping ÷ empty",
        "0.84",
        "≥ 0.85",
        _more(FIVE_MILLION, "of_empty"),
    ),
    Goal(
        "p99 of create at 5 million groups, sweeping ÷ not sweeping",
        "1.43",
        "≤ 1.5",
        _over(_p99(FIVE_MILLION), _more(FIVE_MILLION, "p99_ms_without_sweep")),
    ),
    Goal(
        # Each creation leaves an attempt and an event to sweep.
        "rows swept beside it ÷ two for each creation",
        "1.23",
        "≥ 1",
        _each(FIVE_MILLION, lambda m: m.more["swept_per_second"] / (2 * m.per_second)),
    ),
    Goal(
        "MiB of a process after a million creations", "118", "≤ 150", _more(MILLION, "memory_mib")
    ),
    Goal(
        "the same ÷ after the first 200,000",
        "1.08",
        "≤ 1.1",
        _over(_more(MILLION, "memory_mib"), _more(MILLION, "memory_mib_first")),
    ),
    Goal(
        "relay ÷ best create of one process",
        "8.19",
        "≥ 1",
        _over(_rate("relay"), _best_create(of_one_process=True)),
    ),
    Goal(
        "the same to NATS",
        "1.74",
        "≥ 1",
        _over(_rate("relay to NATS"), _best_create(of_one_process=True)),
    ),
    Goal(
        "p99 in ms from a request to its event, at half of peak",
        "21",
        "≤ 100",
        _p99("events: create to session"),
    ),
    Goal("the same through NATS", "28.5", "≤ 200", _p99("events: create to session, NATS")),
    Goal(
        "milliseconds from one event to the last of 5,000 sessions",
        "429",
        "≤ 1000",
        _more("events: one to 5,000 sessions", "slowest_ms"),
    ),
    Goal(
        "KiB of an idle session among 10,000",
        "22.9",
        "≤ 40",
        _more("events: 10,000 idle sessions", "kib_per_session"),
    ),
    Goal(
        # Its queue of 256 events of 4 KB, and its buffers.
        "KiB that a mute session costs",
        "280",
        "≤ 1200",
        _more("events: a mute session", "grown_kib"),
    ),
    Goal(
        "memory at the end of three times the peak ÷ half-way",
        "1.03",
        "≤ 1.1",
        _each(THRICE, lambda measure: measure.more["end_mib"] / measure.more["half_mib"]),
    ),
    Goal(
        "seconds to 95 % of the rate after the database stood still for ten",
        "0",
        "≤ 30",
        _more("overload: a database that stood still", "recovered_seconds"),
    ),
    Goal(
        "writes per key at half as much again as the peak, with retries",
        "1",
        "≤ 1.1",
        _more("overload: clients that retry", "writes_per_key"),
    ),
    Goal(
        "p50 of good clients beside hostile ones ÷ alone",
        "1.08",
        "≤ 2",
        _more("hostile clients beside good ones", "p50_ratio"),
    ),
)
