"""One scan for sessions that left at different places: each is told what is behind its own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import UUID

from stretto.domain import UserId
from stretto.events.event import CommittedEvent
from stretto.events.history import HistoryBounds, HistoryPage, PastEvent
from stretto.events.history_reader import Ask, HistoryReader, Stretch
from stretto.events.positions import Cursor, Origin, Position
from stretto.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import Sequence

ALICE = UserId("alice")
BOUNDS = HistoryBounds(Position(100), Position(100), Position(100))


def past(number: int) -> PastEvent:
    """An event of alice's at the position of that number."""
    committed = CommittedEvent(UUID(int=number), (ALICE,), b"{}", Position(number))
    return PastEvent(committed, is_under_way=False)


class History:
    """Four events on one page."""

    def __init__(self) -> None:
        self.scans: list[Cursor] = []

    async def bounds(self) -> HistoryBounds:
        return BOUNDS

    async def page(self, after: Cursor, users: Sequence[UserId]) -> HistoryPage:
        self.scans.append(after)
        return HistoryPage(
            [past(n) for n in range(1, 5) if past(n).cursor > after], None, Position(0)
        )


async def test_a_session_is_not_told_the_event_that_it_left_behind() -> None:
    """Although another one needs the scan to begin earlier."""
    mailbox: Mailbox[Ask, Stretch] = Mailbox(10)
    history = History()
    reader = HistoryReader(mailbox, history, Origin("0a1b2c3d"), lambda _: None)
    asked = [mailbox.ask(Ask(ALICE, past(place).cursor, BOUNDS)) for place in (3, 1, 2)]
    assert 3 == await reader.run_once()
    stretches = await asyncio.gather(*asked)
    told = [[outgoing.event_id.int for outgoing, _ in stretch.events] for stretch in stretches]
    assert [[4], [2, 3, 4], [3, 4]] == told
    assert [past(1).cursor] == history.scans
