"""What is shed at the door, and what is not."""

from __future__ import annotations

import asyncio
import re

from stretto.http.admission import ANSWERS_PER_TURN, PAUSE_SECONDS_MAX, LoadShedder
from support.waiting import until


async def test_what_is_on_its_way_to_the_mailbox_takes_room_in_it() -> None:
    """A loop reads all that has arrived before it works for any of it."""
    queued = [0]
    shedder = LoadShedder(lambda: queued[0], 3, lambda: None)
    for _ in range(3):
        assert shedder.has_room()
        shedder.admit()
    assert not shedder.has_room()
    queued[0] = 1
    shedder.arrived()
    assert not shedder.has_room()
    # One that has arrived, but did not end up in the mailbox.
    shedder.arrived()
    assert shedder.has_room()


async def test_the_pause_grows_while_more_are_shed_than_let_in() -> None:
    """It is judged when those who were told it are back; an overload that is over is forgotten."""
    now = [0.0]
    queued = [0]
    shedder = LoadShedder(lambda: queued[0], 10, lambda: None, lambda: now[0])
    told: list[bytes] = []

    class Client:
        def tell(self, answer: bytes) -> None:
            told.append(answer)

    async def pause_after(seconds: float, let_in: int, kept_out: int) -> int:
        now[0] += seconds
        queued[0] = 0
        for _ in range(let_in):
            assert shedder.has_room()
            shedder.admit()
            shedder.arrived()
        for _ in range(kept_out):
            shedder.shed(Client())
        await until(lambda: len(told) >= kept_out)
        found = re.search(rb"\r\nRetry-After: (\d+)\r\n", told[-1])
        assert found is not None
        told.clear()
        return int(found[1])

    assert await pause_after(0, 0, 1) == 1
    # Those of before are not back yet.
    assert await pause_after(0.9, 0, 50) == 1
    pauses = [await pause_after(seconds, 1, 50) for seconds in (0.1, 2, 4, 8, 16, 16)]
    assert [2, 4, 8, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX] == pauses
    # As many as are let in may be shed; where it is less than half of them, the pause is shorter.
    assert [16, 8] == [await pause_after(16, 50, kept_out) for kept_out in (40, 20)]
    assert await pause_after(8 + 8.1, 0, 50) == 1


async def test_everybody_who_is_shed_is_told_in_turns_that_leave_room_for_others() -> None:
    """However many they are, the loop goes round in between."""
    told: list[int] = []
    counted: list[int] = []

    class Client:
        def tell(self, answer: bytes) -> None:
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            told.append(1)

    shedder = LoadShedder(lambda: 0, 0, lambda: counted.append(1))
    for _ in range(2 * ANSWERS_PER_TURN + 1):
        shedder.shed(Client())
    turns = []
    while len(told) < len(counted):
        await asyncio.sleep(0)
        turns.append(len(told))
    assert [ANSWERS_PER_TURN, 2 * ANSWERS_PER_TURN, 2 * ANSWERS_PER_TURN + 1] == turns[-3:]
