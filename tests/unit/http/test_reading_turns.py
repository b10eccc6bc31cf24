"""Turns of connections that are read: how much a turn has, and whose is next."""

from __future__ import annotations

import asyncio

from stretto.domain import UserId
from stretto.http.front.reading_turns import CHUNKS_A_TURN, ReadingTurns


class Client:
    """Has so many chunks in each of its turns."""

    def __init__(
        self, turns: ReadingTurns, chunks: int, gone: list[Client], user: str | None = None
    ) -> None:
        self.turns, self.chunks, self.gone = turns, chunks, gone
        self.user = None if user is None else UserId(user)

    def go_on(self) -> None:
        self.turns.take(self, self.chunks)
        self.gone.append(self)


async def test_a_turn_has_so_many_chunks() -> None:
    """Then the next one begins, with those that have waited longest."""
    turns, gone = ReadingTurns(), list[Client]()
    clients = [Client(turns, CHUNKS_A_TURN // 2, gone) for _ in range(5)]
    (first, *_) = clients
    turns.take(first, CHUNKS_A_TURN - 1)
    assert not turns.are_spent(first)
    turns.take(first, 1)
    assert turns.are_spent(first)
    for client in clients:
        turns.wait(client)
    for count in (2, 4, 5):
        assert turns.are_spent(first)
        await asyncio.sleep(0)
        assert clients[:count] == gone
    assert not turns.are_spent(first)
    # The last one has taken some.
    turns.take(first, CHUNKS_A_TURN // 2)
    assert turns.are_spent(first)
    await asyncio.sleep(0)
    assert not turns.are_spent(first)


async def test_one_that_has_gone_has_no_turn() -> None:
    """Also where another one has ended it in its own."""
    turns, gone = ReadingTurns(), list[Client]()
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
    turns, gone = ReadingTurns(), list[Client]()
    client = Client(turns, CHUNKS_A_TURN, gone)
    other = Client(turns, 1, gone)

    def go_on() -> None:
        gone.append(client)
        turns.take(client, CHUNKS_A_TURN)
        turns.wait(client)

    client.go_on = go_on  # type: ignore[method-assign]
    turns.wait(client)
    turns.wait(other)
    for expected in ([client], [client, other, client]):
        await asyncio.sleep(0)
        assert expected == gone


async def test_nothing_goes_on_while_nothing_is_read() -> None:
    """An idle process has no turns."""
    turns = ReadingTurns()
    client = Client(turns, 0, [])
    turns.take(client, 0)
    assert turns._next is None
    turns.take(client, 1)
    await asyncio.sleep(0)
    assert turns._next is None


async def test_users_and_others_have_turns_of_their_own() -> None:
    """Thousands of clients without a token keep no user waiting, and users keep none of them waiting."""
    turns, gone = ReadingTurns(), list[Client]()
    other, user = Client(turns, 1, gone), Client(turns, 1, gone, "alice")
    turns.take(other, CHUNKS_A_TURN)
    assert (turns.are_spent(other), turns.are_spent(user)) == (True, False)
    await asyncio.sleep(0)
    turns.take(user, CHUNKS_A_TURN)
    assert (turns.are_spent(other), turns.are_spent(user)) == (False, True)


async def test_users_are_read_in_rotation() -> None:
    """However many connections one of them has; those without a user are in order."""
    turns, gone = ReadingTurns(), list[Client]()
    many = [Client(turns, CHUNKS_A_TURN, gone, "alice") for _ in range(3)]
    one = Client(turns, CHUNKS_A_TURN, gone, "bob")
    others = [Client(turns, CHUNKS_A_TURN, gone) for _ in range(2)]
    for client in (*many, one, *others):
        turns.wait(client)
    for _ in range(4):
        await asyncio.sleep(0)
    assert [many[0], others[0], one, others[1], many[1], many[2]] == gone


async def test_one_whose_user_becomes_known_meanwhile_has_its_turn_once() -> None:
    """Where it waits as one of the others; or none, if it goes."""
    turns, gone = ReadingTurns(), list[Client]()
    client, gone_client = Client(turns, 1, gone), Client(turns, 1, gone)
    for each in (client, gone_client):
        turns.wait(each)
        each.user = UserId("alice")
    turns.forget(gone_client)
    for _ in range(3):
        await asyncio.sleep(0)
    assert [client] == gone


async def test_one_that_fails_keeps_no_others_waiting() -> None:
    """They have the next turn."""
    turns, gone = ReadingTurns(), list[Client]()
    first, second = Client(turns, 1, gone), Client(turns, 1, gone)
    errors = list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail() -> None:
        raise ValueError

    first.go_on = fail  # type: ignore[method-assign]
    turns.wait(first)
    turns.wait(second)
    for _ in range(2):
        await asyncio.sleep(0)
    assert [second] == gone
    assert [ValueError] == [type(error) for error in errors]
