"""Whose requests are refused where too much has arrived."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest

from stretto.codec import BODY_BYTES_MAX
from stretto.domain import UserId
from stretto.http.front.arrived import COUNTED_BYTES_MIN, ArrivedRequests

BODY = BODY_BYTES_MAX
BYTES_MAX = 8 * BODY
MALLORY, EVE = UserId("mallory"), UserId("eve")
_numbers = count()


class Client:
    """A connection with a body under way; unless it is given, of a user of its own."""

    def __init__(self, user: UserId | None = None, arrived_bytes: int = BODY) -> None:
        self.user: UserId | None = user or UserId(f"user-{next(_numbers)}")
        self.arrived_bytes = arrived_bytes
        self.is_in_head = False
        self.is_refused = False

    def refuse_arrived(self) -> None:
        self.is_refused = True


async def refused_of(arrived: ArrivedRequests, clients: list[Client]) -> list[bool]:
    """Return which of the clients are refused once all of them are noted."""
    for client in clients:
        arrived.note(client)
    await asyncio.sleep(0)
    return [client.is_refused for client in clients]


async def test_what_may_be_under_way_is_not_refused() -> None:
    """Up to the bound."""
    arrived = ArrivedRequests(BYTES_MAX)
    assert [False] * 8 == await refused_of(arrived, [Client() for _ in range(8)])
    assert BYTES_MAX == arrived.bytes


@pytest.mark.parametrize("bodies", [1, 2])
async def test_who_has_a_body_or_two_is_not_refused_for_anothers_many(bodies: int) -> None:
    """Whoever came first, and whoever has gone beyond the bound."""
    alice = [Client(UserId("alice")) for _ in range(bodies)]
    mallory = [Client(MALLORY) for _ in range(8 - bodies)]
    arrived = ArrivedRequests(BYTES_MAX)
    assert not any(await refused_of(arrived, [*alice, *mallory]))
    assert [False] == await refused_of(arrived, [Client(UserId("bob"))])
    assert not any(client.is_refused for client in alice)
    assert 3 == sum(client.is_refused for client in mallory)


async def test_others_do_not_give_way_to_leave_room_where_one_has_much() -> None:
    """What is free then is enough: it is that one who comes to the bound again."""
    others, mallory = [Client() for _ in range(5)], [Client(MALLORY) for _ in range(4)]
    refused = await refused_of(ArrivedRequests(BYTES_MAX), [*others, *mallory])
    assert [False] * 5 + [False, False, True, True] == refused


async def test_a_body_that_grows_counts_once() -> None:
    """Each part that arrives is noted."""
    arrived, client = ArrivedRequests(BYTES_MAX), Client()
    assert [False] * 100 == await refused_of(arrived, [client] * 100)
    assert BODY == arrived.bytes


async def test_many_users_of_many_bodies_keep_within_the_bound() -> None:
    """Whichever of them hold most give way."""
    arrived = ArrivedRequests(BYTES_MAX)
    clients = [Client(user) for _ in range(50) for user in (MALLORY, EVE)]
    refused = await refused_of(arrived, clients)
    assert arrived.bytes == BODY * refused.count(False) <= BYTES_MAX


async def test_many_users_of_one_body_keep_within_the_bound() -> None:
    """Those that began last give way: else no slow one would come to its end while there are too many."""
    arrived = ArrivedRequests(BYTES_MAX)
    refused = await refused_of(arrived, [Client() for _ in range(9)])
    assert [False] * 6 + [True] * 3 == refused


async def test_little_is_not_counted() -> None:
    """Nor is what has become little."""
    arrived = ArrivedRequests(BYTES_MAX)
    small = [Client(arrived_bytes=COUNTED_BYTES_MIN - 1) for _ in range(10_000)]
    assert not any(await refused_of(arrived, small))
    client = Client()
    arrived.note(client)
    client.arrived_bytes = 0
    arrived.note(client)
    assert 0 == arrived.bytes


async def test_heads_that_are_not_complete_give_way_before_bodies() -> None:
    """A user's is complete soon, even over a slow link; its token is not known before. Bodies come later."""
    arrived = ArrivedRequests(BYTES_MAX)
    clients = [Client() for _ in range(9)]
    for client in clients:
        client.user = None
        client.is_in_head = client in clients[1:3]
    assert [False] + [True] * 2 + [False] * 5 + [True] == await refused_of(arrived, clients)


async def test_a_user_is_not_refused_for_the_heads_of_strangers() -> None:
    """All that have no user count as one."""
    arrived = ArrivedRequests(BYTES_MAX)
    alice = [Client(UserId("alice")), Client(UserId("alice"))]
    strangers = [Client() for _ in range(7)]
    for client in strangers:
        client.user, client.is_in_head = None, True
    refused = await refused_of(arrived, [*strangers[:6], *alice, strangers[6]])
    assert [True] * 3 + [False] * 3 + [False, False] + [False] == refused


async def test_the_first_of_many_heads_gives_way() -> None:
    """Else those that never come to their end would keep the others out."""
    clients = [Client() for _ in range(9)]
    for client in clients:
        client.user, client.is_in_head = None, True
    refused = await refused_of(ArrivedRequests(BYTES_MAX), clients)
    assert [True] * 3 + [False] * 6 == refused
