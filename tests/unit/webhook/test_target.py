"""When a sender says that its address is served, and when it takes over from another one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from stretto.observations import WebhookUnserved
from stretto.targets.delivery import Move, ReaderTarget
from stretto.webhook.target import (
    LOOK_GAP_SECONDS_MAX,
    REPORT_SECONDS,
    SERVE_SECONDS,
    UNSERVED_SECONDS,
    Target,
)

if TYPE_CHECKING:
    from stretto.observations import Observation
    from stretto.webhook.ports import WebhookStore

OURS = ReaderTarget(b"ours", "1", is_ours=True, is_ahead=False)
OTHER = ReaderTarget(b"other", "1", is_ours=False, is_ahead=False)


class Stage:
    """A store whose target a test sets, and the clock of a sender."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.is_disabled = False
        self.target: ReaderTarget | None = None
        self.move: Move | None = None
        self.observed: list[Observation] = []
        self.calls: list[tuple[str, ReaderTarget]] = []
        self._target = Target(cast("WebhookStore", self), self.observed.append, lambda: self.now)

    async def serve(self, seen: ReaderTarget) -> None:
        """Note it."""
        self.calls.append(("serve", seen))

    async def take_over(self, seen: ReaderTarget) -> None:
        """Note it."""
        self.calls.append(("take over", seen))

    async def move_again(self, lost: Move, seen: ReaderTarget) -> None:
        """Note it."""
        self.calls.append((f"move again at {lost.at}", seen))

    async def read(self, target: ReaderTarget, seconds: float = 0) -> list[str]:
        """Read the target so many seconds later, and once a second until then; return the calls."""
        before = len(self.calls)
        for step in [1] * int(seconds) or [0]:
            self.now += step
            self.target = replace(target)
            await self._target.serve()
        return [name for name, _ in self.calls[before:]]


@pytest.fixture
def stage() -> Stage:
    """A sender that has seen nothing yet."""
    return Stage()


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


@pytest.mark.parametrize(("moved_at", "expected"), [(4, True), (5, True), (6, False), (7, False)])
async def test_a_target_that_ours_has_replaced_was_set_back(
    moved_at: int, expected: bool, stage: Stage
) -> None:
    """By a failover. Any later move is of an instance that has started after it, or after ours."""
    stage.move = Move(7, after=5)
    assert [] == await stage.read(replace(OURS, moved_at=7))
    back = replace(OTHER, moved_at=moved_at)
    assert ["move again at 7"] * expected == await stage.read(back)
    # Once a second, until it is seen to be done.
    assert ["move again at 7"] * expected == await stage.read(back, 1)


@pytest.mark.parametrize(("moved_at", "expected"), [(6, True), (7, False)])
async def test_a_move_of_another_instance_to_our_address_counts_too(
    moved_at: int, expected: bool, stage: Stage
) -> None:
    """It is known by its time; what it has replaced is not."""
    stage.move = Move(3, after=2)
    await stage.read(replace(OURS, moved_at=7))
    assert ["move again at 7"] * expected == await stage.read(replace(OTHER, moved_at=moved_at))


async def test_a_move_that_was_lost_before_it_was_seen_is_made_again(stage: Stage) -> None:
    """And the newest of several: a sender may have taken over since."""
    stage.move = Move(7, after=5)
    assert ["move again at 7"] == await stage.read(replace(OTHER, moved_at=5))
    stage.move = Move(9, after=8)
    assert ["move again at 9"] == await stage.read(replace(OTHER, moved_at=8))


async def test_an_older_move_to_our_address_does_not_replace_the_newest(stage: Stage) -> None:
    """A failover sets back to it, and another instance makes one again that ours had replaced."""
    await stage.read(replace(OURS, moved_at=7))
    await stage.read(replace(OURS, moved_at=3))
    assert ["move again at 7"] == await stage.read(replace(OTHER, moved_at=5))


async def test_a_sender_that_was_never_the_target_moves_nothing_again(stage: Stage) -> None:
    """It waits."""
    assert [] == await stage.read(replace(OTHER, moved_at=7))
    assert [] == await stage.read(replace(OTHER, moved_at=0))


async def test_that_another_address_is_the_target_and_not_served_is_reported_once(
    stage: Stage,
) -> None:
    """For each target, and anew if that was served meanwhile."""
    await stage.read(OTHER)
    await stage.read(OTHER, REPORT_SECONDS - 1)
    assert [] == stage.observed
    report = WebhookUnserved()
    await stage.read(OTHER, UNSERVED_SECONDS)
    assert [report] == stage.observed
    await stage.read(replace(OTHER, served_at="2"))
    await stage.read(replace(OTHER, served_at="2"), REPORT_SECONDS)
    assert [report, report] == stage.observed


async def test_our_own_target_is_not_reported(stage: Stage) -> None:
    """Also where its statement fails, or it is disabled, which is reported by itself."""
    stage.is_disabled = True
    await stage.read(OURS)
    await stage.read(OURS, 2 * UNSERVED_SECONDS)
    assert [] == stage.observed
