"""The recorder of trails: its bounds, and what it does where the store fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from stretto.creation import trail as trail_module
from stretto.creation.trail import BATCH_MAX, OWNER_ENTRIES_PER_SECOND, QUEUED_MAX, TrailRecorder
from stretto.domain import UserId
from stretto.observations import AttemptStrayed
from stretto.store_errors import Unreachable
from support.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence


class Store:
    """Keeps what is added, unless it fails or hangs."""

    def __init__(self) -> None:
        self.statements: list[list[tuple[int, float]]] = []
        self.error: Exception | None = None
        self.hangs = False

    async def append(self, strays: Sequence[tuple[AttemptStrayed, float]]) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        self.statements.append([(stray.group_id.int, seconds) for stray, seconds in strays])

    @property
    def added(self) -> list[int]:
        """The attempts, in the order in which they were added."""
        return [number for statement in self.statements for number, _ in statement]


def stray(number: int, owner: str | None = None) -> AttemptStrayed:
    """Return what happened to the attempt of that number, of an owner of its own by default."""
    return AttemptStrayed("unknown", UUID(int=number), UserId(owner or f"user {number}"))


async def test_what_was_noted_is_added_in_one_statement_with_its_age() -> None:
    """The database's clock then says when it happened."""
    store, clock = Store(), Clock()
    recorder = TrailRecorder(store, clock)
    recorder.note(stray(1))
    assert recorder.woken.is_set()
    clock.now += 2
    recorder.note(stray(2))
    clock.now += 1
    assert 2 == await recorder.run_once()
    assert [[(1, 3), (2, 1)]] == store.statements
    assert 0 == await recorder.run_once()
    assert 1 == len(store.statements)


async def test_an_owner_has_so_many_entries_in_a_second() -> None:
    """One that goes on and on fills no table, and takes no other's place."""
    store, clock = Store(), Clock()
    recorder = TrailRecorder(store, clock)
    for _ in range(2):
        for _ in range(5 * OWNER_ENTRIES_PER_SECOND):
            recorder.note(stray(1, "alice"))
        recorder.note(stray(2, "bob"))
        await recorder.run_once()
        assert OWNER_ENTRIES_PER_SECOND == store.added.count(1)
        assert 1 == store.added.count(2)
        store.statements.clear()
        clock.now += 1


async def test_so_many_wait_and_are_added_batch_by_batch() -> None:
    """What comes while the database is away is bounded; the oldest show how it began."""
    store = Store()
    recorder = TrailRecorder(store)
    for number in range(QUEUED_MAX + 10):
        recorder.note(stray(number))
    for number in range(QUEUED_MAX // BATCH_MAX):
        recorder.woken.clear()
        assert BATCH_MAX == await recorder.run_once()
        is_last = number == QUEUED_MAX // BATCH_MAX - 1
        assert is_last is not recorder.woken.is_set()
    assert list(range(QUEUED_MAX)) == store.added


async def test_what_could_not_be_added_is_added_later() -> None:
    """An unknown outcome is noted when the database is away."""
    store = Store()
    recorder = TrailRecorder(store)
    store.error = Unreachable("away")
    recorder.note(stray(1))
    with pytest.raises(Unreachable):
        await recorder.run_once()
    store.error = None
    recorder.note(stray(2))
    await recorder.run_once()
    assert [1, 2] == store.added


async def test_the_end_adds_all_that_waits() -> None:
    """In as many statements as it takes."""
    store = Store()
    recorder = TrailRecorder(store)
    for number in range(2 * BATCH_MAX + 1):
        recorder.note(stray(number))
    recorder.stop()
    await recorder.close()
    assert list(range(2 * BATCH_MAX + 1)) == store.added


@pytest.mark.parametrize(("expected", "failure"), [([1], ""), ([], "fails"), ([], "hangs")])
async def test_the_end_adds_what_is_left_if_that_is_soon_done(
    expected: list[int], failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not held up by a database that does not answer."""
    monkeypatch.setattr(trail_module, "STOP_SECONDS", 0.01 if failure == "hangs" else 20)
    store = Store()
    store.error = Unreachable("away") if failure == "fails" else None
    store.hangs = failure == "hangs"
    recorder = TrailRecorder(store)
    recorder.note(stray(1))
    recorder.stop()
    async with asyncio.timeout(30):
        await recorder.close()
    assert expected == store.added
    store.error, store.hangs = None, False
    await recorder.close()
    assert expected == store.added
