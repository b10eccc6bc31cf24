"""Which clients are cut off where too many answers are unread."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from stretto.domain import UserId
from stretto.http.front.unread import COUNTED_BYTES_MIN, USER_BYTES_MIN, UnreadAnswers

LARGE = 2 * COUNTED_BYTES_MIN
BYTES_MAX = 4 * LARGE
PAGE = USER_BYTES_MIN
ALICE, BOB, MALLORY = UserId("alice"), UserId("bob"), UserId("mallory")
_numbers = count()


class Client:
    """A client with something to read; unless it is given, of a user of its own."""

    def __init__(self, held_bytes: int = LARGE, *, unread_bytes: int | None = None) -> None:
        self.held_bytes = held_bytes
        self.unread_bytes = held_bytes if unread_bytes is None else unread_bytes
        self.user: UserId | None = UserId(f"user-{next(_numbers)}")
        self.is_closed = False

    def close_at_once(self) -> None:
        self.is_closed = True


def of(user: UserId | None, *clients: Client) -> list[Client]:
    """Return them as this user's."""
    for client in clients:
        client.user = user
    return list(clients)


async def closed_of(unread: UnreadAnswers, clients: list[Client]) -> list[bool]:
    """Return which of the clients are closed once all of them are noted."""
    for client in clients:
        unread.note(client)
    assert not any(client.is_closed for client in clients)
    await asyncio.sleep(0)
    return [client.is_closed for client in clients]


async def test_what_may_wait_closes_nobody() -> None:
    """Up to the bound, all keep their answers."""
    assert [False] * 4 == await closed_of(UnreadAnswers(BYTES_MAX), [Client() for _ in range(4)])


async def test_beyond_the_bound_those_that_wait_longest_are_cut_off() -> None:
    """So many that it does not come to this with the next one."""
    unread = UnreadAnswers(BYTES_MAX)
    assert [True, True, False, False, False] == await closed_of(
        unread, [Client() for _ in range(5)]
    )
    assert [False] == await closed_of(unread, [Client()])


async def test_those_that_have_most_to_read_are_cut_off_first() -> None:
    """A client that reads has less than when it was noted."""
    unread = UnreadAnswers(BYTES_MAX)
    reading, silent = Client(), [Client(), Client(), Client()]
    unread.note(reading)
    reading.unread_bytes //= 2
    assert [True, True, False, False] == await closed_of(unread, [*silent, Client(LARGE - 1)])
    assert not reading.is_closed


async def test_what_is_kept_counts_and_not_what_is_left_of_it() -> None:
    """The whole of an answer is in memory until the last byte of it is read."""
    clients = [Client() for _ in range(5)]
    for client in clients:
        client.unread_bytes = 1
    assert [True, True, False, False, False] == await closed_of(UnreadAnswers(BYTES_MAX), clients)


async def test_what_was_read_counts_no_longer() -> None:
    """Nor what a client has had to read that is gone."""
    unread = UnreadAnswers(BYTES_MAX)
    for _ in range(10):
        client = Client()
        unread.note(client)
        unread.forget(client)
        unread.forget(client)
    assert [False] * 4 == await closed_of(unread, [Client() for _ in range(4)])


async def test_little_is_not_counted() -> None:
    """Clients that wait for their links for a moment, of whom there may be thousands."""
    small = [Client(COUNTED_BYTES_MIN - 1) for _ in range(100)]
    assert [False] * 100 == await closed_of(UnreadAnswers(BYTES_MAX), small)


@pytest.mark.parametrize("is_one", [True, False])
async def test_the_user_whose_answers_hold_most_is_cut_off_first(is_one: bool) -> None:
    """However little is left to read of them. Of a user each, they would cut off all the others."""
    read = [Client(PAGE, unread_bytes=1) for _ in range(6)]
    if is_one:
        of(MALLORY, *read)
    others = [Client(PAGE) for _ in range(3)]
    closed = await closed_of(UnreadAnswers(8 * PAGE), [*read, *others])
    assert ([True] * 3 + [False] * 6 if is_one else [False] * 6 + [True] * 3) == closed


async def test_a_user_keeps_as_much_as_the_others() -> None:
    """Who held most is cut off only until another one holds as much; where most is to read, first."""
    mallory = of(MALLORY, *(Client(PAGE, unread_bytes=each) for each in (1, 2, 3)))
    alice, bob = of(ALICE, Client(PAGE), Client(PAGE)), of(BOB, Client(PAGE))
    closed = await closed_of(UnreadAnswers(5 * PAGE), [*mallory, *alice, *bob])
    assert [False, True, True, True, False, False] == closed


async def test_of_users_who_hold_little_those_that_have_most_to_read_are_cut_off_first() -> None:
    """A page is not cut off for being larger than the others'."""
    reading, silent = (
        Client(PAGE, unread_bytes=PAGE // 2),
        [Client(PAGE * 3 // 4) for _ in range(4)],
    )
    closed = await closed_of(UnreadAnswers(PAGE * 7 // 2), [reading, *silent])
    assert [False, True, True, False, False] == closed


async def test_thousands_without_a_user_do_not_cut_off_a_user() -> None:
    """What each of them has is small; together they count as one."""
    without = of(None, *(Client(PAGE // 16) for _ in range(8 * 16)))
    closed = await closed_of(UnreadAnswers(8 * PAGE), [*without, *of(ALICE, Client(PAGE))])
    assert [True] * 48 + [False] * 81 == closed
