"""Whatever commits, crashes and is promoted in whichever order: no reader of the log misses an event.

Readers read pages of any size. In the end each has had every event that is there and was not there
when it began, none of them twice, or has learned that its position is lost. The same holds for
clients that resume at any position that was ever sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from stretto.events.log import LogPage
from stretto.events.place import Place, PositionLost, Present
from support import memory_log
from support.memory_log import MemoryLog, page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from stretto.events.log import LoggedEvent

PROFILE = settings(
    # The same runs everywhere and every time: what is found stays found.
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=400,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
READERS_MAX = 3
RUNNING_MAX = 3
# More than a run has of anything.
MANY = 1000


@dataclass(slots=True)
class Reader:
    """One that reads from a place, and keeps what it was sent with every position."""

    place: Place
    had: set[UUID]
    """What it has had, or what was there before it began."""
    is_lost: bool = False
    sent: list[tuple[str, frozenset[UUID]]] = field(default_factory=list)

    def read(self, log: MemoryLog, events_max: int) -> bool:
        """Read a page; return whether there may be more."""
        page = page_of(log, self.place, events_max)
        try:
            page.present.require(self.place)
        except PositionLost:
            assert is_lost(log, self.place), "what is not lost counts as lost"
            self.is_lost = True
            return False
        assert not is_swept(log, self.place), "a gap is passed over in silence"
        for event, position in page.numbered():
            assert event.event.event_id not in self.had, "an event came twice"
            self.had.add(event.event.event_id)
            self.sent.append((position, frozenset(self.had)))
        self.place = page.place
        self.sent.append((str(page.place), frozenset(self.had)))
        return page.is_full


def is_swept(log: MemoryLog, place: Place) -> bool:
    """Whether events that the place does not cover were truncated."""
    gone = log.truncation.gone
    return bool(gone) and any(
        event.event.event_id in gone and not place.covers(event.history.number, event.position)
        for event in log.events
    )


def is_lost(log: MemoryLog, place: Place) -> bool:
    """Whether something that the place stands for is gone, or may be: events, or its whole history.

    A transaction that was running when the log was truncated last has lost nothing, and none that
    still runs.
    """
    start, number = log.truncation.start, place.history.number
    over = {*place.running} - {*log.running, *log.truncation.running}
    is_old = (number, min(over, default=place.xmax)) < start
    is_unknown = place.history not in [each.history for each in log.begun]
    return is_swept(log, place) or is_old or is_unknown


class Machine(RuleBasedStateMachine):
    """A log, its writers and its readers."""

    @initialize()
    def start(self) -> None:
        self.log = MemoryLog()
        self.readers: list[Reader] = []
        self.read_afresh()

    @rule(events=st.integers(0, 2))
    def begin(self, events: int) -> None:
        """A few run at once; some write no event, and commit asynchronously."""
        if len(self.log.running) < RUNNING_MAX:
            self._begin(events)

    @rule(events=st.integers(0, 2))
    def write_at_once(self, events: int) -> None:
        """Most transactions are over before others have begun."""
        self.log.commit(self._begin(events))

    def _begin(self, events: int) -> int:
        position = self.log.begin()
        for _ in range(events):
            self.log.write(position, "alice")
        return position

    @rule(which=st.integers(0, RUNNING_MAX), is_rolled_back=st.sampled_from([False, False, True]))
    def end(self, which: int, is_rolled_back: bool) -> None:
        running = sorted(self.log.running)
        if running:
            end = self.log.roll_back if is_rolled_back else self.log.commit
            end(running[which % len(running)])

    @rule(survivors=st.integers(0, 2))
    def crash(self, survivors: int) -> None:
        self.log.crash(survivors)

    @rule(lost=st.sampled_from([3, 1, 5, 0]))
    def promote(self, lost: int) -> None:
        """A standby that lacks the last commits, or a recovery to a point before them."""
        self.log.promote(len(self.log.commits) - lost)

    @rule(events=st.integers(1, 3))
    def truncate(self, events: int) -> None:
        """Also beside transactions that are older than what goes."""
        if len(self.log.kept) > events:
            self.log.truncate(events)

    @rule()
    def read_afresh(self) -> None:
        """A reader begins at the present."""
        if len(self.readers) < READERS_MAX:
            here = {event.event.event_id for event in self.log.events}
            self.readers.append(Reader(self.log.look().place, here))

    @rule(which=st.integers(0, READERS_MAX - 1), events_max=st.integers(1, 3))
    def read(self, which: int, events_max: int) -> None:
        reader = self.readers[which % len(self.readers)]
        if not reader.is_lost:
            reader.read(self.log, events_max)

    def teardown(self) -> None:
        """All that runs ends, and every reader reads to the end."""
        for position in tuple(self.log.running):
            self.log.commit(position)
        there = {event.event.event_id for event in self.log.kept}
        for reader in self.readers:
            while not reader.is_lost and reader.read(self.log, 2):
                pass
            assert reader.is_lost or there <= reader.had, "an event never came"
            for text, had in reader.sent:
                resumed = Reader(Place.parse(text), set())
                resumed.read(self.log, MANY)
                assert resumed.is_lost or there <= had | resumed.had, f"{text} misses an event"


class LateWriters(Machine):
    """Transactions write long after they have begun, and after truncations of what is younger."""

    @rule(which=st.integers(0, RUNNING_MAX))
    def write(self, which: int) -> None:
        running = sorted(self.log.running)
        if running:
            self.log.write(running[which % len(running)], "alice")

    @rule()
    def read_from_the_first(self) -> None:
        """A reader that has lost its place begins with the first event that is kept."""
        if len(self.readers) < READERS_MAX:
            first = self.log.look().first
            had = {
                event.event.event_id
                for event in self.log.events
                if first.covers(event.history.number, event.position)
            }
            self.readers.append(Reader(first, had))


def test_no_reader_misses_what_an_old_transaction_writes() -> None:
    """Nor loses its place to one that has outlasted a truncation."""
    run_state_machine_as_test(LateWriters, settings=PROFILE)


def test_no_reader_misses_an_event_whatever_happens() -> None:
    """Late commits, crashes, promotions that lose commits, retention, pages of any size."""
    run_state_machine_as_test(Machine, settings=PROFILE)


def rest_on_the_newest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of asynchronous commits are given out again after a crash."""
    look = MemoryLog.look
    monkeypatch.setattr(MemoryLog, "look", lambda log: replace(look(log), end=log.next_id))


def forget_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction may commit after another with a higher id."""
    look = MemoryLog.look
    monkeypatch.setattr(MemoryLog, "look", lambda log: replace(look(log), running=()))


def forget_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was running for an earlier page, and still is, must stay in the place."""
    after = Present.after

    def forgetful(present: Present, begin: Place, *last: Any) -> Place:
        return after(present, replace(begin, running=()), *last)

    monkeypatch.setattr(Present, "after", forgetful)


def forget_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a promotion ids go back."""
    monkeypatch.setattr(
        Place, "covers", lambda place, _, at: at < place.xmax and at not in place.running
    )


def begin_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """A promotion goes on in the history that was."""
    promote = MemoryLog.promote

    def promoted(log: MemoryLog, kept: int) -> None:
        promote(log, kept)
        log.timeline = log.begun[-1].timeline or 1

    monkeypatch.setattr(MemoryLog, "promote", promoted)


def number_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position behind a transaction comes with the first of its events."""

    def numbered(page: LogPage) -> Iterator[tuple[LoggedEvent, str]]:
        place = page.begin
        for event in page.events:
            place = page.present.after(place, event.history, event.position)
            yield event, str(place)

    monkeypatch.setattr(LogPage, "numbered", numbered)


def take_cut_transactions_for_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that ends in the midst of a transaction passes over its other events."""
    cut = memory_log.page_of

    def whole(log: MemoryLog, begin: Place, events_max: int) -> LogPage:
        page = cut(log, begin, events_max)
        if not page.is_cut:
            return page
        last = page.events[-1]
        return replace(page, place=page.present.after(begin, last.history, last.position))

    monkeypatch.setattr(f"{__name__}.page_of", whole)


def skip_to_the_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full page is taken for all there is."""
    whole = memory_log.page_of

    def skip(log: MemoryLog, begin: Place, events_max: int) -> LogPage:
        page = whole(log, begin, events_max)
        return replace(page, place=page.present.place)

    monkeypatch.setattr(f"{__name__}.page_of", skip)


def resume_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are not checked: what was truncated is passed over in silence."""
    monkeypatch.setattr(Present, "require", lambda *_: None)


@pytest.mark.parametrize(
    "forget",
    [
        rest_on_the_newest_id,
        forget_what_runs,
        forget_what_ran,
        forget_the_history,
        begin_no_history,
        number_every_event,
        take_cut_transactions_for_whole,
        skip_to_the_present,
        resume_anywhere,
    ],
    ids=lambda forget: forget.__name__,
)
def test_without_its_guard_an_order_is_found_in_which_an_event_is_missed(
    forget: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each guard is one that the machine misses."""
    forget(monkeypatch)
    # The search ends with the first that is found.
    quick = settings(PROFILE, phases=[Phase.generate], max_examples=10_000)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=quick)
