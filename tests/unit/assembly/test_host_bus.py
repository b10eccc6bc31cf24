"""A host's bus: an answer that breaks its contract is not believed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from stretto.assembly.host_bus import HostsBus
from stretto.observations import ActorCrashed
from stretto.runtime.cancelling import is_cancelled
from stretto.targets.bus import BusUnavailable
from support.cancellations import fail_and_leave_one_behind
from support.log_events import logged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observation

ONE, TWO, THREE = (logged(number).event for number in (1, 2, 3))


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
        await HostsBus(Bus(reasons), lambda _: None).publish([ONE, TWO])


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_bus_that_would_end_the_process_ends_its_turn(error: type[BaseException]) -> None:
    """A task that raised it would end the event loop, and the host with it."""

    class Exits:
        async def publish(self, _: object) -> Any:
            raise error

    with pytest.raises(RuntimeError, match=f"publish raised {error.__name__}") as raised:
        await HostsBus(Exits(), lambda _: None).publish([ONE])
    assert isinstance(raised.value.__cause__, error)


async def test_any_other_error_of_a_bus_comes_as_it_is() -> None:
    """The twin: the relay reports it."""

    class Fails:
        async def publish(self, _: object) -> Any:
            raise LookupError

    with pytest.raises(LookupError):
        await HostsBus(Fails(), lambda _: None).publish([ONE])


@pytest.mark.parametrize("reasons", [{}, {ONE.event_id: "no"}, {ONE.event_id: Text("no")}])
async def test_refusals_by_id_and_reason_are_some(reasons: dict[UUID, str]) -> None:
    """The twin: they are passed on as plain texts."""
    answer = await HostsBus(Bus(reasons), lambda _: None).publish([ONE, TWO])
    assert reasons == answer
    assert {str} >= {type(reason) for reason in answer.values()}


@pytest.mark.parametrize("characters", [1024, 1025, 10**6])
async def test_a_reason_of_any_length_is_logged_in_part(characters: int) -> None:
    """Each failure is a line of the log; the twin is short enough to be whole."""
    answer = await HostsBus(Bus({ONE.event_id: Text("x" * characters)}), lambda _: None).publish(
        [ONE]
    )
    assert {ONE.event_id: "x" * 1024} == answer


async def test_what_a_bus_leaves_behind_in_its_task_is_not_left_in_ours() -> None:
    """Else its failure would pass for a cancellation of the relay from outside: the fourth ends it."""

    class Leaves:
        async def publish(self, _: object) -> Any:
            await fail_and_leave_one_behind()

    with pytest.raises(BusUnavailable):
        await HostsBus(Leaves(), lambda _: None).publish([ONE])
    assert not is_cancelled()


class FailsFor:
    """Raises for some of the events, if they are there; records what it has taken."""

    def __init__(self, error: type[BaseException], *events: CommittedEvent) -> None:
        self.error = error
        self.events = events
        self.published: list[CommittedEvent] = []

    async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
        self.published += [event for event in events if event not in self.events]
        if any(event in self.events for event in events):
            raise self.error
        return {events[0].event_id: "no"} if events == [THREE] else {}


class Odd(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize(
    "error", [ValueError, TimeoutError, SystemExit, asyncio.CancelledError, Odd]
)
async def test_an_event_for_which_a_bus_fails_holds_up_no_other(error: type[BaseException]) -> None:
    """It is refused, as one that the bus refuses itself; the bug is reported."""
    bus, observed = FailsFor(error, ONE), list["Observation"]()
    reasons = dict(await HostsBus(bus, observed.append).publish([ONE, TWO, THREE]))
    assert "no" == reasons.pop(THREE.event_id)
    assert [ONE.event_id] == [*reasons]
    assert reasons[ONE.event_id].startswith("publish raised")
    assert [TWO, THREE] == bus.published[-2:]
    (crash,) = observed
    assert isinstance(crash, ActorCrashed)


async def test_a_bus_that_fails_for_every_event_refuses_none() -> None:
    """Else all would become dead letters before the bug is mended."""
    bus, observed = FailsFor(LookupError, ONE, TWO), list["Observation"]()
    with pytest.raises(LookupError):
        await HostsBus(bus, observed.append).publish([ONE, TWO])
    assert not observed


async def test_a_bus_that_is_away_is_not_asked_for_each_event() -> None:
    """The twin: it says nothing of the events."""
    bus = FailsFor(BusUnavailable, TWO)
    with pytest.raises(BusUnavailable):
        await HostsBus(bus, lambda _: None).publish([ONE, TWO])
    assert [ONE] == bus.published


async def test_a_bus_that_goes_away_meanwhile_has_refused_nothing() -> None:
    """What it was asked for alone is published again."""

    class GoesAway(FailsFor):
        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            if events == [TWO]:
                raise BusUnavailable
            return await super().publish(events)

    with pytest.raises(BusUnavailable):
        await HostsBus(GoesAway(ValueError, ONE), lambda _: None).publish([ONE, TWO, THREE])


async def test_a_failure_for_all_together_alone_is_none() -> None:
    """Such as a bus that cannot take many at once."""

    class TakesOne(FailsFor):
        async def publish(self, events: Sequence[CommittedEvent]) -> dict[UUID, str]:
            if len(events) > 1:
                raise ValueError
            return await super().publish(events)

    bus = TakesOne(ValueError)
    assert {} == await HostsBus(bus, lambda _: None).publish([ONE, TWO])
    assert [ONE, TWO] == bus.published
