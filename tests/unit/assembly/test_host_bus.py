"""A host's bus: an answer that breaks its contract is not believed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from stretto.assembly.host_bus import HostsBus
from stretto.runtime.cancelling import is_cancelled
from stretto.targets.bus import BusUnavailable
from support.cancellations import fail_and_leave_one_behind
from support.log_events import logged

ONE, TWO = logged(1).event, logged(2).event


class Bus:
    """Answers as the test says."""

    def __init__(self, reasons: Any) -> None:
        self.reasons = reasons

    async def publish(self, _: object) -> Any:
        return self.reasons


class Text(str):
    """A text of the host's own class."""

    __slots__ = ()


@pytest.mark.parametrize(
    "reasons",
    [
        None,
        [],
        {str(ONE.event_id): "too large"},
        {UUID(int=7): "another's"},
        {ONE.event_id: None},
        {ONE.event_id: ValueError("too large")},
        {ONE.event_id: "too large", TWO.event_id: b"too large"},
    ],
)
async def test_a_bus_that_breaks_its_contract_has_published_nothing(reasons: object) -> None:
    """A refused event would be passed over, and without a sign."""
    with pytest.raises(TypeError, match="must return the reasons of refused events by their ids"):
        await HostsBus(Bus(reasons)).publish([ONE, TWO])


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_bus_that_would_end_the_process_ends_its_turn(error: type[BaseException]) -> None:
    """A task that raised it would end the event loop, and the host with it."""

    class Exits:
        async def publish(self, _: object) -> Any:
            raise error

    with pytest.raises(RuntimeError, match=f"publish raised {error.__name__}") as raised:
        await HostsBus(Exits()).publish([ONE])
    assert isinstance(raised.value.__cause__, error)


async def test_any_other_error_of_a_bus_comes_as_it_is() -> None:
    """The twin: the relay reports it."""

    class Fails:
        async def publish(self, _: object) -> Any:
            raise LookupError

    with pytest.raises(LookupError):
        await HostsBus(Fails()).publish([ONE])


@pytest.mark.parametrize("reasons", [{}, {ONE.event_id: "no"}, {ONE.event_id: Text("no")}])
async def test_refusals_by_id_and_reason_are_some(reasons: dict[UUID, str]) -> None:
    """The twin: they are passed on as plain texts."""
    answer = await HostsBus(Bus(reasons)).publish([ONE, TWO])
    assert reasons == answer
    assert {str} >= {type(reason) for reason in answer.values()}


@pytest.mark.parametrize("characters", [1024, 1025, 10**6])
async def test_a_reason_of_any_length_is_logged_in_part(characters: int) -> None:
    """Each failure is a line of the log; the twin is short enough to be whole."""
    answer = await HostsBus(Bus({ONE.event_id: Text("x" * characters)})).publish([ONE])
    assert {ONE.event_id: "x" * 1024} == answer


async def test_what_a_bus_leaves_behind_in_its_task_is_not_left_in_ours() -> None:
    """Else its failure would pass for a cancellation of the relay from outside: the fourth ends it."""

    class Leaves:
        async def publish(self, _: object) -> Any:
            await fail_and_leave_one_behind()

    with pytest.raises(BusUnavailable):
        await HostsBus(Leaves()).publish([ONE])
    assert not is_cancelled()
