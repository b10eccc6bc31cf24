"""Which commands a process takes ahead, whose is next, and which find no place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from nats.js.api import ConsumerConfig

from stretto.nats.command_window import (
    OWNER,
    QUEUED_BYTES_MAX,
    QUEUED_MAX,
    SHARES,
    Command,
    CommandWindow,
    PutOff,
)


class Delivery:
    """Stands for a message of the stream, and notes how it is acknowledged."""

    def __init__(self, owner: str, data: bytes = b"{}") -> None:
        self.headers = {OWNER: owner}
        self.data = data
        self.said: list[str] = []
        self.is_acked = False

    async def in_progress(self) -> None:
        self.said.append("in progress")

    async def nak(self) -> None:
        self.said.append("nak")


def command(owner: str, body_bytes: int = 2) -> Command:
    """Return a delivery of a command."""
    message: Any = Delivery(owner, b"x" * body_bytes)
    return Command.of(message)


def window(places: int = QUEUED_MAX) -> CommandWindow:
    """Return a window with so many places."""
    return CommandWindow(ConsumerConfig(max_ack_pending=SHARES * places))


async def test_the_command_of_another_owner_comes_before_a_backlog() -> None:
    """The owners take turns, whichever came first."""
    one = window()
    for _ in range(100):
        assert [] == one.offer(command("greedy"))
    assert [] == one.offer(command("other"))
    assert ["greedy", "other", "greedy"] == [(await one.take()).owner for _ in range(3)]


async def test_a_full_window_takes_another_owners_command_and_returns_one_of_the_backlog() -> None:
    """The newest one of the owner with the longest queue; of the backlog itself, the newcomer."""
    one = window(places=4)
    backlog = [command("greedy") for _ in range(4)]
    for each in backlog:
        assert [] == one.offer(each)
    newcomer, other = command("greedy"), command("other")
    assert [newcomer] == one.offer(newcomer)
    assert [backlog[3]] == one.offer(other)
    assert [backlog[0], other, *backlog[1:3]] == [await one.take() for _ in range(4)]


async def test_a_window_is_bounded_by_bytes_and_takes_the_largest_command() -> None:
    """A large command displaces as many as it needs; alone it always has a place."""
    one = window()
    assert [] == one.offer(command("greedy", 2 * QUEUED_BYTES_MAX))
    assert 1 == len(one.offer(command("greedy")))
    await one.take()
    small = [command("greedy", QUEUED_BYTES_MAX // 8) for _ in range(7)]
    assert [] == [excess for each in small for excess in one.offer(each)]
    assert [*reversed(small[4:])] == one.offer(command("other", QUEUED_BYTES_MAX // 2 - 1000))


@pytest.mark.parametrize(
    ("unsettled_max", "queued", "put_off_max"),
    [(50_000, QUEUED_MAX, 3125), (1000, 62, 62), (1, 1, 1), (-1, QUEUED_MAX, QUEUED_MAX)],
)
async def test_a_process_takes_a_share_of_the_places_that_the_consumer_has(
    unsettled_max: int, queued: int, put_off_max: int
) -> None:
    """The consumer may be an operator's, with limits of its own."""
    one = CommandWindow(ConsumerConfig(max_ack_pending=unsettled_max))
    assert put_off_max == one.put_off_max
    for _ in range(queued):
        assert [] == one.offer(command("greedy"))
    assert 1 == len(one.offer(command("greedy")))


async def test_what_is_held_is_kept_and_then_given_back() -> None:
    """Queued, under way or without a place: until it is released."""
    one = window(places=2)
    given = [command(owner) for owner in "aabb"]
    excess = [each for one_given in given for each in one.offer(one_given)]
    (done, under_way) = await one.take(), await one.take()
    one.release(done)
    keeping = asyncio.create_task(one.keep(0.0), name="keeping")
    await asyncio.sleep(0.01)
    keeping.cancel()
    said: dict[Command, Any] = {each: each.message for each in given}
    assert [] == said[done].said
    for each in (under_way, *excess):
        assert {"in progress"} == set(said[each].said)
    said[under_way].is_acked = True
    await one.give_back()
    assert "nak" not in said[under_way].said + said[done].said
    assert all("nak" == said[each].said[-1] for each in excess)


async def test_put_off_commands_count_until_they_are_delivered_again() -> None:
    """Of each owner by itself."""
    put_off = PutOff()
    put_off.add("greedy", 0.0)
    put_off.add("greedy", 60.0)
    put_off.add("other", 0.0)
    assert (2, 1) == (put_off.of("greedy"), put_off.of("other"))
    await asyncio.sleep(0.01)
    assert (1, 0) == (put_off.of("greedy"), put_off.of("other"))
