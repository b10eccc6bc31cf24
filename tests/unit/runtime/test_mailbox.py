"""A mailbox is bounded, and answers everything."""

from __future__ import annotations

import asyncio

import pytest

from stretto.errors import Overloaded
from stretto.runtime.mailbox import Mailbox


async def test_what_has_arrived_is_the_next_batch() -> None:
    """One take returns all that is there, oldest first, up to its bound."""
    mailbox: Mailbox[int, str] = Mailbox(10)
    for number in range(5):
        mailbox.ask(number)
    assert [0, 1, 2] == [envelope.message for envelope in await mailbox.take(3)]
    assert [3, 4] == [envelope.message for envelope in await mailbox.take(3)]


async def test_a_batch_is_bounded_by_weight_and_keeps_the_order() -> None:
    """What does not fit begins the next batch; a single heavy message is a batch of its own."""
    mailbox: Mailbox[int, str] = Mailbox(10)
    for weight in (2, 2, 1, 3, 9, 1, 5):
        mailbox.ask(weight)
    batches = [[envelope.message for envelope in await mailbox.take(10, int, 5)] for _ in range(4)]
    assert [[2, 2, 1], [3], [9], [1]] == batches
    assert [5] == [envelope.message for envelope in await mailbox.take(10, int, 5)]


async def test_whoever_waits_gets_what_another_has_left() -> None:
    """Two actors wait, two messages come at once, and one of them fits into a batch."""
    mailbox: Mailbox[int, str] = Mailbox(10)
    actors = [asyncio.ensure_future(mailbox.take(10, int, 5)) for _ in range(2)]
    await asyncio.sleep(0)
    mailbox.ask(5)
    mailbox.ask(4)
    batches = [[envelope.message for envelope in await actor] for actor in actors]
    assert [[5], [4]] == batches
    # One that was woken for nothing waits for the next.
    actors = [asyncio.ensure_future(mailbox.take(10)) for _ in range(2)]
    await asyncio.sleep(0)
    mailbox.ask(1)
    await actors[0]
    assert not actors[1].done()
    mailbox.ask(2)
    assert [2] == [envelope.message for envelope in await actors[1]]


async def test_an_answer_reaches_the_one_who_asked() -> None:
    """Each envelope carries its own future."""
    mailbox: Mailbox[int, str] = Mailbox(10)
    one, two = mailbox.ask(1), mailbox.ask(2)
    for envelope in await mailbox.take(2):
        envelope.answer(f"answer {envelope.message}")
    assert ("answer 1", "answer 2") == (await one, await two)


async def test_a_full_mailbox_refuses_at_once() -> None:
    """Nobody waits for room; a second later there is some."""
    mailbox: Mailbox[int, str] = Mailbox(1)
    mailbox.ask(1)
    with pytest.raises(Overloaded) as full:
        mailbox.ask(2)
    assert 1 == full.value.retry_after_seconds
    assert len(mailbox) == 1


async def test_closing_answers_what_is_queued_and_refuses_the_rest() -> None:
    """No sender is left waiting for an actor that has gone."""
    mailbox: Mailbox[int, str] = Mailbox(10)
    queued = mailbox.ask(1)
    mailbox.close()
    mailbox.close()
    with pytest.raises(Overloaded):
        await queued
    with pytest.raises(Overloaded):
        mailbox.ask(2)


async def test_only_the_first_answer_counts() -> None:
    """An error after an answer, or an answer to somebody who left, changes nothing."""
    mailbox: Mailbox[int, str] = Mailbox(10)
    answered, left = mailbox.ask(1), mailbox.ask(2)
    left.cancel()
    for envelope in await mailbox.take(2):
        envelope.answer("first")
        envelope.fail(RuntimeError())
    assert await answered == "first"
    assert left.cancelled()


async def test_an_error_does_not_carry_the_actors_frames() -> None:
    """They know the error and every sender: a cycle, which only the garbage collector would free."""
    mailbox: Mailbox[int, str] = Mailbox(10)
    answered = mailbox.ask(1)
    try:
        int("nothing")
    except ValueError as error:
        for envelope in await mailbox.take(1):
            envelope.fail(error)
    raised = answered.exception()
    assert isinstance(raised, ValueError)
    assert raised.__traceback__ is None
