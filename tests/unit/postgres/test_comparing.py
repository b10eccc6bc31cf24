"""Which hosts of a URL are asked before one of them is trusted, and what becomes of their answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from stretto.postgres.comparing import SILENT_AGAIN_SECONDS, Comparisons, ask_all
from support.clock import Clock
from support.waiting import until

if TYPE_CHECKING:
    from stretto.postgres.host_failures import Host

A: Final = ("10.0.0.1", 5432)
B: Final = ("10.0.0.2", 5432)
C: Final = ("10.0.0.3", 5432)
REFUSED: Final = ConnectionRefusedError()


def test_hosts_are_compared_at_the_start_and_after_each_loss() -> None:
    """While no connection is lost, the host that serves is trusted; one host alone always."""
    comparisons = Comparisons()
    assert () == comparisons.due([A], 0)
    assert (A, B) == comparisons.due([A, B], 0)
    comparisons.note([A, B], [B, A], 0)
    assert () == comparisons.due([A, B], 0)
    assert (B, A) == comparisons.due([B, A], 1)


def test_a_connection_that_is_lost_during_a_comparison_asks_for_another_one() -> None:
    """And one that began before and ends later does not undo that."""
    comparisons = Comparisons()
    comparisons.note([A, B], [A, B], 3)
    comparisons.note([A, B], [A, B], 2)
    assert () == comparisons.due([A, B], 3)
    assert (A, B) == comparisons.due([A, B], 4)


def test_a_silent_host_is_waited_for_once_in_a_while() -> None:
    """It delays no connection meanwhile; the others are compared without it, if there are two."""
    clock = Clock()
    comparisons = Comparisons(clock)
    assert not comparisons.note([A, B, C], [A, C], 0)
    assert (A, C) == comparisons.due([A, B, C], 1)
    assert () == comparisons.due([A, B], 1)
    clock.now += SILENT_AGAIN_SECONDS
    # No connection was lost since: it may be the primary by now.
    assert (A, B, C) == comparisons.due([A, B, C], 0)
    comparisons.note([A, B, C], [A, C], 0)
    assert () == comparisons.due([A, B], 0)
    comparisons.note([A, C], [A, C], 1)
    assert (A, C) == comparisons.due([A, B, C], 1)
    clock.now += SILENT_AGAIN_SECONDS
    assert comparisons.note([A, B, C], [A, B, C], 0)
    assert () == comparisons.due([A, B, C], 0)
    assert (A, B, C) == comparisons.due([A, B, C], 1)


async def connect(host: Host) -> str | Exception:
    """Open a connection; B refuses it, and C is silent."""
    if host == C:
        await asyncio.Event().wait()
    return REFUSED if host == B else "opened"


async def test_each_host_that_answers_in_time_is_known() -> None:
    """A silent one ends the comparison after a bounded time."""
    answers = await ask_all([C, B, A], connect, list[str]().append, 0.01)
    assert ({A: "opened"}, {B: REFUSED}) == answers


async def test_what_a_cancelled_comparison_has_opened_is_closed() -> None:
    """Its caller never sees it."""
    closed: list[str] = []
    asked: list[Host] = []

    async def noted(host: Host) -> str | Exception:
        asked.append(host)
        return await connect(host)

    comparing_them = asyncio.create_task(ask_all([A, C], noted, closed.append, 60.0))
    await until(lambda: asked == [A, C])
    comparing_them.cancel()
    with pytest.raises(asyncio.CancelledError):
        await comparing_them
    assert ["opened"] == closed
