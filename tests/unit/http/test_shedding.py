"""What is shed at the door, and what is not."""

from __future__ import annotations

import asyncio

from stretto.http.shedding import ANSWERS_PER_TURN, LoadShedder


async def test_nobody_is_shed_while_there_is_room_for_all() -> None:
    """Each client could ask now."""
    shedder = LoadShedder(lambda: 2, 5, lambda: None)
    assert [True, False] == [shedder.has_room_for(clients) for clients in (2, 3)]


async def test_what_is_on_its_way_to_the_mailbox_takes_room_in_it() -> None:
    """A loop reads all that has arrived before it works for any of it."""
    queued = [0]
    shedder = LoadShedder(lambda: queued[0], 3, lambda: None)
    assert [True] * 3 + [False] * 2 == [shedder.admit() for _ in range(5)]
    queued[0] = 1
    shedder.arrived()
    assert not shedder.admit()
    # One that has arrived, but did not end up in the mailbox.
    shedder.arrived()
    assert shedder.admit()


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
