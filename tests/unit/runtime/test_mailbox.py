"""A mailbox is bounded, and answers everything."""

from __future__ import annotations

import asyncio
import random

import pytest

from stretto.errors import Overloaded
from stretto.misuse import WrongEventLoop
from stretto.runtime.mailbox import Mailbox


def shared_mailbox(messages_max: int) -> Mailbox[str, str]:
    """Return a mailbox whose messages begin with the letter of their share."""
    return Mailbox(messages_max, lambda message: message[0])


async def taken(mailbox: Mailbox[str, str], messages_max: int = 100) -> str:
    """Return the messages of the next batch, in one line."""
    return " ".join(envelope.message for envelope in await mailbox.take(messages_max))


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


async def test_what_is_put_back_comes_before_the_other_messages_of_its_shares() -> None:
    """In its order, also where it was of several rounds; what has come since has its own turn."""
    mailbox = shared_mailbox(10)
    for message in ("a1", "b1", "a2", "a3"):
        mailbox.ask(message)
    batch = await mailbox.take(3)
    mailbox.put_back(batch)
    assert 4 == len(mailbox)
    for message in ("a4", "c1"):
        mailbox.ask(message)
    assert "a1 b1 c1" == await taken(mailbox, 3)
    assert "a2 a3 a4" == await taken(mailbox)
    assert 0 == len(mailbox)


async def test_what_is_put_back_again_and_again_keeps_no_newcomer_out() -> None:
    """Although it would fill each batch: others that have come meanwhile go first."""
    mailbox = shared_mailbox(100)
    for share in "abcdefgh":
        for number in (1, 2):
            mailbox.ask(f"{share}{number}")
    mailbox.put_back(await mailbox.take(8))
    for newcomer in "stuvwxyz":
        batch = await mailbox.take(8)
        assert len({each.message[0] for each in batch}) == 8
        mailbox.ask(newcomer)
        mailbox.put_back(batch)
        batch = await mailbox.take(8)
        assert newcomer in [each.message for each in batch]
        mailbox.put_back([each for each in batch if each.message != newcomer])
    assert 16 == len(mailbox)


async def test_a_request_that_waits_gets_what_another_has_left() -> None:
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
    """No sender waits for room; a second later there is some."""
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
    """An error after an answer, or an answer to a sender that left, changes nothing."""
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


async def test_shares_take_turns() -> None:
    """One message of each in a round, in the order of their arrival; of a share, the oldest first."""
    mailbox = shared_mailbox(10)
    for message in ("a1", "a2", "a3", "b1", "a4", "b2", "c1"):
        mailbox.ask(message)
    assert "a1 b1 c1 a2 b2 a3 a4" == await taken(mailbox)


async def test_without_shares_the_order_is_that_of_arrival() -> None:
    """The twin: what has queued first keeps all others waiting."""
    mailbox: Mailbox[str, str] = Mailbox(10)
    for message in ("a1", "a2", "a3", "b1", "a4", "b2", "c1"):
        mailbox.ask(message)
    assert "a1 a2 a3 b1 a4 b2 c1" == await taken(mailbox)


async def test_a_newcomer_is_in_the_next_round_whatever_others_have_queued() -> None:
    """Also of a share that comes again and again, and never has more than one message queued."""
    mailbox = shared_mailbox(1000)
    for number in range(500):
        mailbox.ask(f"a{number}")
    assert "a0 a1" == await taken(mailbox, 2)
    for number in range(100):
        mailbox.ask(f"b{number}")
        assert f"a{number + 2} b{number}" == await taken(mailbox, 2)


async def test_shares_that_keep_coming_do_not_prolong_a_round() -> None:
    """What waits for its second message is not overtaken for ever."""
    mailbox = shared_mailbox(10)
    mailbox.ask("a1")
    mailbox.ask("a2")
    mailbox.ask("b1")
    assert "a1" == await taken(mailbox, 1)
    for message in ("c1", "d1", "e1"):
        mailbox.ask(message)
    assert "b1 a2 c1 d1 e1" == await taken(mailbox)


async def test_a_full_mailbox_fails_the_newest_message_of_the_longest_queue() -> None:
    """Until the newcomer's share has as many; then the newcomer is refused."""
    mailbox = shared_mailbox(4)
    queued = {message: mailbox.ask(message) for message in ("a1", "a2", "a3", "a4")}
    for message in ("b1", "b2"):
        queued[message] = mailbox.ask(message)
    for message in ("b3", "a5"):
        with pytest.raises(Overloaded):
            mailbox.ask(message)
    assert len(mailbox) == 4
    failed = {message for message, answered in queued.items() if answered.done()}
    assert {"a3", "a4"} == failed
    for message in failed:
        error = queued[message].exception()
        assert isinstance(error, Overloaded)
        assert 1 == error.retry_after_seconds
    assert "a1 b1 a2 b2" == await taken(mailbox)


async def test_each_message_without_a_place_gets_a_rejection_of_its_own() -> None:
    """Whether it comes too late, or is displaced by another."""
    mailbox: Mailbox[str, str] = Mailbox(2, lambda message: message[0], Overloaded)
    mailbox.ask("a1")
    displaced = mailbox.ask("a2")
    mailbox.ask("b1")
    assert "a2" == str(displaced.exception())
    with pytest.raises(Overloaded, match="c1"):
        mailbox.ask("c1")


async def test_of_two_longest_queues_the_one_that_grew_last_is_cut() -> None:
    """Its newest message would be taken last."""
    mailbox = shared_mailbox(4)
    for message in ("a1", "b1", "a2", "b2", "c1"):
        mailbox.ask(message)
    assert "a1 b1 c1 a2" == await taken(mailbox)


async def test_a_share_that_lost_its_newest_message_goes_on_in_its_order() -> None:
    """Its next one comes behind those that it has left."""
    mailbox = shared_mailbox(3)
    for message in ("a1", "a2", "a3", "b1"):
        mailbox.ask(message)
    assert "a1" == await taken(mailbox, 1)
    mailbox.ask("a4")
    mailbox.ask("c1")
    assert "b1 a2 c1" == await taken(mailbox)
    assert len(mailbox) == 0


async def test_among_equals_the_newcomer_is_refused() -> None:
    """Whether or not the round of the others has begun."""
    mailbox = shared_mailbox(3)
    for message in ("a1", "b1", "c1", "d1"):
        if message == "d1":
            with pytest.raises(Overloaded):
                mailbox.ask(message)
        else:
            mailbox.ask(message)
    assert "a1" == await taken(mailbox, 1)
    mailbox.ask("d1")
    with pytest.raises(Overloaded):
        mailbox.ask("e1")
    assert "b1 c1 d1" == await taken(mailbox)


async def test_a_sender_that_left_is_displaced_and_taken_like_any_other() -> None:
    """Its place in its share's order is gone with it, and no other's."""
    mailbox = shared_mailbox(3)
    a1, a2, a3 = (mailbox.ask(message) for message in ("a1", "a2", "a3"))
    a1.cancel()
    a3.cancel()
    mailbox.ask("b1")
    assert a3.cancelled()
    assert not a2.done()
    batch = await mailbox.take(10)
    assert ["a1", "b1", "a2"] == [envelope.message for envelope in batch]
    assert [True, False, False] == [envelope.answered.done() for envelope in batch]


async def test_heavy_messages_of_one_share_leave_room_for_light_ones_of_others() -> None:
    """A batch is bounded by weight, across rounds; what does not fit begins the next one."""
    mailbox = shared_mailbox(100)
    for _ in range(6):
        mailbox.ask("a" * 4)
    for share in ("b", "c"):
        mailbox.ask(share)
    batches = []
    while len(mailbox):
        batches.append([envelope.message for envelope in await mailbox.take(10, len, 8)])
    assert [["aaaa", "b", "c"], *[["aaaa", "aaaa"]] * 2, ["aaaa"]] == batches


async def test_all_that_is_queued_comes_in_the_order_in_which_it_would_be_taken() -> None:
    """The mailbox is empty then, and begins anew."""
    mailbox = shared_mailbox(6)
    for message in ("a1", "a2", "a3", "b1", "b2", "c1"):
        mailbox.ask(message)
    assert "a1" == await taken(mailbox, 1)
    queued = [envelope.message for envelope in mailbox.take_queued()]
    assert ["b1", "c1", "a2", "b2", "a3"] == queued
    assert (0, []) == (len(mailbox), mailbox.take_queued())
    mailbox.ask("a4")
    mailbox.ask("a5")
    mailbox.ask("b3")
    assert "a4 b3 a5" == await taken(mailbox)


@pytest.mark.parametrize("seed", range(20))
async def test_a_mailbox_is_a_queue_for_each_share_taken_in_turn(seed: int) -> None:
    """Against a model that scans all queues: same order, same refusals, nothing left behind."""
    chosen = random.Random(seed)
    mailbox = shared_mailbox(12)
    model: dict[str, list[str]] = {}
    turns: list[str] = []
    waiting: dict[str, asyncio.Future[str]] = {}
    for number in range(400):
        if chosen.random() < 0.6:
            share = chosen.choice("aaaabbc" + chr(ord("d") + number % 20))
            queue = model.setdefault(share, [])
            is_full = sum(map(len, model.values())) >= 12
            # Rounds until it is taken: those whose turn of this round is still to come have one less.
            rounds = {each: len(model[each]) - (each in turns) for each in model}
            longest = max(rounds.values(), default=0)
            if is_full and rounds[share] + 1 >= longest:
                with pytest.raises(Overloaded):
                    mailbox.ask(f"{share}{number}")
                continue
            waiting[f"{share}{number}"] = mailbox.ask(f"{share}{number}")
            queue.append(f"{share}{number}")
            failed = {message for message, answered in waiting.items() if answered.done()}
            assert len(failed) == is_full
            for message in failed:
                assert rounds[message[0]] == longest
                assert message == model[message[0]].pop()
                del waiting[message]
        elif len(mailbox):
            (envelope,) = await mailbox.take(1)
            # A round has one message of each share that had one when it began.
            turns = turns or [share for share in model if model[share]]
            share = envelope.message[0]
            turns.remove(share)
            assert envelope.message == model[share].pop(0)
            del waiting[envelope.message]
        assert len(mailbox) == sum(map(len, model.values()))
    while len(mailbox):
        await mailbox.take(3)
    assert (0, {}, {}) == (len(mailbox), mailbox._rounds, mailbox._last_rounds)


async def test_what_is_put_back_comes_first() -> None:
    """In its order, and before what has come meanwhile; a closed mailbox answers it."""
    mailbox: Mailbox[int, int] = Mailbox(10)
    for number in (1, 2, 3):
        mailbox.ask(number)
    batch = await mailbox.take(2)
    mailbox.ask(4)
    mailbox.put_back(batch)
    assert 4 == len(mailbox)
    taken = await mailbox.take(10)
    assert [1, 2, 3, 4] == [each.message for each in taken]
    mailbox.close()
    mailbox.put_back(taken)
    assert all(isinstance(each.answered.exception(), Overloaded) for each in taken)


async def test_a_message_from_another_loop_than_the_actors_is_refused_at_once() -> None:
    """Such as a read in another thread."""
    mailbox: Mailbox[int, int] = Mailbox(10)
    mailbox.ask(1)
    await mailbox.take(1)

    async def ask() -> None:
        mailbox.ask(2)

    with pytest.raises(WrongEventLoop):
        await asyncio.to_thread(asyncio.run, ask())
    assert 0 == len(mailbox)


async def test_messages_of_other_shares_are_seen_in_every_round() -> None:
    """In the round that is being taken, too; a share's own messages are no others."""
    mailbox: Mailbox[int, int] = Mailbox(10, lambda number: number % 10)
    for number in (1, 2, 11):
        mailbox.ask(number)
    assert mailbox.has_besides({1})
    assert [1] == [each.message for each in await mailbox.take(1)]
    assert mailbox.has_besides({1})
    await mailbox.take(1)
    assert not mailbox.has_besides({1})
    assert mailbox.has_besides(())
    await mailbox.take(1)
    assert not mailbox.has_besides(())
