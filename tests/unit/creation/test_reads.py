"""Which reads share a statement."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from stretto.creation import reads as reads_module
from stretto.creation.reads import (
    PAGE_ITEMS_DEFAULT,
    PAGE_ITEMS_MAX,
    PAGE_ROWS_READ_MAX,
    PAGES_READ_MAX,
    ROWS_READ_MAX,
    GroupReads,
    Reads,
)
from stretto.domain import UserId
from stretto.errors import Overloaded
from stretto.runtime.batch_reader import WAITING_MAX
from stretto.store_errors import ReadCancelled, Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.creation.ports import BatchAttemptStore, BatchGroupStore
    from stretto.creation.trail import BatchTrailStore
    from stretto.runtime.batch_reader import BatchReader

ALICE = UserId("alice")
GROUP = UUID(int=1)
ASKS: dict[str, Callable[[GroupReads, int], Awaitable[Sequence[Any] | None]]] = {
    "lists": lambda reads, limit: reads.groups_of_member(ALICE, None, limit),
    "members": lambda reads, limit: reads.members_of_group(GROUP, ALICE, None, limit),
}


class Store:
    """Notes how many questions each statement has."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    async def groups_of_member(self, wanted: Sequence[object]) -> list[list[object]]:
        self.batches.append(len(wanted))
        return [[] for _ in wanted]

    members_of_group = groups_of_member
    group_of_member = groups_of_member


@pytest.mark.parametrize("kind", ASKS)
@pytest.mark.parametrize(
    ("expected", "limit"),
    [
        # The largest page, and one row more that shows whether there is another page.
        (2, PAGE_ITEMS_MAX + 1),
        (PAGE_ROWS_READ_MAX // (PAGE_ITEMS_DEFAULT + 1), PAGE_ITEMS_DEFAULT + 1),
        (PAGES_READ_MAX, 2),
    ],
)
async def test_the_pages_of_a_statement_are_bounded_by_their_rows(
    kind: str, expected: int, limit: int
) -> None:
    """Other users wait for two of the largest pages, not for sixteen."""
    store = Store()
    reads = GroupReads(cast("BatchGroupStore", store))
    tasks = [asyncio.ensure_future(ASKS[kind](reads, limit)) for _ in range(PAGES_READ_MAX)]
    await asyncio.sleep(0)
    reader: BatchReader[Any, Any] = reads.lists if kind == "lists" else reads.members
    assert expected == await reader.run_once()
    assert [expected] == store.batches
    reader.stop()
    await asyncio.gather(*tasks, return_exceptions=True)


# More than may wait of any other read.
PINGS = WAITING_MAX + 1


async def ping_at_once(check: Callable[[], Awaitable[None]]) -> list[object]:
    """Return how so many health checks end that ask in the same moment."""
    stores = (cast("BatchAttemptStore", object()), cast("BatchTrailStore", object()))
    reads = Reads(*stores, cast("BatchGroupStore", Store()), check)
    tasks = [asyncio.ensure_future(reads.ping()) for _ in range(PINGS)]
    await asyncio.sleep(0)
    reader = reads.readers[-1]
    await reader.run_once()
    reader.stop()
    return list(await asyncio.gather(*tasks, return_exceptions=True))


async def test_any_number_of_health_checks_share_one_look_at_the_database() -> None:
    """A load balancer's must not be rejected for those that any other client sends."""
    checks: list[int] = []

    async def check() -> None:
        checks.append(1)

    assert [None] * PINGS == await ping_at_once(check)
    assert [1] == checks


async def test_as_many_as_other_reads_would_have_one_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The twin."""
    monkeypatch.setattr(reads_module, "PINGS_MAX", ROWS_READ_MAX)

    async def check() -> None:
        """Find nothing wrong."""

    assert any(isinstance(each, Overloaded) for each in await ping_at_once(check))


async def test_a_health_check_that_is_cancelled_is_not_repeated_for_each_who_asked() -> None:
    """Each would take as long again, and a load balancer waits for a second or two."""
    checks: list[int] = []

    async def check() -> None:
        checks.append(1)
        raise ReadCancelled("QueryCanceledError")

    outcomes = await ping_at_once(check)
    assert [1] == checks
    assert {Unreachable} == {type(each) for each in outcomes}


@pytest.mark.parametrize("kind", ["members", "single"])
async def test_a_host_that_names_no_user_has_a_share_for_each_group(kind: str) -> None:
    """One tenant's many reads of one group are not those of all: the newest of them is rejected."""
    reads = GroupReads(cast("BatchGroupStore", Store()))

    def ask(group: int) -> Awaitable[Any]:
        group_id = UUID(int=group)
        if kind == "members":
            return reads.members_of_group(group_id, None, None, 2)
        return reads.group_of_member(group_id, None)

    tasks = [asyncio.ensure_future(ask(group)) for group in (*[1] * WAITING_MAX, 2)]
    # Rejected in this turn, its task ends in the next one.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [True, False] == [task.done() for task in tasks[-2:]]
    assert isinstance(tasks[-2].exception(), Overloaded)
    reader: BatchReader[Any, Any] = reads.members if kind == "members" else reads.single
    await reader.run_once()
    assert [] == (await tasks[-1] or [])
    reader.stop()
    await asyncio.gather(*tasks, return_exceptions=True)
