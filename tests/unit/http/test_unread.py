"""Which clients are cut off where too many answers are unread."""

from __future__ import annotations

import asyncio

from stretto.http.front.unread import COUNTED_BYTES_MIN, UnreadAnswers

LARGE = 2 * COUNTED_BYTES_MIN
BYTES_MAX = 4 * LARGE


class Client:
    """A client with something to read."""

    def __init__(self, unread_bytes: int = LARGE) -> None:
        self.unread_bytes = self.held_bytes = unread_bytes
        self.is_closed = False

    def close_at_once(self) -> None:
        self.is_closed = True


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
    """A session's client has no more, and there may be thousands of them."""
    small = [Client(COUNTED_BYTES_MIN - 1) for _ in range(100)]
    assert [False] * 100 == await closed_of(UnreadAnswers(BYTES_MAX), small)
