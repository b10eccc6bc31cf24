"""Calls of a host's bus: an answer that breaks its contract is not believed."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from stretto.assembly import host_bus_calls
from stretto.assembly.host_bus_calls import HELD_SECONDS, CutShort, HostsBusCalls, NoAnswer
from stretto.runtime.cancelling import is_cancelled
from stretto.targets.bus import BusUnavailable
from support.cancellations import fail_and_leave_one_behind
from support.clock import Clock
from support.log_events import logged
from support.waiting import until

if TYPE_CHECKING:
    from stretto.events.log import CommittedEvent

ONE, TWO = (logged(number).event for number in (1, 2))


class Bus:
    """Answers as the test says."""

    def __init__(self, reasons: Any) -> None:
        self.reasons = reasons

    async def publish(self, _: object) -> Any:
        return self.reasons


async def publish(calls: HostsBusCalls, event: CommittedEvent) -> None:
    """Publish an event."""
    await calls.publish([event], 1)


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
        await HostsBusCalls(Bus(reasons)).publish([ONE, TWO], 1)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
async def test_a_bus_that_would_end_the_process_ends_its_turn(error: type[BaseException]) -> None:
    """A task that raised it would end the event loop, and the host with it."""

    class Exits:
        async def publish(self, _: object) -> Any:
            raise error

    with pytest.raises(RuntimeError, match=f"publish raised {error.__name__}") as raised:
        await HostsBusCalls(Exits()).publish([ONE], 1)
    assert isinstance(raised.value.__cause__, error)


async def test_any_other_error_of_a_bus_comes_as_it_is() -> None:
    """The twin: the relay reports it."""

    class Fails:
        async def publish(self, _: object) -> Any:
            raise LookupError

    with pytest.raises(LookupError):
        await HostsBusCalls(Fails()).publish([ONE], 1)


@pytest.mark.parametrize("reasons", [{}, {ONE.event_id: "no"}, {ONE.event_id: Text("no")}])
async def test_refusals_by_id_and_reason_are_some(reasons: dict[UUID, str]) -> None:
    """The twin: they are passed on as plain texts."""
    answer = await HostsBusCalls(Bus(reasons)).publish([ONE, TWO], 1)
    assert reasons == answer
    assert {str} >= {type(reason) for reason in answer.values()}


@pytest.mark.parametrize("characters", [1024, 1025, 10**6])
async def test_a_reason_of_any_length_is_logged_in_part(characters: int) -> None:
    """Each failure is a line of the log; the twin is short enough to be whole."""
    answer = await HostsBusCalls(Bus({ONE.event_id: Text("x" * characters)})).publish([ONE], 1)
    assert {ONE.event_id: "x" * 1024} == answer


async def test_what_a_bus_leaves_behind_in_its_task_is_not_left_in_ours() -> None:
    """Else its failure would pass for a cancellation of the relay from outside: the fourth ends it."""

    class Leaves:
        async def publish(self, _: object) -> Any:
            await fail_and_leave_one_behind()

    with pytest.raises(BusUnavailable):
        await HostsBusCalls(Leaves()).publish([ONE], 1)
    assert not is_cancelled()


async def test_a_call_that_does_not_end_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled, waited for for a while, and kept until it ends: the loop itself keeps no task."""
    monkeypatch.setattr(host_bus_calls, "CANCELLED_CALL_SECONDS", 0.0)
    goes_on = asyncio.Event()

    class GoesOn:
        async def publish(self, _: object) -> Any:
            while not goes_on.is_set():
                with suppress(asyncio.CancelledError):
                    await goes_on.wait()
            raise LookupError

    calls = HostsBusCalls(GoesOn())
    with pytest.raises(NoAnswer, match="longer than 0 s"):
        await calls.publish_within(0.0, [ONE], 1)
    assert ["two"] == await calls.run({"two": publish(calls, TWO)}, 0.0)
    assert 2 == len(calls._left)
    goes_on.set()
    await until(lambda: not calls._left)


async def test_a_call_that_never_ends_counts_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody would be to blame any more."""
    monkeypatch.setattr(host_bus_calls, "CANCELLED_CALL_SECONDS", 0.0)
    goes_on = asyncio.Event()

    class GoesOn:
        async def publish(self, _: object) -> Any:
            with suppress(asyncio.CancelledError):
                await goes_on.wait()
            await goes_on.wait()

    calls = HostsBusCalls(GoesOn())
    for seconds, expected in ((60.0, True), (0.0, False)):
        monkeypatch.setattr(host_bus_calls, "HELD_SECONDS", seconds)
        with pytest.raises(NoAnswer):
            await calls.publish_within(0.0, [ONE], calls.begin(), owner="alice")
        assert expected != calls.is_free
        assert [expected, False] == [calls.goes_on_for(each) for each in ("alice", "bob")]
        goes_on.set()
        await until(lambda: not calls._left)
        goes_on.clear()


async def test_what_waits_for_calls_cancels_them_with_itself() -> None:
    """No call outlives the relay."""
    under_way, ended = asyncio.Event(), asyncio.Event()

    class Hangs:
        async def publish(self, _: object) -> Any:
            under_way.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

    async def tries() -> None:
        calls = HostsBusCalls(Hangs())
        await calls.run({"one": publish(calls, ONE)})

    task = asyncio.create_task(tries())
    await under_way.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_what_a_bus_does_to_its_events_is_not_done_to_ours() -> None:
    """One that takes them off a list would publish fewer than are left, and the place would pass over them."""
    events = [ONE, TWO]

    class Takes:
        async def publish(self, events: Any) -> Any:
            events.clear()

    with pytest.raises(AttributeError):
        await HostsBusCalls(Takes()).publish(events, 1)
    assert [ONE, TWO] == events


async def test_a_call_that_can_be_cut_short_ends_before_its_time() -> None:
    """Others do not; and it can be known from one that has taken too long."""
    begun = asyncio.Semaphore(0)

    class Hangs:
        async def publish(self, _: object) -> Any:
            begun.release()
            await asyncio.Event().wait()

    calls = HostsBusCalls(Hangs())
    tasks = [
        asyncio.create_task(calls.publish_within(60.0, [ONE], 1, can_be_cut=True)),
        asyncio.create_task(calls.publish_within(60.0, [TWO], 2)),
    ]
    for _ in tasks:
        await begun.acquire()
    await calls.cut_short()
    with pytest.raises(CutShort):
        await tasks[0]
    assert not tasks[1].done()
    tasks[1].cancel()


async def test_a_call_was_passed_if_a_later_one_was_answered() -> None:
    """An answer that breaks the contract is none."""
    bus = Bus({})
    calls = HostsBusCalls(bus)
    first, second = calls.begin(), calls.begin()
    await calls.publish([ONE], first)
    assert not calls.was_passed(first)
    bus.reasons = None
    with pytest.raises(TypeError):
        await calls.publish([ONE], second)
    assert not calls.was_passed(first)
    bus.reasons = {}
    await calls.publish([ONE], second)
    await calls.publish([ONE], first)
    assert calls.was_passed(first)


async def test_an_error_that_comes_as_its_caller_ends_is_not_printed() -> None:
    """The event loop prints it with its text, which may hold what is secret."""
    printed: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: printed.append(context))

    async def fail() -> None:
        raise LookupError("secret")

    call = asyncio.create_task(fail())
    await asyncio.wait({call})
    await HostsBusCalls(Bus({})).cancel({call: None})
    del call
    gc.collect()
    assert not printed


async def test_only_a_later_call_shows_that_the_bus_is_free() -> None:
    """One that was cancelled may go on in the only thread: for half a minute that is not known."""
    clock = Clock()

    class Hangs(Bus):
        is_hanging = True

        async def publish(self, _: object) -> Any:
            return await asyncio.Event().wait() if self.is_hanging else {}

    bus = Hangs(None)
    calls = HostsBusCalls(bus, clock)
    assert calls.is_free
    for has_answer in (False, True):
        bus.is_hanging, before = True, calls.begin()
        with pytest.raises(NoAnswer):
            await calls.publish_within(0.0, [ONE], calls.begin())
        bus.is_hanging = False
        await calls.publish([TWO], before)
        assert not calls.is_free
        clock.now += 1.0
        if has_answer:
            await calls.publish([TWO], calls.begin())
            clock.now += 2.0
            assert 2.0 == calls.free_for_seconds
        else:
            clock.now += HELD_SECONDS - 1.0
        assert calls.is_free
