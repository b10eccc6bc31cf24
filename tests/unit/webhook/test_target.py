"""When a sender says that its address is served, and when it takes over from another one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from stretto.targets.delivery import ReaderTarget
from stretto.webhook.target import (
    LOOK_GAP_SECONDS_MAX,
    SERVE_SECONDS,
    UNSERVED_SECONDS,
    Target,
)

if TYPE_CHECKING:
    from stretto.webhook.ports import WebhookStore

OURS = ReaderTarget(b"ours", "1", is_ours=True, is_ahead=False)
OTHER = ReaderTarget(b"other", "1", is_ours=False, is_ahead=False)


class Stage:
    """A store whose target a test sets, and the clock of a sender."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.is_disabled = False
        self.target: ReaderTarget | None = None
        self.calls: list[tuple[str, ReaderTarget]] = []
        self._target = Target(cast("WebhookStore", self), lambda: self.now)

    async def serve(self, seen: ReaderTarget) -> None:
        """Note it."""
        self.calls.append(("serve", seen))

    async def take_over(self, seen: ReaderTarget) -> None:
        """Note it."""
        self.calls.append(("take over", seen))

    async def read(self, target: ReaderTarget, seconds: float = 0) -> list[str]:
        """Read the target so many seconds later, and once a second until then; return the calls."""
        before = len(self.calls)
        for step in [1] * int(seconds) or [0]:
            self.now += step
            self.target = replace(target)
            await self._target.serve()
        return [name for name, _ in self.calls[before:]]


@pytest.mark.parametrize("after", [replace(OTHER, served_at="2"), replace(OTHER, digest=b"third")])
async def test_a_target_that_does_not_change_for_three_minutes_is_taken_over(
    after: ReaderTarget,
) -> None:
    """Not before; a change begins the time anew, one of the database's clock does not."""
    stage = Stage()
    assert [] == await stage.read(OTHER)
    assert [] == await stage.read(OTHER, UNSERVED_SECONDS - 1)
    assert [] == await stage.read(after, 1)
    assert [] == await stage.read(after, UNSERVED_SECONDS - 2)
    ahead = replace(after, is_ahead=True)
    assert [] == await stage.read(ahead, 1)
    assert ["take over"] == await stage.read(ahead, 1)
    assert ("take over", ahead) == stage.calls[-1]


async def test_a_sender_says_once_a_minute_that_it_serves_its_target() -> None:
    """Not where another one, or an enrolment, has said so meanwhile."""
    stage = Stage()
    assert [] == await stage.read(OURS)
    assert [] == await stage.read(OURS, SERVE_SECONDS - 1)
    assert ["serve"] == await stage.read(OURS, 1)
    said = replace(OURS, served_at="2")
    assert [] == await stage.read(said, SERVE_SECONDS)
    assert ["serve"] == await stage.read(said, 1)
    assert ("serve", said) == stage.calls[-1]


async def test_what_was_read_once_leads_to_one_statement() -> None:
    """A busy sender takes a hundred turns a second, and reads the target once."""
    stage = Stage()
    await stage.read(OURS)
    await stage.read(OURS, SERVE_SECONDS)
    stage.now += 0.1
    await stage._target.serve()
    assert 1 == len(stage.calls)


async def test_a_clock_that_has_gone_back_is_noted_at_once() -> None:
    """Not a minute later: a pause would be longer by that."""
    stage = Stage()
    await stage.read(OURS)
    assert ["serve"] == await stage.read(replace(OURS, is_ahead=True), 1)


async def test_a_target_that_is_disabled_is_not_served() -> None:
    """After a 410 a sender of another address takes over."""
    stage = Stage()
    stage.is_disabled = True
    assert [] == await stage.read(OURS, 2 * SERVE_SECONDS)
    assert [] == await stage.read(replace(OURS, is_ahead=True), 1)
    assert "take over" in await stage.read(OTHER, UNSERVED_SECONDS + 1)


@pytest.mark.parametrize(("expected", "seconds"), [(0, 1), (1, 0)])
async def test_a_time_without_a_look_does_not_count(expected: int, seconds: int) -> None:
    """While the database is away, no sender can say anything. The twin has looked just in time."""
    stage = Stage()
    await stage.read(OTHER)
    await stage.read(OTHER, UNSERVED_SECONDS - LOOK_GAP_SECONDS_MAX)
    stage.now += LOOK_GAP_SECONDS_MAX + seconds
    assert ["take over"] * expected == await stage.read(OTHER)
    if not expected:
        assert [] == await stage.read(OTHER, UNSERVED_SECONDS - 1)
        assert ["take over"] == await stage.read(OTHER, 1)


async def test_after_such_a_time_a_target_is_served_at_once() -> None:
    """Those that wait have begun anew by then."""
    stage = Stage()
    await stage.read(OURS)
    stage.now += LOOK_GAP_SECONDS_MAX + 1
    assert ["serve"] == await stage.read(OURS)


async def test_nothing_is_done_where_no_target_is_known() -> None:
    """Before the first look, or where the row is gone: the enrolment makes a new one."""
    stage = Stage()
    stage.now += UNSERVED_SECONDS
    await stage._target.serve()
    assert [] == stage.calls
