"""A trial: which calls of a host's bus begin, in what order, how many at once, and what is noted of each."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from stretto.assembly.host_bus_calls import HostsBusCalls, NoAnswer
from stretto.assembly.host_bus_patience import PATIENCE_SHARE, PATIENCE_TIMES, Patience
from stretto.assembly.host_bus_trial import PLACES_MAX, Trial, by_owner
from stretto.targets.bus import nothing_behind
from support.bus_trial import Behind, FailsFor, Takes, printed_of_late_errors
from support.owned_events import event_of
from support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent

LEASE_SECONDS = 10.0
PATIENCE_SECONDS = PATIENCE_SHARE * LEASE_SECONDS
# A literal: where it was made of the constants, it would follow what a change makes of them.
SILENT_SECONDS = 15.0
OWNERS = ("alice", "bob", "carol", "dave", "erin")
EVENTS = [event_of(owner, n) for n, owner in enumerate(OWNERS, 1)]
ONE, TWO, THREE, FOUR, FIVE = EVENTS
OTHERS = [event_of(f"other {n}", n) for n in range(11, 16)]


class Tried(Trial):
    """A trial, and what a test has to say of it."""

    def __init__(self, bus: FailsFor, *events: CommittedEvent) -> None:
        self.loop = asyncio.get_running_loop()
        self.patience = Patience(LEASE_SECONDS, self.loop.time)
        self.calls = HostsBusCalls(bus, self.patience, self.loop.time)
        super().__init__(self.calls, self.patience, events, self.loop.time)
        self.owners = [*by_owner(events)]
        self.began_at = self.loop.time()
        self.together: asyncio.Task[Any] = self.loop.create_task(asyncio.Event().wait())

    async def run_all(
        self, others: Behind | Reading | None = None, unanswered_max: int = 16
    ) -> float:
        """Run it beside the call for all of them; return for how long it has lasted."""
        behind = others() if others else nothing_behind()
        await self.run(self.owners, self.together, behind, unanswered_max)
        return self.loop.time() - self.began_at

    async def run_after_failure(
        self, others: Behind | Reading | None = None, unanswered_max: int = 16
    ) -> float:
        """Run it after the call for all of them has failed."""
        self.together.cancel()
        self.together = self.loop.create_task(fails())
        return await self.run_all(others, unanswered_max)

    @property
    def failed(self) -> list[int]:
        """The ids of the events with an error."""
        return sorted(each.int for each in self.errors)

    @property
    def went_through(self) -> list[int]:
        """The ids of the events for which the bus has answered."""
        return sorted(each.int for each in self.answered)


async def fails() -> None:
    """Be a call that has failed."""
    raise LookupError


class ComesBack(FailsFor):
    """Raises for the first calls, whatever they are."""

    def __init__(self, count: int) -> None:
        super().__init__(ConnectionError)
        self.count = count

    async def work(self, events: Sequence[CommittedEvent]) -> None:
        if len(self.calls) <= self.count:
            raise ConnectionError
        await super().work(events)


@in_virtual_time
async def test_where_a_bus_answers_nothing_another_call_begins_after_each_pause() -> None:
    """Beside the one for all of them: the first ones may keep out others, and all at once would as well."""
    bus = FailsFor(None, *EVENTS)
    trial = Tried(bus, *EVENTS)
    running = asyncio.create_task(trial.run_all())
    for count in (1, 2, 3):
        await asyncio.sleep(0.1)
        assert [[n] for n in range(1, 1 + count)] == bus.calls
        await asyncio.sleep(PATIENCE_SECONDS - 0.1)
    await running


@in_virtual_time
async def test_where_a_bus_answers_twice_as_many_begin_each_time() -> None:
    """Up to so many at once."""
    bus = Takes(1.0)
    trial = Tried(bus, *(event_of(f"owner {n}", n) for n in range(300)))
    running = asyncio.create_task(trial.run_all())
    counts = []
    await asyncio.sleep(0.5)
    for _ in range(8):
        counts.append(bus.under_way)
        await asyncio.sleep(1.0)
    assert [1, 2, 4, 8, 16, 32, PLACES_MAX, PLACES_MAX] == counts
    await running


@in_virtual_time
async def test_owners_are_tried_until_all_have_had_a_turn_since_the_bus_is_there() -> None:
    """Also where its first answer came before a call of others that was to be next; none of them follows."""
    bus, behind = FailsFor(None), Behind(*OTHERS)
    trial = Tried(bus, *EVENTS)
    assert PATIENCE_SECONDS == await trial.run_all(behind, unanswered_max=1)
    assert [[1], [2], [3], [4], [5]] == bus.calls
    assert [1, 2, 3, 4, 5] == trial.went_through
    assert 0 == behind.reads
    assert trial.is_there
    assert not trial.is_together


@in_virtual_time
async def test_what_hangs_goes_on_at_the_end_where_the_bus_is_there() -> None:
    """Others do not wait for it for longer."""
    bus = FailsFor(None, TWO, THREE)
    trial = Tried(bus, ONE, FOUR, FIVE, TWO, THREE)
    assert PATIENCE_SECONDS == await trial.run_all()
    assert [(), ["bob"], ["carol"]] == [*trial.left.values()]
    await asyncio.sleep(0)
    assert not any(task.cancelling() or task.done() for task in trial.left)
    assert [1, 4, 5] == trial.went_through
    assert [] == trial.failed


@in_virtual_time
async def test_each_answer_is_news_that_makes_the_trial_longer() -> None:
    """By what others wait for one that hangs."""
    bus = Takes(PATIENCE_SECONDS - 0.5, THREE, FOUR)
    trial = Tried(bus, ONE, TWO, THREE, FOUR)
    # After the second answer it has three times as long as that took.
    seconds = 2 * bus.seconds + PATIENCE_TIMES * bus.seconds
    assert pytest.approx(seconds) == await trial.run_all()
    assert [1, 2] == trial.went_through


@in_virtual_time
async def test_the_trial_lasts_while_the_bus_goes_on_answering() -> None:
    """Also for longer than others wait for one answer: by then seven of ten owners were answered."""
    bus = Takes(PATIENCE_SECONDS - 0.5)
    trial = Tried(bus, *EVENTS, *OTHERS)
    # One call, then two, four, and three; the call for all is waited for at the end.
    seconds = 4 * bus.seconds + PATIENCE_TIMES * bus.seconds
    assert pytest.approx(seconds) == await trial.run_all()
    assert [*range(1, 6), *range(11, 16)] == trial.went_through


@in_virtual_time
async def test_a_bus_that_answers_nothing_is_away_after_a_while() -> None:
    """Longer than one that hangs for an owner is waited for; no call goes on."""
    bus = FailsFor(None, *EVENTS, *OTHERS)
    trial = Tried(bus, *EVENTS)
    assert pytest.approx(SILENT_SECONDS) == await trial.run_all(Behind(*OTHERS))
    assert not trial.is_there
    await asyncio.wait(trial.left)
    assert all(task.cancelled() for task in trial.left)
    assert 0 == bus.under_way


@in_virtual_time
async def test_one_that_comes_back_within_that_time_is_there() -> None:
    """What it was asked for meanwhile goes through."""
    bus = FailsFor(None, *EVENTS)
    trial = Tried(bus, *EVENTS)
    running = asyncio.create_task(trial.run_all())
    await asyncio.sleep(SILENT_SECONDS - PATIENCE_SECONDS - 0.1)
    bus.events = ()
    await running
    assert trial.is_there


@in_virtual_time
async def test_while_a_bus_answers_for_none_others_are_asked_for_in_turn() -> None:
    """So many calls of each, and not one more."""
    bus, behind = FailsFor(LookupError, *EVENTS, *OTHERS), Behind(*OTHERS)
    trial = Tried(bus, *EVENTS)
    await trial.run_after_failure(behind, unanswered_max=3)
    assert [[1], [11], [2], [12], [3], [13]] == bus.calls
    assert 3 == behind.read
    assert [1, 2, 3] == trial.failed
    assert not trial.is_there


@pytest.mark.parametrize(("owners", "others"), [(1, 4), (4, 1)])
@in_virtual_time
async def test_where_there_are_no_more_of_one_kind_the_other_goes_on(
    owners: int, others: int
) -> None:
    """The log, or the page, may have few owners."""
    bus = FailsFor(LookupError, *EVENTS, *OTHERS)
    trial = Tried(bus, *EVENTS[:owners])
    await trial.run_after_failure(Behind(*OTHERS[:others]))
    expected = [[n] for n in (*range(1, 1 + owners), *range(11, 11 + others))]
    assert expected == sorted(bus.calls)


@in_virtual_time
async def test_an_answer_for_others_shows_that_the_bus_is_there() -> None:
    """Then what fails is tried once more, and no more of others: it is published again later."""
    bus, behind = FailsFor(ValueError, ONE, TWO, OTHERS[0]), Behind(*OTHERS)
    trial = Tried(bus, ONE, TWO)
    await trial.run_after_failure(behind)
    assert [[1], [11], [2], [12]] == bus.calls[:4]
    assert [[1], [2]] == bus.calls[-2:]
    assert behind.read < len(OTHERS)
    assert trial.is_there
    assert ([1, 2], []) == (trial.failed, trial.went_through)


@in_virtual_time
async def test_what_has_failed_before_the_first_answer_is_tried_once_more() -> None:
    """The bus may have been away."""
    bus = ComesBack(2)
    trial = Tried(bus, ONE, TWO, THREE)
    await trial.run_after_failure()
    assert [[1], [2], [3], [1], [2]] == bus.calls
    assert ([], [1, 2, 3]) == (trial.failed, trial.went_through)


@in_virtual_time
async def test_a_second_failure_counts() -> None:
    """There is no third try."""
    bus = FailsFor(ValueError, ONE, THREE)
    trial = Tried(bus, *EVENTS)
    await trial.run_after_failure()
    assert [1, 1, 2, 3, 4, 5] == sorted(call[0] for call in bus.calls)
    assert ([1, 3], [2, 4, 5]) == (trial.failed, trial.went_through)


@in_virtual_time
async def test_of_what_has_failed_before_the_first_answer_and_then_hangs_nothing_is_known() -> None:
    """The first failure was of a bus that was away."""

    class Hangs(ComesBack):
        async def work(self, events: Sequence[CommittedEvent]) -> None:
            await super().work(events)
            if events[0] == ONE:
                await asyncio.Event().wait()

    bus = Hangs(1)
    trial = Tried(bus, ONE, TWO)
    await trial.run_after_failure()
    assert [[1], [2], [1]] == bus.calls
    assert ([], [2]) == (trial.failed, trial.went_through)


@in_virtual_time
async def test_a_slow_bus_gets_a_few_owners_events_together() -> None:
    """As many calls as it takes within a stall; where that fails, fewer, and what fails so is noted for none."""
    bus = FailsFor(ValueError, event_of("owner 4", 4))
    trial = Tried(bus, *(event_of(f"owner {n}", n) for n in range(9)))
    trial.patience.note_answer(2.0)
    await trial.run_after_failure()
    assert [[0, 1, 2], [3, 4, 5], [6, 7, 8], [3], [4], [5]] == bus.calls
    assert ([4], 8) == (trial.failed, len(trial.went_through))


@in_virtual_time
async def test_a_part_that_fails_is_tried_in_smaller_ones_although_the_bus_is_not_there_yet() -> (
    None
):
    """Those come after the other ones of its size."""
    events = [event_of(f"owner {n}", n) for n in range(12)]
    bus = FailsFor(ValueError, *events)
    trial = Tried(bus, *events)
    trial.patience.note_answer(3.0)
    await trial.run_after_failure(unanswered_max=99)
    parts = [[*range(first, first + 4)] for first in (0, 4, 8)]
    parts += [[first, first + 1] for first in range(0, 12, 2)]
    assert [*parts, *([n] for n in range(12))] == bus.calls
    assert [*range(12)] == trial.failed


@in_virtual_time
async def test_an_owners_events_are_published_together_first() -> None:
    """Where the bus raises for that, each alone."""
    ours = [event_of("alice", n) for n in (1, 6, 7)]
    bus = FailsFor(ValueError, ours[1])
    trial = Tried(bus, TWO, event_of("bob", 8), *ours)
    await trial.run_after_failure()
    assert [[2, 8], [1, 6, 7], [1], [6], [7]] == bus.calls
    assert ([6], [1, 2, 7, 8]) == (trial.failed, trial.went_through)


@in_virtual_time
async def test_an_owners_events_that_hang_together_are_not_tried_alone() -> None:
    """Each may hang, and its owner keeps one call at a time. What has hung while later ones went through is its own."""
    ours = [event_of("alice", n, "team") for n in (1, 6)]
    bus = Takes(1.0, *ours)
    trial = Tried(bus, *ours, *EVENTS[1:], *OTHERS)
    await trial.run_all()
    assert [call for call in bus.calls if call[0] in (1, 6)] == [[1, 6]]
    assert [1, 6] == trial.failed
    for each in ours:
        error = trial.errors[each.event_id]
        assert isinstance(error, NoAnswer)
        assert error.is_own


@pytest.mark.parametrize(("slow", "calls"), [(3, [[1, 6, 7]]), (1, [[1, 6, 7], [1]])])
@in_virtual_time
async def test_an_owners_events_that_fail_slowly_are_not_tried_one_by_one(
    slow: int, calls: list[list[int]]
) -> None:
    """As where the client gives up by itself: each may keep out others for as long."""
    ours = [event_of("alice", n) for n in (1, 6, 7)]

    class GivesUp(FailsFor):
        async def work(self, events: Sequence[CommittedEvent]) -> None:
            if events[0] in ours:
                await asyncio.sleep(1.0 if len(events) == slow else 0.0)
                raise TimeoutError

    bus = GivesUp(None)
    trial = Tried(bus, TWO, *ours, THREE)
    await trial.run_after_failure()
    assert calls == [call for call in bus.calls if call[0] in (1, 6, 7)]
    assert ([1, 6, 7], {"alice"}) == (trial.failed, trial.slow)


@in_virtual_time
async def test_an_event_that_hangs_alone_keeps_its_owners_others_from_a_try() -> None:
    """Whatever their group; together they have raised."""
    ours = [event_of("alice", n) for n in (1, 6, 7)]

    class RaisesTogether(Takes):
        async def work(self, events: Sequence[CommittedEvent]) -> None:
            if len(events) > 1:
                raise ValueError
            await super().work(events)

    bus = RaisesTogether(1.0, ours[1])
    trial = Tried(bus, *EVENTS[1:], *ours, *OTHERS)
    await trial.run_all()
    assert [7] not in bus.calls
    assert [6, 7] == trial.failed
    assert 1 in trial.went_through


@in_virtual_time
async def test_events_of_a_group_stay_behind_the_one_that_fails() -> None:
    """Those of other groups of its owner are tried; each that was not has the error of the one before it."""
    ours = [event_of("alice", n, group) for n, group in ((1, "a"), (6, "b"), (7, "a"), (8, "b"))]
    bus = FailsFor(ValueError, ours[0])
    trial = Tried(bus, TWO, *ours)
    await trial.run_after_failure()
    assert [[2], [1, 6, 7, 8], [1], [6], [8]] == bus.calls
    assert [1, 7] == trial.failed
    assert trial.errors[ours[0].event_id] is trial.errors[ours[2].event_id]


@in_virtual_time
async def test_a_group_keeps_its_order_where_its_owners_events_go_on_after_the_trial() -> None:
    """The errors are forgotten by then."""
    ours = [event_of("alice", n, group) for n, group in ((1, "a"), (6, "b"), (7, "a"), (8, "b"))]

    class Slow(Takes):
        async def work(self, events: Sequence[CommittedEvent]) -> None:
            if len(events) > 1 or ours[0] in events:
                raise ValueError
            if events[0] != TWO:
                await super().work(events)

    bus = Slow(PATIENCE_SECONDS + 0.5)
    trial = Tried(bus, TWO, *ours)
    await trial.run_after_failure()
    (going_on,) = trial.left
    assert [1] == trial.failed
    trial.errors.clear()
    await going_on
    assert [[2], [1, 6, 7, 8], [1], [6], [8]] == bus.calls
    assert [] == trial.failed


@in_virtual_time
async def test_a_bus_that_is_not_there_is_asked_for_one_event_of_an_owner_alone() -> None:
    """It may be away: the others have its error."""
    ours = [event_of("alice", n) for n in (1, 6, 7)]
    bus = FailsFor(ValueError, *ours)
    trial = Tried(bus, *ours)
    await trial.run_after_failure()
    assert [[1, 6, 7], [1]] == bus.calls
    assert [1, 6, 7] == trial.failed


@in_virtual_time
async def test_an_answer_for_an_event_of_the_same_owner_shows_that_the_bus_is_there() -> None:
    """What comes behind the one that fails is tried; and it is not tried once more."""
    ours = [event_of("alice", n) for n in (1, 6, 7)]
    bus = FailsFor(ValueError, ours[1])
    trial = Tried(bus, *ours)
    await trial.run_after_failure()
    assert [[1, 6, 7], [1], [6], [7]] == bus.calls
    assert ([6], [1, 7]) == (trial.failed, trial.went_through)
    assert trial.is_there


@in_virtual_time
async def test_what_the_bus_refuses_it_has_answered() -> None:
    """With its reason."""
    bus = FailsFor(ValueError, ONE)
    bus.refuses = TWO
    trial = Tried(bus, ONE, TWO, THREE)
    await trial.run_after_failure()
    assert {TWO.event_id: "no", THREE.event_id: None} == trial.answered


@in_virtual_time
async def test_an_event_that_goes_through_at_last_has_no_error() -> None:
    """Of an owner with others that fail again."""
    ours = [event_of("alice", n) for n in (1, 6)]
    bus = FailsFor(ValueError, *ours)

    async def others() -> AsyncIterator[CommittedEvent]:
        bus.events = [ours[1]]
        yield OTHERS[0]

    trial = Tried(bus, *ours)
    trial.together.cancel()
    await trial.run(["alice"], trial.loop.create_task(fails()), others(), 16)  # type: ignore[arg-type]
    assert ([6], [1]) == (trial.failed, trial.went_through)


@in_virtual_time
async def test_it_ends_where_the_call_for_all_of_them_is_answered_after_all() -> None:
    """At once, and with the calls for single owners: their events have gone through."""
    bus = FailsFor(None, TWO)
    trial = Tried(bus, *EVENTS)
    answer: asyncio.Future[dict[UUID, str]] = trial.loop.create_future()
    trial.together.cancel()
    trial.together = trial.loop.create_task(asyncio.wait_for(answer, None))
    trial.loop.call_later(1.0, answer.set_result, {})
    assert pytest.approx(1.0) == await trial.run_all()
    assert trial.is_together
    await asyncio.wait(trial.left)
    assert [["bob"]] == [*trial.left.values()]
    assert all(task.cancelled() for task in trial.left)


@in_virtual_time
async def test_a_log_that_cannot_be_read_ends_the_trial_and_its_calls() -> None:
    """The turn fails with that error."""

    async def broken() -> AsyncIterator[CommittedEvent]:
        raise ConnectionError
        yield ONE

    bus = FailsFor(None, *EVENTS)
    trial = Tried(bus, *EVENTS)
    with pytest.raises(ConnectionError):
        await trial.run(trial.owners, trial.together, broken(), 16)
    await asyncio.wait(trial.left)
    assert 0 == bus.under_way


@in_virtual_time
async def test_an_error_that_comes_as_the_turn_ends_is_not_printed() -> None:
    """Asyncio would log it with its text."""

    async def run(bus: FailsFor) -> None:
        trial = Tried(bus, ONE)
        try:
            await trial.run_all()
        finally:
            await asyncio.wait({trial.together, *trial.left})

    assert [] == await printed_of_late_errors(run)


class Reading:
    """Others for whom the log is read on without end."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> AsyncIterator[CommittedEvent]:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()
        yield ONE


@in_virtual_time
async def test_calls_end_while_the_log_is_read_on() -> None:
    """What is answered ends that: others are not needed any more."""
    bus, reading = FailsFor(LookupError, ONE), Reading()
    trial = Tried(bus, ONE, TWO)
    trial.together.cancel()
    trial.together = trial.loop.create_task(fails())
    assert 0.0 == await trial.run_all(reading)
    assert ([1], [2]) == (trial.failed, trial.went_through)
    assert reading.begun.is_set()
    assert reading.ended.is_set()


@in_virtual_time
async def test_an_answer_ends_the_reading_at_once() -> None:
    """It keeps a connection, and what hangs is waited for longer."""
    bus, reading = FailsFor(None, THREE), Reading()
    trial = Tried(bus, THREE, ONE)
    running = asyncio.create_task(trial.run_all(reading))
    await asyncio.sleep(PATIENCE_SECONDS + 0.1)
    assert reading.begun.is_set()
    assert not reading.ended.is_set()
    await asyncio.sleep(PATIENCE_SECONDS)
    assert [1] == trial.went_through
    assert reading.ended.is_set()
    assert not running.done()
    await running


@in_virtual_time
async def test_a_bus_is_away_where_the_log_is_still_read_on() -> None:
    """The turn ends as it would without that."""
    bus, reading = FailsFor(LookupError, *EVENTS), Reading()
    trial = Tried(bus, *EVENTS)
    trial.together.cancel()
    trial.together = trial.loop.create_task(fails())
    assert SILENT_SECONDS <= await trial.run_all(reading) < SILENT_SECONDS + PATIENCE_SECONDS
    assert [1, 2, 3, 4, 5] == trial.failed
    assert reading.ended.is_set()


@in_virtual_time
async def test_a_turn_that_is_cancelled_reads_on_no_more() -> None:
    """Its end is waited for."""
    bus, reading = FailsFor(LookupError, *EVENTS), Reading()
    trial = Tried(bus, *EVENTS)
    running = asyncio.create_task(trial.run_after_failure(reading))
    await reading.begun.wait()
    running.cancel()
    await asyncio.wait({running})
    assert reading.ended.is_set()


class EndsLate(Reading):
    """One whose end takes until the test says so, as that of a statement on a broken network does."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = asyncio.Event()

    async def __call__(self) -> AsyncIterator[CommittedEvent]:
        while not self.may_end.is_set():
            with suppress(asyncio.CancelledError):
                await self.may_end.wait()
        yield ONE


@in_virtual_time
async def test_a_turn_that_is_cancelled_while_its_reading_ends_leaves_no_call_behind() -> None:
    """The bus is there, and those that hang would have gone on beside the log."""
    bus, reading = FailsFor(None, TWO, THREE), EndsLate()
    trial = Tried(bus, ONE, FOUR, TWO, THREE)
    running = asyncio.create_task(trial.run_after_failure(reading))
    await asyncio.sleep(PATIENCE_SECONDS + 0.1)
    assert [1, 4] == trial.went_through
    assert 2 == bus.under_way
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    await asyncio.wait(trial.left)
    assert 0 == bus.under_way
    reading.may_end.set()


def test_events_are_sorted_by_the_owner_of_their_group() -> None:
    """In their order."""
    last = event_of("alice", 9)
    assert {"alice": [ONE, last], "bob": [TWO]} == by_owner([ONE, TWO, last])


@in_virtual_time
async def test_the_last_owner_of_whom_all_others_were_answered_is_not_tried() -> None:
    """The call for all hangs: it is for this one, whose call would keep the only place once more."""
    bus = FailsFor(None, TWO)
    trial = Tried(bus, ONE, TWO)
    assert 0.0 == await trial.run_all()
    assert [[1]] == bus.calls


@in_virtual_time
async def test_the_last_owner_is_tried_where_the_call_for_all_has_raised() -> None:
    """It may have been for their number."""
    bus = FailsFor(None)
    trial = Tried(bus, ONE, TWO)
    await trial.run_after_failure()
    assert [1, 2] == trial.went_through


@in_virtual_time
async def test_a_bus_that_answers_for_what_is_published_beside_the_log_is_there() -> None:
    """It does few things at once, and is busy with others: the place need not stay."""
    bus = FailsFor(None, *EVENTS, *OTHERS[1:])
    trial = Tried(bus, *EVENTS)
    running = asyncio.create_task(trial.run_all(Behind(*OTHERS[1:])))
    await asyncio.sleep(PATIENCE_SECONDS)
    assert {} == await trial.calls.publish([OTHERS[0]])
    await running
    assert trial.is_there
    assert not trial.answered
