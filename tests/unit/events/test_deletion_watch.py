"""What a process has remembered of a deleted group is forgotten, by whatever process it was deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.events import deletion_watch
from stretto.events.deletion_watch import DeletionWatch
from stretto.events.place import History, Place, Present
from stretto.store_errors import ReadCancelled, Unreachable
from support.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Callable

HISTORY = History(1, "here")
GROUP, OTHER = UUID(int=1), UUID(int=2)
ALL = b"everything"


class FakeLog:
    """A log whose present and deletions a test sets."""

    def __init__(self) -> None:
        self.begins: list[Place | None] = []
        self.deleted: list[UUID] = []
        self.end = 10
        self.start = (0, 0)
        self.error: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        """Called between a look's statement and its end."""

    async def deletions(self, begin: Place | None, limit: int) -> tuple[list[UUID], Present]:
        self.begins.append(begin)
        self.meanwhile()
        if self.error is not None:
            raise self.error
        histories = {HISTORY.number: HISTORY.id}
        present = Present(HISTORY, self.end, (), histories, self.start)
        return ([] if begin is None else self.deleted[:limit]), present


@pytest.fixture
def log() -> FakeLog:
    """Without a deletion."""
    return FakeLog()


@pytest.fixture
def forgotten() -> list[bytes]:
    """Ids that were forgotten, in order; `ALL` where everything was."""
    return []


@pytest.fixture
def clock() -> Clock:
    """Stands still, but for what a test does."""
    return Clock()


@pytest.fixture
def confirmed() -> list[float]:
    """Times as of which the memory was confirmed, in order."""
    return []


@pytest.fixture
def watch(
    log: FakeLog, forgotten: list[bytes], confirmed: list[float], clock: Clock
) -> DeletionWatch:
    """A watch of that log."""
    return DeletionWatch(
        log, forgotten.append, lambda: forgotten.append(ALL), confirmed.append, clock
    )


async def test_what_is_deleted_behind_the_place_is_forgotten(
    watch: DeletionWatch, log: FakeLog, forgotten: list[bytes]
) -> None:
    """That alone; the next look begins where this one has ended."""
    await watch.open()
    log.deleted, log.end = [GROUP, OTHER], 20
    assert 2 == await watch.run_once()
    assert [GROUP.bytes, OTHER.bytes] == forgotten
    log.deleted = []
    assert 0 == await watch.run_once()
    assert [None, Place(HISTORY, 10), Place(HISTORY, 20)] == log.begins


async def test_a_watch_that_begins_late_forgets_everything(
    watch: DeletionWatch, log: FakeLog, forgotten: list[bytes]
) -> None:
    """What was remembered before may have been deleted before."""
    assert 0 == await watch.run_once()
    assert [ALL] == forgotten
    await watch.run_once()
    assert [None, Place(HISTORY, 10)] == log.begins
    assert [ALL] == forgotten


@pytest.mark.parametrize("error", [Unreachable("gone"), RuntimeError("a bug")])
async def test_what_cannot_be_read_may_have_been_a_deletion(
    watch: DeletionWatch, log: FakeLog, forgotten: list[bytes], error: Exception
) -> None:
    """Everything is forgotten; the next look finds what is deleted after it."""
    await watch.open()
    log.error = error
    with pytest.raises(type(error)):
        await watch.run_once()
    assert [ALL] == forgotten
    log.error = None
    await watch.run_once()
    log.deleted = [GROUP]
    await watch.run_once()
    assert [ALL, ALL, GROUP.bytes] == forgotten


async def test_a_look_that_fails_is_not_repeated_over_more_and_more_events(
    watch: DeletionWatch, log: FakeLog, forgotten: list[bytes]
) -> None:
    """The next one begins at the present; what was remembered meanwhile is forgotten, too."""
    await watch.open()
    log.error, log.end = ReadCancelled("statement timeout"), 5_000_000
    with pytest.raises(ReadCancelled):
        await watch.run_once()
    log.error = None
    for _ in range(2):
        await watch.run_once()
    assert [None, Place(HISTORY, 10), None, Place(HISTORY, 5_000_000)] == log.begins
    assert [ALL, ALL] == forgotten


def _swept(log: FakeLog) -> None:
    log.start = (HISTORY.number, 15)
    log.end = 20


def _full(log: FakeLog) -> None:
    log.deleted = [GROUP] * deletion_watch.DELETIONS_MAX


@pytest.mark.parametrize("make_unknown", [_swept, _full])
async def test_what_the_look_does_not_show_is_forgotten_with_everything(
    watch: DeletionWatch,
    log: FakeLog,
    forgotten: list[bytes],
    make_unknown: Callable[[FakeLog], None],
) -> None:
    """What was truncated, and what is beyond the limit; the watch goes on at the present."""
    await watch.open()
    make_unknown(log)
    await watch.run_once()
    assert ALL == forgotten[0]
    log.deleted = []
    await watch.run_once()
    assert Place(HISTORY, log.end) == log.begins[-1]
    assert 1 == forgotten.count(ALL)


async def test_a_look_confirms_what_is_remembered_as_of_its_beginning(
    watch: DeletionWatch, log: FakeLog, confirmed: list[float], clock: Clock
) -> None:
    """The process may be stopped during it, and what is deleted then is not in its answer."""

    def stop() -> None:
        clock.now += 60

    await watch.open()
    log.meanwhile = stop
    await watch.run_once()
    assert [1000.0, 1000.0] == confirmed
    await watch.run_once()
    assert [1060.0] == confirmed[2:]


async def test_a_look_that_fails_confirms_nothing(
    watch: DeletionWatch, log: FakeLog, confirmed: list[float], clock: Clock
) -> None:
    """The very first one begins the time in which another has to."""
    log.error = Unreachable("gone")
    with pytest.raises(Unreachable):
        await watch.open()
    assert [1000.0] == confirmed
    clock.now += 1
    with pytest.raises(Unreachable):
        await watch.run_once()
    assert [1000.0] == confirmed
