"""Tests wait through one helper, whose time is bounded: none polls by itself."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

from support.waiting import until

TESTS = Path(__file__).parents[1]
# Where a loop does something of its own between two pauses: clients and clocks that go on, what is
# counted or cancelled in each turn of the event loop.
GO_ON = {
    *("chaos/clients.py", "chaos/server.py", "dashboard/scene.py", "faults/test_surroundings.py"),
    *("faults/test_creations_in_pieces.py", "faults/test_nats_cluster.py"),
    *("integration/test_webhook_delivery.py", "unit/http/test_shedding.py", "support/waiting.py"),
    *("unit/http/test_accepting.py", "unit/runtime/test_runner.py", "integration/test_database.py"),
    "integration/test_consumers.py",
    # Virtual time, in which others' events come now and then.
    *("unit/assembly/test_host_bus_again.py", "unit/targets/test_doubted_relay.py"),
}


def test_no_test_polls_by_itself() -> None:
    """A loop without a bound hangs the run, and one without a pause takes the processor."""
    found = [
        str(file.relative_to(TESTS))
        for file in sorted(TESTS.rglob("*.py"))
        for loop in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(loop, ast.While)
        and any("asyncio.sleep(" in ast.unparse(each) for each in loop.body)
    ]
    assert GO_ON == {*found}


async def test_what_is_seen_is_returned() -> None:
    """Whether it is asked for or looked at."""
    seen = iter([0, 0, 7, 0, 8])

    async def ask() -> int:
        return next(seen)

    assert await until(lambda: next(seen)) == 7
    assert await until(ask) == 8


async def test_what_never_comes_is_not_waited_for_for_ever() -> None:
    """The test fails, and the run goes on; also where the question itself hangs."""
    with pytest.raises(TimeoutError):
        await until(lambda: False, seconds=0)
    with pytest.raises(TimeoutError):
        await until(asyncio.Event().wait, seconds=0)


def test_how_long_a_turn_of_a_loop_takes_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """In debug mode, as CI runs: a busy machine would add a warning to any test's log."""
    with asyncio.Runner(debug=True) as runner:
        runner.get_loop().slow_callback_duration = 0.0
        runner.run(asyncio.sleep(0))
    assert [] == caplog.records
