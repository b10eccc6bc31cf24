"""What a signal asks of a process, and what the next one does."""

from __future__ import annotations

import asyncio
from signal import SIGHUP, SIGINT, SIGTERM
from typing import TYPE_CHECKING

import pytest

from stretto.runtime.stop import ORDER_SECONDS, Stop
from support.clock import Clock

if TYPE_CHECKING:
    from signal import Signals


@pytest.mark.parametrize(
    ("expected", "signals"),
    [
        ((True, False), [SIGTERM]),
        ((True, True), [SIGINT]),
        ((True, True), [SIGTERM, SIGTERM]),
        ((True, True), [SIGTERM, SIGINT]),
    ],
)
def test_sigterm_drains_and_what_follows_or_sigint_skips_the_drain(
    expected: tuple[bool, bool], signals: list[Signals]
) -> None:
    """Each of these signals has a step left to take."""
    clock = Clock()
    stop = Stop(drain_seconds=10, clock_seconds=clock)
    for number in signals:
        assert stop.take(number)
        clock.now += ORDER_SECONDS
    assert expected == (stop.asked.is_set(), stop.at_once.is_set())


@pytest.mark.parametrize("drain_seconds", [0, 10])
async def test_signals_that_come_together_are_one_order(drain_seconds: float) -> None:
    """`timeout` sends two, a terminal and its shell send one each; they last no longer for that."""
    clock = Clock()
    stop = Stop(drain_seconds, clock_seconds=clock)
    assert stop.take(SIGTERM)
    if not drain_seconds:
        await stop.drain()
    for number in (SIGTERM, SIGHUP):
        clock.now += 0.4 * ORDER_SECONDS
        assert stop.take(number)
        assert stop.at_once.is_set() is not bool(drain_seconds)
    clock.now += 0.4 * ORDER_SECONDS
    assert bool(drain_seconds) is stop.take(SIGTERM)
    assert stop.at_once.is_set()


@pytest.mark.parametrize(("expected", "second"), [(False, SIGTERM), (True, SIGINT)])
def test_a_workers_drain_ends_by_its_supervisors_sigint_alone(
    expected: bool, second: Signals
) -> None:
    """Systemd sends SIGTERM to the worker and to its supervisor, which passes it on."""
    clock = Clock()
    stop = Stop(drain_seconds=10, is_worker=True, clock_seconds=clock)
    assert stop.take(SIGTERM)
    clock.now += ORDER_SECONDS
    stop.take(second)
    assert (True, expected) == (stop.asked.is_set(), stop.at_once.is_set())


@pytest.mark.parametrize("number", [SIGTERM, SIGINT])
def test_a_signal_to_a_process_that_stops_already_has_no_step_left(number: Signals) -> None:
    """The caller then ends by force."""
    stop = Stop(drain_seconds=10)
    stop.take(SIGINT)
    assert not stop.take(number)


async def test_a_drain_ends_by_itself_and_the_next_signal_is_one_too_many() -> None:
    """As if it had been skipped."""
    clock = Clock()
    stop = Stop(drain_seconds=0, clock_seconds=clock)
    stop.take(SIGTERM)
    await stop.drain()
    assert stop.at_once.is_set()
    clock.now += ORDER_SECONDS
    assert not stop.take(SIGTERM)


async def test_a_drain_lasts_until_it_is_skipped() -> None:
    """Not for its whole time."""
    stop = Stop(drain_seconds=600)
    stop.take(SIGTERM)
    draining = asyncio.create_task(stop.drain())
    await asyncio.sleep(0)
    assert not draining.done()
    stop.take(SIGINT)
    async with asyncio.timeout(20):
        await draining
