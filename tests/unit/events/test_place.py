"""Places in the log: what they cover, and what clients keep of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stretto.domain import EVENT_TYPE
from stretto.events.log import CommittedEvent, LoggedEvent, LogPage
from stretto.events.place import RUNNING_MAX, History, Part, Place, PositionLost, Present, lowest
from support.log_events import HISTORY, logged, place, present

NEXT = History(2, "11111111")
POSITIONS = range(12)


# Of a transaction, in their order: a creation, two changes. `None` stands for those behind them.
EVENTS = (0, 1, 2, None)


def part(position: int, event: int) -> Part:
    """Return what a reader has had that has had a transaction up to this event."""
    return Part(position, event > 0, UUID(int=9 - event if event == 0 else event))


def covered(where: Place) -> set[tuple[int, int, int | None]]:
    """Return what a place covers, of a few transactions in each history."""
    return {
        (number, position, event)
        for number, position, event in product((0, 1, 2, 3), POSITIONS, EVENTS)
        if where.covers(number, position)
        or (event is not None and where.has(number, part(position, event)))
    }


@st.composite
def places(draw: st.DrawFn) -> Place:
    """Draw a place of a small log."""
    xmax = draw(st.integers(0, 10))
    running = draw(st.sets(st.integers(0, max(0, xmax - 1)))) if xmax else set[int]()
    parts = draw(st.dictionaries(st.sampled_from(POSITIONS), st.sampled_from(EVENTS[:-1])))
    where = place(xmax, *sorted(running), history=draw(st.sampled_from([HISTORY, NEXT])))
    return where.with_parts(part(position, event or 0) for position, event in parts.items())


def test_a_place_covers_older_histories_and_what_had_ended_before_it() -> None:
    """A transaction that ran may still commit."""
    where = place(8, 3, 5)
    whole = {(0, n) for n in POSITIONS} | {(1, n) for n in (0, 1, 2, 4, 6, 7)}
    assert {(*each, event) for each in whole for event in EVENTS} == covered(where)
    assert covered(where) | {(1, 5, 0), (1, 5, 1)} == covered(where.with_parts([part(5, 1)]))


@example(one=place(5), other=place(5).with_parts([part(7, 1)]))
@given(one=places(), other=places())
def test_or_covers_what_either_covers_and_and_what_both_cover(one: Place, other: Place) -> None:
    """Exactly."""
    assert covered(one) | covered(other) == covered(one | other)
    assert covered(one) & covered(other) == covered(one & other)


@example(several=[place(5), place(5).with_parts([part(7, 1)])])
@given(several=st.lists(places(), min_size=1, max_size=5))
def test_the_lowest_of_several_covers_what_all_of_them_cover(several: list[Place]) -> None:
    """Where they name few transactions, exactly that."""
    assert set.intersection(*map(covered, several)) == covered(lowest(several))


@given(named=st.sets(st.integers(0, 199), max_size=60))
def test_the_lowest_of_many_names_few_transactions(named: set[int]) -> None:
    """Where they name more, it covers less."""
    several = [place(200), *(place(200, n) for n in named)]
    assert len(lowest(several).running) <= RUNNING_MAX
    assert not any(n for n in named if lowest(several).covers(1, n))


@given(where=places())
def test_a_place_survives_the_way_to_a_client_and_back(where: Place) -> None:
    """As text, but for parts: what was had of a transaction that is not covered comes again."""
    assert replace(where, parts=()) == Place.parse(str(where))


def test_a_position_is_readable() -> None:
    """Its end, how far below it others were running, the history."""
    assert "763~5~2.1-0a1b2c3d" == str(place(763, 758, 761))
    assert place(763, 758, 761) == Place.parse("763~2~5.1-0a1b2c3d")


@example(running={*range(0, 120, 2)})
@given(running=st.sets(st.integers(0, 199), max_size=60))
def test_the_text_is_bounded_and_covers_no_more_than_the_place(running: set[int]) -> None:
    """Where more transactions were running than it can name, it ends at the next one."""
    where = place(200, *sorted(running))
    parsed = Place.parse(str(where))
    assert len(parsed.running) <= RUNNING_MAX
    assert all(where.covers(1, n) for n in range(201) if parsed.covers(1, n))
    assert len(running) > RUNNING_MAX or parsed == where


@pytest.mark.parametrize("text", ["", "7", "7.", ".1-0a1b2c3d", "7.0a1b2c3d", "7.1-0A1B2C3D", "7.1-0a1b2c3", "7.1-0a1b2c3d4", "-7.1-0a1b2c3d", "\u0667.1-0a1b2c3d", f"{2**64}.1-0a1b2c3d", "7.1-0a1b2c3d\n", "7~0.1-0a1b2c3d", "7~8.1-0a1b2c3d", "7~.1-0a1b2c3d", f"7.{2**31}-0a1b2c3d", "99" + "~1" * (RUNNING_MAX + 1) + ".1-0a1b2c3d"])  # fmt: skip
def test_what_was_never_sent_is_no_position(text: str) -> None:
    """It is an error of the client's program, not of time."""
    with pytest.raises(ValueError, match=r"^"):
        Place.parse(text)


@pytest.mark.parametrize(
    ("is_lost", "where"),
    [
        (False, place(10)),
        (False, place(9, 5)),
        (True, place(9, 4)),
        (False, place(5)),
        (True, place(4)),
        (True, place(11)),
        (True, place(9, history=History(1, "ffffffff"))),
        (True, place(9, history=NEXT)),
        (True, place(9, history=History(0, "0a1b2c3d"))),
    ],
)
def test_a_place_is_lost_if_the_log_cannot_go_on_from_there(is_lost: bool, where: Place) -> None:
    """Swept, in part or whole; of another database; ahead of this one."""
    try:
        present(10, start=5).require(where)
    except PositionLost:
        assert is_lost
    else:
        assert not is_lost


@pytest.mark.parametrize(
    ("is_lost", "where", "change"),
    [
        (False, place(9, 3, 4), {}),
        (True, place(9, 2, 3), {}),
        (True, place(4, 3), {}),
        (True, place(9, 4), {"is_ended": True}),
        (True, place(9, 4), {"running": ()}),
        (False, place(9, 3), {"is_ended": True}),
        # Numbers of one history say nothing of another one's.
        (True, place(9, 3), {"start": (2, 5)}),
    ],
)
def test_what_outlasts_a_sweep_takes_no_place(
    is_lost: bool, where: Place, change: dict[str, Any]
) -> None:
    """It was running at the last sweep (3), or runs now (4): what was swept had committed."""
    seen = replace(present(10, 4, start=5), start_running=frozenset({3}))
    try:
        replace(seen, **change).require(where)
    except PositionLost:
        assert is_lost
    else:
        assert not is_lost
    assert place(5, 3, 4) == seen.first


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_place_beyond_the_end_of_a_history_that_has_ended_is_kept(is_ended: bool) -> None:
    """A failover has lost what it has had besides; whatever comes is of another history."""
    ended = Present(HISTORY, 10, (), {1: HISTORY.id}, (1, 0), is_ended=is_ended)
    begun = Present(NEXT, 3, (), {1: HISTORY.id, 2: NEXT.id}, (1, 0))
    begun.require(place(13))
    if is_ended:
        ended.require(place(13))
    else:
        with pytest.raises(PositionLost):
            ended.require(place(13))


@pytest.mark.parametrize(
    ("expected", "start"),
    [(place(5), (1, 5)), (place(1), (0, 0)), (place(3, history=NEXT), (2, 3))],
)
def test_the_first_place_is_where_the_log_begins(expected: Place, start: tuple[int, int]) -> None:
    """Whichever history that is in; a snapshot of the database's begins at 1 at the earliest."""
    assert expected == Present(NEXT, 9, (), {1: HISTORY.id, 2: NEXT.id}, start).first


def test_the_present_rests_on_the_last_visible_event() -> None:
    """Newer transactions may be forgotten in a crash, and their ids given out again."""
    assert place(10, 4) == present(10, 4, 10, 12).place


@st.composite
def logs(draw: st.DrawFn) -> tuple[set[int], Place, set[int], set[int]]:
    """Draw transactions with events: visible at a first moment, its place, visible later, running."""
    transactions = draw(st.sets(st.integers(1, 10)))
    before = draw(st.sets(st.sampled_from(sorted(transactions)))) if transactions else set()
    end = max(before, default=0) + 1
    running = {n for n in transactions if n < end and n not in before}
    later = before | (
        draw(st.sets(st.sampled_from(sorted(transactions)))) if transactions else set()
    )
    return before, place(end, *sorted(running)), later, transactions - later


@given(drawn=logs(), events_max=st.integers(1, 4))
def test_page_by_page_every_event_comes_once(
    drawn: tuple[set[int], Place, set[int], set[int]], events_max: int
) -> None:
    """From the place of a first moment on, whatever has committed since, in whatever order."""
    before, where, visible, running = drawn
    end = max(visible, default=0) + 1
    moment = present(end, *sorted(running))
    moment.require(where)
    found: list[int] = []
    while True:
        new = sorted(n for n in visible if not where.covers(1, n))
        page, rest = new[:events_max], new[events_max:]
        for number in page:
            assert visible - set(new) | {n for n in new if n <= number} == {
                n for n in visible if moment.after(where, HISTORY, number).covers(1, n)
            }
            assert not any(moment.after(where, HISTORY, number).covers(1, n) for n in running)
        found += page
        if not rest:
            break
        where = moment.after(where, HISTORY, page[-1])
    assert sorted(visible - before) == found
    assert visible == {
        n for n in range(1, 12) if n in visible | running and moment.place.covers(1, n)
    }


def test_only_the_last_event_of_a_transaction_carries_the_place_after_it() -> None:
    """A client that has had the first one may still have to get the second."""
    events = [logged(n) for n in (5, 5, 6)]
    page = LogPage(place(5), events, place(7), present(7), is_full=False)
    assert ["5.1-0a1b2c3d", "6.1-0a1b2c3d", "7.1-0a1b2c3d"] == [
        position for _, position in page.numbered()
    ]


def test_no_event_carries_a_place_beyond_a_transaction_that_still_runs() -> None:
    """Its event may come later."""
    events = [logged(n) for n in (3, 8, 9)]
    page = LogPage(place(7, 3, 4), events, place(10, 4), present(10, 4), is_full=False)
    places = [Place.parse(position) for _, position in page.numbered()]
    assert [place(7, 4), place(9, 4), place(10, 4)] == places


def test_no_event_carries_a_place_behind_a_transaction_that_goes_on() -> None:
    """The next page has the rest of it: a client that resumes gets all of it again."""
    events = [logged(n) for n in (5, 6, 6)]
    end = present(7).within(place(5), HISTORY, events[-1].part)
    page = LogPage(place(5), events, end, present(7), is_full=True, is_cut=True)
    assert [place(6)] * 3 == [Place.parse(position) for _, position in page.numbered()]
    rest = LogPage(end, [logged(6)], place(7), present(7), is_full=False)
    assert ["7.1-0a1b2c3d"] == [position for _, position in rest.numbered()]


def at(position: int, event: int, history: History = HISTORY) -> LoggedEvent:
    """Return an event of a transaction."""
    where = part(position, event)
    event_type = "group.renamed" if where.is_change else EVENT_TYPE
    committed = CommittedEvent(where.event_id, (), b"{}", event_type=event_type)
    return LoggedEvent(committed, history, position, is_change=where.is_change)


@given(
    begin=places(),
    sizes=st.dictionaries(st.tuples(st.sampled_from([HISTORY, NEXT]), st.sampled_from(POSITIONS)), st.integers(1, 3)),
    running=st.sets(st.sampled_from(POSITIONS)),
    events_max=st.integers(1, 6),
)  # fmt: skip
def test_a_place_behind_a_part_of_a_page_covers_what_came_before_it(
    begin: Place, sizes: dict[tuple[History, int], int], running: set[int], events_max: int
) -> None:
    """And nothing that follows, wherever the page is divided: also within a transaction."""
    visible = [
        at(position, event, history)
        for (history, position), size in sizes.items()
        if history != NEXT or position not in running
        for event in range(size)
    ]
    visible.sort(key=lambda each: (each.history.number, each.part))
    left = [each for each in visible if not begin.has(each.history.number, each.part)]
    page, behind = left[:events_max], left[events_max:]
    histories = {1: HISTORY.id, 2: NEXT.id}
    now = Present(NEXT, max(POSITIONS) + 1, tuple(sorted(running)), histories, (1, 0))
    if not page:
        return
    last = page[-1]
    is_cut = bool(
        behind and behind[0].position == last.position and behind[0].history == last.history
    )
    end = now.within(begin, last.history, last.part) if is_cut else now.after(begin, last.history, last.position)  # fmt: skip
    whole = LogPage(begin, page, end, now, is_full=True, is_cut=is_cut)
    for count in range(1, len(page) + 1):
        reached = whole.place_behind(count)
        assert all(reached.has(each.history.number, each.part) for each in page[:count])
        assert not any(
            reached.has(each.history.number, each.part) for each in (*page[count:], *behind)
        )
        assert not any(reached.covers(2, each) and not begin.covers(2, each) for each in running)


def test_a_place_may_stand_within_several_transactions() -> None:
    """One with many events has committed late, while a reader was within another."""
    begin = place(5, 3).with_parts([part(8, 1)])
    end = present(9).within(begin, HISTORY, part(3, 0))
    assert (part(3, 0), part(8, 1)) == end.parts
    assert (part(8, 1),) == present(9).after(end, HISTORY, 3).parts
    assert () == present(9).after(end, HISTORY, 8).parts
