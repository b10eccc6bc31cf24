"""Turns of connections with bodies in chunks: how many chunks a turn has, and whose is next."""

from __future__ import annotations

import asyncio

from stretto.http.front.chunk_turns import CHUNKS_A_TURN, ChunkTurns


class Client:
    """Has so many chunks in each of its turns."""

    def __init__(self, turns: ChunkTurns, chunks: int, gone: list[Client]) -> None:
        self.turns, self.chunks, self.gone = turns, chunks, gone

    def go_on(self) -> None:
        self.turns.take(self.chunks)
        self.gone.append(self)


async def test_a_turn_has_so_many_chunks() -> None:
    """Then the next one begins, with those that have waited longest."""
    turns, gone = ChunkTurns(), list[Client]()
    clients = [Client(turns, CHUNKS_A_TURN // 2, gone) for _ in range(5)]
    turns.take(CHUNKS_A_TURN - 1)
    assert not turns.are_spent
    turns.take(1)
    assert turns.are_spent
    for client in clients:
        turns.wait(client)
    for count in (2, 4, 5):
        assert turns.are_spent
        await asyncio.sleep(0)
        assert clients[:count] == gone
    assert not turns.are_spent
    # The last one has taken some.
    turns.take(CHUNKS_A_TURN // 2)
    assert turns.are_spent
    await asyncio.sleep(0)
    assert not turns.are_spent


async def test_one_that_has_gone_has_no_turn() -> None:
    """Also where another one has ended it in its own."""
    turns, gone = ChunkTurns(), list[Client]()
    first, second, third = (Client(turns, 1, gone) for _ in range(3))

    def go_on() -> None:
        gone.append(first)
        turns.forget(second)

    first.go_on = go_on  # type: ignore[method-assign]
    for client in (first, second, third):
        turns.wait(client)
    await asyncio.sleep(0)
    assert [first, third] == gone


async def test_one_that_waits_again_has_the_next_turn() -> None:
    """Not the same one for ever."""
    turns, gone = ChunkTurns(), list[Client]()
    client = Client(turns, CHUNKS_A_TURN, gone)
    other = Client(turns, 1, gone)

    def go_on() -> None:
        gone.append(client)
        turns.take(CHUNKS_A_TURN)
        turns.wait(client)

    client.go_on = go_on  # type: ignore[method-assign]
    turns.wait(client)
    turns.wait(other)
    for expected in ([client], [client, other, client]):
        await asyncio.sleep(0)
        assert expected == gone


async def test_nothing_goes_on_while_no_chunks_come() -> None:
    """A process without such bodies has no turns."""
    turns = ChunkTurns()
    turns.take(0)
    assert turns._next is None
    turns.take(1)
    await asyncio.sleep(0)
    assert turns._next is None
