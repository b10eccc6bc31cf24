"""Calls of a host's bus: an answer that breaks its contract is not believed, and one that hangs ends."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import pytest

from stretto.assembly.host_bus_calls import (
    CANCELLED_CALL_SECONDS,
    REASON_CHARACTERS_MAX,
    STALLS_MAX,
    HostsBusCalls,
    NoAnswer,
    reason_of,
)
from stretto.assembly.host_bus_patience import (
    LOOK_SHARE,
    PATIENCE_SHARE,
    PATIENCE_TIMES,
    STALL_SHARE,
    Patience,
)
from stretto.runtime.cancelling import is_cancelled
from stretto.targets.bus import BusUnavailable
from support.cancellations import fail_and_leave_one_behind, leave_one_behind
from support.log_events import logged
from support.virtual_time import run_in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

LEASE_SECONDS = 10.0
LOOK_SECONDS = LOOK_SHARE * LEASE_SECONDS
PATIENCE_SECONDS = PATIENCE_SHARE * LEASE_SECONDS
STALL_SECONDS = STALL_SHARE * LEASE_SECONDS
ONE, TWO = (logged(number).event for number in (1, 2))
HANGS = float("inf")


class Bus:
    """Does so many things at once, in turn; a call takes as long as the test says for its first event."""

    def __init__(self, seconds: Mapping[int, float] | None = None, *, places: int = 1000) -> None:
        self.places = asyncio.Semaphore(places)
        self.seconds = {**(seconds or {})}
        self.errors: dict[int, BaseException] = {}
        """What is raised in the end."""
        self.clean_up_seconds: dict[int, float] = {}
        """For how long calls go on that were cancelled."""
        self.errors_of_cancelled: dict[int, BaseException] = {}
        """What these raise in the end; others are answered."""
        self.cancelled_at: list[tuple[float, int]] = []

    async def publish(self, events: Any) -> Any:
        number = events[0].event_id.int
        try:
            async with self.places:
                await _pass(self.seconds.get(number, 0.0))
        except asyncio.CancelledError:
            self.cancelled_at.append((_now(), number))
            if number not in self.clean_up_seconds:
                raise
            await _pass(self.clean_up_seconds[number])
            if number in self.errors_of_cancelled:
                raise self.errors_of_cancelled[number] from None
        if number in self.errors:
            raise self.errors[number]
        return {}


class Answers:
    """Answers as the test says."""

    def __init__(self, reasons: Any) -> None:
        self.reasons = reasons

    async def publish(self, _: object) -> Any:
        return self.reasons


class Raises:
    """Raises this."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def publish(self, _: object) -> Any:
        raise self.error


class Ended(NamedTuple):
    """What came of a call, and when."""

    at: float
    error: Exception | None

    @property
    def why(self) -> tuple[bool, bool] | None:
        """Whether it hung by itself, and whether it kept out others, if it had no answer."""
        if not isinstance(self.error, NoAnswer):
            return None
        return self.error.is_own, self.error.kept_out


class Text(str):
    """A text of the host's own class, whose parts are others."""

    __slots__ = ()

    def __getitem__(self, _: object) -> str:
        return "another"


class Odd(BaseException):
    """What no `except Exception` catches."""


OWN, KEPT_OUT, OWN_AND_KEPT_OUT, UNSURE = (True, False), (False, True), (True, True), (False, False)


def _now() -> float:
    """Return the seconds since the test's begin."""
    return asyncio.get_running_loop().time() - 1000.0


async def _pass(seconds: float) -> None:
    if seconds == HANGS:
        await asyncio.Event().wait()
    elif seconds:
        await asyncio.sleep(seconds)


def calls_of(bus: Any) -> HostsBusCalls:
    """Return what is tested."""
    clock = asyncio.get_running_loop().time
    return HostsBusCalls(bus, Patience(LEASE_SECONDS, clock), clock)


async def publish(calls: HostsBusCalls, number: int) -> Ended:
    """Publish an event; return what came of that."""
    error: Exception | None = None
    try:
        assert {} == await calls.publish([logged(number).event])
    except Exception as each:  # noqa: BLE001 it is compared
        error = each
    return Ended(_now(), error)


def begin(calls: HostsBusCalls, *numbers: int) -> list[asyncio.Task[Ended]]:
    """Publish events side by side, those with the lowest numbers first."""
    return [asyncio.create_task(publish(calls, number)) for number in numbers]


async def ends(calls: HostsBusCalls, *numbers: int) -> list[Ended]:
    """Publish events side by side, and wait for all."""
    return await asyncio.gather(*begin(calls, *numbers))


def answer_of(bus: Any) -> Mapping[UUID, str]:
    """Return the answer of a call for two events."""

    async def call() -> Mapping[UUID, str]:
        return await calls_of(bus).publish([ONE, TWO])

    return run_in_virtual_time(call())


def run(call: Coroutine[Any, Any, None]) -> None:
    """Run a test."""
    run_in_virtual_time(call)


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
def test_a_bus_that_breaks_its_contract_has_published_nothing(reasons: object) -> None:
    """A refused event would be passed over, and without a sign."""
    with pytest.raises(TypeError, match="must return the reasons of refused events by their ids"):
        answer_of(Answers(reasons))


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, Odd])
def test_a_bus_that_would_end_the_process_ends_its_turn(error: type[BaseException]) -> None:
    """A task that raised it would end the event loop, and the host with it."""
    with pytest.raises(RuntimeError, match=f"publish raised {error.__name__}") as raised:
        answer_of(Raises(error()))
    assert isinstance(raised.value.__cause__, error)


def test_a_bus_whose_own_task_was_cancelled_has_failed() -> None:
    """It would pass for a cancellation of the relay, and end that."""
    with pytest.raises(RuntimeError, match="was cancelled by something that it waited for"):
        answer_of(Raises(asyncio.CancelledError()))


def test_so_it_has_where_a_cancellation_that_is_over_was_left_behind() -> None:
    """It would pass for one that hangs."""

    class Leaves:
        async def publish(self, _: object) -> Any:
            await leave_one_behind()
            raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="was cancelled by something that it waited for"):
        answer_of(Leaves())


def test_any_other_error_of_a_bus_comes_as_it_is() -> None:
    """The twin: the relay reports it."""
    error = LookupError()
    with pytest.raises(LookupError) as raised:
        answer_of(Raises(error))
    assert error is raised.value
    assert "publish raised LookupError" == reason_of(error)


@pytest.mark.parametrize("reasons", [{}, {ONE.event_id: "no"}, {ONE.event_id: Text("no")}])
def test_refusals_by_id_and_reason_are_some(reasons: dict[UUID, str]) -> None:
    """The twin: they are passed on as plain texts."""
    answer = answer_of(Answers(reasons))
    assert reasons == answer
    assert {str} >= {type(reason) for reason in answer.values()}


@pytest.mark.parametrize("more", [0, 1, 10**6])
def test_a_reason_of_any_length_is_logged_in_part(more: int) -> None:
    """Each failure is a line of the log; the twin is short enough to be whole."""
    answer = answer_of(Answers({ONE.event_id: Text("x" * (REASON_CHARACTERS_MAX + more))}))
    assert {ONE.event_id: "x" * REASON_CHARACTERS_MAX} == answer


def test_what_a_bus_leaves_behind_in_its_task_is_not_left_in_ours() -> None:
    """Else its failure would pass for a cancellation of the relay from outside: the fourth ends it."""

    class Leaves:
        async def publish(self, _: object) -> Any:
            await fail_and_leave_one_behind()

    async def test() -> None:
        with pytest.raises(BusUnavailable):
            await calls_of(Leaves()).publish([ONE])
        assert not is_cancelled()

    run(test())


def test_what_a_bus_does_to_its_events_is_not_done_to_ours() -> None:
    """One that takes them off a list would publish fewer than are left, and the place would pass over them."""
    events = [ONE, TWO]

    class Takes:
        async def publish(self, events: Any) -> Any:
            events.clear()

    async def test() -> None:
        with pytest.raises(AttributeError):
            await calls_of(Takes()).publish(events)
        assert [ONE, TWO] == events

    run(test())


def test_a_call_hangs_by_itself_if_a_later_one_is_answered_meanwhile() -> None:
    """A bus gives its places in turn. It is waited for as long as others are, and cancelled then."""

    async def test() -> None:
        bus = Bus({1: HANGS})
        first, second = await ends(calls_of(bus), 1, 2)
        assert Ended(0.0, None) == second
        assert (PATIENCE_SECONDS, OWN) == (first.at, first.why)
        assert [(PATIENCE_SECONDS, 1)] == bus.cancelled_at
        assert isinstance(first.error, NoAnswer)
        assert "publish took longer than 3 s" == reason_of(first.error)

    run(test())


def test_an_answer_to_an_earlier_call_shows_nothing() -> None:
    """The twin: what waits behind it may wait for a place."""

    async def test() -> None:
        bus = Bus({2: HANGS})
        _, second = await ends(calls_of(bus), 1, 2)
        assert (STALL_SECONDS + LOOK_SECONDS, KEPT_OUT) == (second.at, second.why)

    run(test())


def test_an_error_of_a_later_call_shows_nothing() -> None:
    """The bus may raise without a place; nor does an answer that breaks the contract."""

    async def test() -> None:
        bus = Bus({1: HANGS})
        bus.errors[2] = LookupError()
        calls = calls_of(bus)
        first, _ = await ends(calls, 1, 2)
        assert (STALL_SECONDS + LOOK_SECONDS, KEPT_OUT) == (first.at, first.why)
        assert float("-inf") == calls.answered_at

    run(test())


def test_a_slow_answer_is_waited_for_though_a_later_call_was_answered() -> None:
    """For as long as others wait: a bus need not be in a hurry."""

    async def test() -> None:
        slow, quick = await ends(calls_of(Bus({1: PATIENCE_SECONDS - 0.5})), 1, 2)
        assert Ended(PATIENCE_SECONDS - 0.5, None) == slow
        assert Ended(0.0, None) == quick

    run(test())


def test_a_call_was_passed_if_a_later_one_was_answered() -> None:
    """Also where an older one is answered after that."""

    async def test() -> None:
        calls = calls_of(Bus({1: 1.0, 2: 2.0, 3: 2.0}))
        tasks = begin(calls, 1, 2, 3)
        await asyncio.sleep(0)
        assert 3 == calls.newest
        await tasks[0]
        assert not calls.was_passed(1)
        await tasks[2]
        assert calls.was_passed(1)
        assert calls.was_passed(2)
        assert not calls.was_passed(3)
        assert 1002.0 == calls.answered_at
        calls = calls_of(Bus({1: 1.0}))
        await ends(calls, 1, 2)
        assert calls.was_passed(1)
        assert 1003.0 == calls.answered_at

    run(test())


def test_where_nothing_is_answered_the_first_call_makes_way() -> None:
    """It has kept out the others, and hung by itself: the next one is answered at once."""

    async def test() -> None:
        bus = Bus({1: HANGS}, places=1)
        first, second, third = await ends(calls_of(bus), 1, 2, 3)
        assert [(STALL_SECONDS, 1)] == bus.cancelled_at
        assert (STALL_SECONDS + LOOK_SECONDS, OWN_AND_KEPT_OUT) == (first.at, first.why)
        assert [Ended(STALL_SECONDS, None)] * 2 == [second, third]

    run(test())


def test_a_call_that_made_way_is_left_once_a_later_one_is_answered() -> None:
    """It began after that. Though the bus is known to be slow by then, nothing waits for the first any more."""

    async def test() -> None:
        bus = Bus({1: 5.0})
        calls = calls_of(bus)
        await ends(calls, 1)
        # So it has 15 s, and twice as many once the last one was answered.
        bus.seconds = {1: HANGS, 2: 10.0}
        (first,) = begin(calls, 1)
        await asyncio.sleep(15.5)
        assert [(20.25, 1)] == bus.cancelled_at
        assert not first.done()
        assert Ended(30.5, None) == await publish(calls, 2)
        assert (30.75, OWN_AND_KEPT_OUT) == ((await first).at, (await first).why)

    run(test())


def test_more_and_more_calls_make_way_while_nothing_is_answered() -> None:
    """After the first all wait for a shorter time: a bus with many places has one free soon."""

    async def test() -> None:
        counts = [2**stalls for stalls in range(STALLS_MAX + 1)] + [2**STALLS_MAX, 8]
        numbers = range(1, sum(counts) + 1)
        bus = Bus(dict.fromkeys(numbers, HANGS))
        await ends(calls_of(bus), *numbers)
        seconds = [STALL_SECONDS + PATIENCE_SECONDS * number for number in range(len(counts))]
        assert dict(zip(seconds, counts, strict=True)) == Counter(at for at, _ in bus.cancelled_at)
        assert [*numbers] == [number for _, number in bus.cancelled_at]

    run(test())


def test_a_call_that_made_way_in_vain_is_left_after_a_stall() -> None:
    """Others may hang all the time, and none show why."""

    async def test() -> None:
        numbers = range(1, 9)
        bus = Bus(dict.fromkeys(numbers, HANGS))
        each = await ends(calls_of(bus), *numbers)
        assert {KEPT_OUT} == {ended.why for ended in each}
        # The last one is cancelled after 15 s; then none is left that could show anything.
        assert [12.0] + [15.0] * 2 + [15.75] * 5 == [ended.at for ended in each]

    run(test())


def test_an_answer_begins_the_count_of_what_makes_way_anew() -> None:
    """What hangs then has as long as the first one."""

    async def test() -> None:
        bus = Bus({1: HANGS, 3: HANGS}, places=1)
        await ends(calls_of(bus), 1, 2, 3)
        assert [(STALL_SECONDS, 1), (2 * STALL_SECONDS, 3)] == bus.cancelled_at

    run(test())


def test_calls_after_all_have_ended_begin_that_count_anew() -> None:
    """Each has the time of the client's own time-out, though the bus has answered none."""

    async def test() -> None:
        bus = Bus({1: HANGS, 2: HANGS})
        calls = calls_of(bus)
        await ends(calls, 1)
        await asyncio.sleep(8.0 - _now())
        await ends(calls, 2)
        assert [(STALL_SECONDS, 1), (8.0 + STALL_SECONDS, 2)] == bus.cancelled_at

    run(test())


def test_a_call_that_begins_meanwhile_does_not() -> None:
    """The twin: events come all the time, and each would have the next call hang for as long as the first."""

    async def test() -> None:
        bus = Bus(dict.fromkeys((1, 2, 3), HANGS))
        calls = calls_of(bus)
        tasks = begin(calls, 1, 2)
        await asyncio.sleep(STALL_SECONDS + LOOK_SECONDS / 2)
        await asyncio.gather(*tasks, *begin(calls, 3))
        more = STALL_SECONDS + PATIENCE_SECONDS
        assert [(STALL_SECONDS, 1), (more, 2), (more, 3)] == bus.cancelled_at

    run(test())


def test_calls_that_begin_after_all_were_given_up_begin_that_count_anew() -> None:
    """As in the relay's next turn, which may come at once."""

    async def test() -> None:
        bus = Bus({1: HANGS, 2: HANGS, 3: HANGS})
        calls = calls_of(bus)
        tasks = begin(calls, 1, 2)
        await asyncio.sleep(STALL_SECONDS + 0.25)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await ends(calls, 3)
        # Calls are looked at every 0.75 s.
        assert [(STALL_SECONDS, 1), (6.25, 2), (12.75, 3)] == bus.cancelled_at

    run(test())


@pytest.mark.parametrize("by_its_caller", [False, True])
def test_a_stall_counts_from_when_a_call_last_ended(by_its_caller: bool) -> None:
    """Each place that is free again goes to the next: one that raises, or that its caller cancels."""

    async def test() -> None:
        bus = Bus({1: HANGS if by_its_caller else 2.0, 2: HANGS}, places=1)
        bus.errors[1] = LookupError()
        tasks = begin(calls_of(bus), 1, 2)
        await asyncio.sleep(2.0)
        if by_its_caller:
            tasks[0].cancel()
        await tasks[1]
        # Calls are looked at every 0.75 s.
        assert (8.25, 2) == bus.cancelled_at[-1]

    run(test())


def test_a_call_that_waits_for_others_and_is_given_up_makes_no_stall_longer() -> None:
    """It had no place. Else a caller that gives up again and again would have a call that hangs keep the place."""

    async def test() -> None:
        bus = Bus({1: HANGS}, places=1)
        calls = calls_of(bus)
        tasks = begin(calls, 1, 2, 3)
        for task in tasks[1:]:
            await asyncio.sleep(2.0)
            task.cancel()
        await tasks[0]
        assert (STALL_SECONDS, 1) == bus.cancelled_at[-1]

    run(test())


def test_a_stall_counts_from_the_begin_of_the_first_call() -> None:
    """What has ended before is no matter."""

    async def test() -> None:
        bus = Bus({2: HANGS})
        calls = calls_of(bus)
        await ends(calls, 1)
        await asyncio.sleep(60.0)
        await ends(calls, 2)
        assert [(60.0 + STALL_SECONDS, 2)] == bus.cancelled_at

    run(test())


def test_what_a_call_has_waited_for_others_makes_no_slow_bus() -> None:
    """Else each that hangs would make the next ones wait for longer."""

    async def test() -> None:
        clock = asyncio.get_running_loop().time
        patience = Patience(LEASE_SECONDS, clock)
        calls = HostsBusCalls(Bus({1: 2.0, 2: 2.0, 3: 2.0}, places=1), patience, clock)
        await ends(calls, 1, 2, 3)
        assert PATIENCE_TIMES * 2.0 == patience.seconds
        bus = Bus({4: HANGS, 5: 4.0}, places=1)
        calls = HostsBusCalls(bus, patience, clock)
        await ends(calls, 4, 5)
        assert PATIENCE_TIMES * 4.0 == patience.seconds

    run(test())


def test_an_answer_after_a_call_was_left_makes_no_slow_bus() -> None:
    """It hung by itself. That the bus is there it shows all the same, and that it takes earlier calls."""

    async def test() -> None:
        clock = asyncio.get_running_loop().time
        patience = Patience(LEASE_SECONDS, clock)
        bus = Bus({1: HANGS})
        bus.clean_up_seconds[1] = 4.0
        calls = HostsBusCalls(bus, patience, clock)
        (first, _) = await ends(calls, 1, 2)
        assert OWN == first.why
        await asyncio.sleep(5.0)
        assert PATIENCE_SECONDS == patience.seconds
        assert 1000.0 + PATIENCE_SECONDS + 4.0 == calls.answered_at

    run(test())


def test_an_answer_that_comes_as_a_call_cleans_up_is_one() -> None:
    """The events were published, and none is to blame."""

    async def test() -> None:
        bus = Bus({1: HANGS})
        bus.clean_up_seconds[1] = 0.5
        assert [Ended(STALL_SECONDS + 0.5, None)] == await ends(calls_of(bus), 1)

    run(test())


@pytest.mark.parametrize("error", [LookupError(), SystemExit()])
def test_what_a_call_raises_because_it_was_cancelled_is_no_failure_of_its_own(
    error: BaseException,
) -> None:
    """A client may make an error of its own of that; the call may have waited for others all the time."""

    async def test() -> None:
        bus = Bus({1: HANGS, 2: HANGS}, places=1)
        bus.clean_up_seconds = {1: 0.5, 2: 0.5}
        bus.errors_of_cancelled = {1: error, 2: error}
        calls = calls_of(bus)
        for ended in await ends(calls, 1, 2):
            assert KEPT_OUT == ended.why
        tasks = begin(calls, 1, 3)
        assert None is (await tasks[1]).error
        assert OWN_AND_KEPT_OUT == (await tasks[0]).why

    run(test())


def test_a_call_is_cancelled_once() -> None:
    """A second time would cut short what it cleans up."""

    async def test() -> None:
        bus = Bus({1: HANGS})
        bus.clean_up_seconds[1] = 10.0
        calls = calls_of(bus)
        (task,) = begin(calls, 1)
        await asyncio.sleep(STALL_SECONDS + LOOK_SECONDS / 2)
        assert [(STALL_SECONDS, 1)] == bus.cancelled_at
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await calls.close()
        await asyncio.sleep(20.0)
        assert 1016.0 == calls.answered_at

    run(test())


def test_a_call_is_cancelled_with_its_caller() -> None:
    """No call outlives the relay."""

    async def test() -> None:
        bus = Bus({1: HANGS})
        calls = calls_of(bus)
        (task,) = begin(calls, 1)
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)
        assert [(1.0, 1)] == bus.cancelled_at

    run(test())


def test_a_call_whose_task_the_host_cancels_has_no_answer() -> None:
    """As one that cancels all tasks of its loop: its caller would wait for ever."""

    async def test() -> None:
        calls = calls_of(Bus({1: HANGS}))
        (task,) = begin(calls, 1)
        await asyncio.sleep(1.0)
        for each in asyncio.all_tasks():
            if each.get_name() == "stretto publish to a bus":
                each.cancel()
        ended = await task
        assert (1.0, UNSURE) == (ended.at, ended.why)

    run(test())


def test_the_end_waits_for_calls_that_clean_up() -> None:
    """Also for those that were cancelled before; nothing else waits for any."""

    async def test() -> None:
        bus = Bus({1: HANGS, 3: HANGS})
        bus.clean_up_seconds = {1: 0.5, 3: 0.25}
        calls = calls_of(bus)
        tasks = begin(calls, 1, 2, 3)
        await tasks[0]
        await calls.close()
        assert (PATIENCE_SECONDS, 3) == bus.cancelled_at[-1]
        assert PATIENCE_SECONDS + 0.5 == _now()
        third = await tasks[2]
        assert (PATIENCE_SECONDS, UNSURE) == (third.at, third.why)

    run(test())


def test_a_call_that_does_not_end_holds_up_nothing() -> None:
    """The end waits for a second; who waits for the call has no answer at once."""

    async def test() -> None:
        bus = Bus({1: HANGS})
        bus.clean_up_seconds[1] = HANGS
        calls = calls_of(bus)
        (task,) = begin(calls, 1)
        await asyncio.sleep(1.0)
        await calls.close()
        assert 1.0 + CANCELLED_CALL_SECONDS == _now()
        ended = await task
        assert (1.0, UNSURE) == (ended.at, ended.why)

    run(test())


def test_an_end_without_calls_waits_for_nothing() -> None:
    """Legal at any moment; and what begins after it has its answer."""

    async def test() -> None:
        calls = calls_of(Bus())
        await calls.close()
        await ends(calls, 1)
        await calls.close()
        assert [Ended(0.0, None)] == await ends(calls, 1)

    run(test())


def test_an_error_that_comes_as_its_caller_ends_is_not_printed() -> None:
    """The event loop prints it with its text, which may hold what is secret."""

    async def test() -> None:
        printed: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, each: printed.append(each))
        bus = Bus({1: HANGS})
        bus.clean_up_seconds[1] = 0.5
        bus.errors_of_cancelled[1] = LookupError("secret")
        calls = calls_of(bus)
        (task,) = begin(calls, 1)
        await asyncio.sleep(1.0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await asyncio.sleep(1.0)
        del task
        gc.collect()
        assert not printed

    run(test())


@pytest.mark.parametrize("is_hanging", [False, True])
def test_an_error_is_freed_without_the_collector(is_hanging: bool) -> None:
    """A bus that is away raises all the time: each failure would leave objects that only the collector frees."""

    class Fails(Exception):
        pass

    class Hangs:
        async def publish(self, _: object) -> Any:
            if is_hanging:
                await asyncio.Event().wait()
            raise Fails

    async def test() -> None:
        calls = calls_of(Hangs())
        error: weakref.ref[Exception] | None = None
        try:
            await calls.publish([ONE])
        except Exception as each:  # noqa: BLE001 it is compared
            error = weakref.ref(each)
        await asyncio.sleep(0)
        assert error is not None
        assert error() is None

    gc.disable()
    try:
        run(test())
    finally:
        gc.enable()
