"""Which reads share a statement."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest

from stretto.creation.reads import PAGE_ROWS_READ_MAX, PAGES_READ_MAX, GroupReads
from stretto.domain import UserId
from stretto.http.requests import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.creation.ports import BatchGroupStore
    from stretto.runtime.batch_reader import BatchReader

ALICE = UserId("alice")
GROUP = UUID(int=1)
ASKS: dict[str, Callable[[GroupReads, int], Awaitable[Sequence[Any]]]] = {
    "lists": lambda reads, limit: reads.groups_of_member(ALICE, None, limit),
    "members": lambda reads, limit: reads.members_of_group(ALICE, GROUP, None, limit),
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
