"""A heavy message takes several turns of its share, and several places of the mailbox."""

from __future__ import annotations

import math
import random
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

import pytest

from stretto.errors import Overloaded
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.rounds import TURNS_PER_PLACE

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Hashable

Message: TypeAlias = tuple[str, int]
"""The name of its share, and how many turns it takes."""
HEAVY = 32
ROUND = math.ceil(200 / HEAVY)
"""Heavy messages that have the turns of one round of 200 shares."""
PLACES_OF_HEAVY = 1 + HEAVY // TURNS_PER_PLACE


def weighed_mailbox(messages_max: int = 10_000, rejected_max: int = 0) -> Mailbox[Message, str]:
    """Return a mailbox that knows what its messages weigh."""
    return Mailbox(
        messages_max,
        lambda message: message[0],
        turns_of=lambda message: message[1],
        rejected_max=rejected_max,
    )


async def taken(mailbox: Mailbox[Message, str], messages_max: int = 1) -> list[Message]:
    """Return the messages of the next batch."""
    return [envelope.message for envelope in await mailbox.take(messages_max)]


@pytest.mark.parametrize("gone", [0, 1, 50, 126, 199])
async def test_a_light_message_comes_soon_however_many_shares_have_a_heavy_one(gone: int) -> None:
    """Also where some of these were taken before it came, or all of them at the same time."""
    mailbox = weighed_mailbox()
    for number in range(200):
        mailbox.ask((f"tenant {number}", HEAVY))
    for _ in range(gone):
        await taken(mailbox)
    mailbox.ask(("newcomer", 1))
    assert ("newcomer", 1) in await taken(mailbox, ROUND + 1)


async def test_where_heavy_messages_come_again_and_again_a_light_one_comes_soon() -> None:
    """Of shares that always have one queued; and each time the light one comes."""
    mailbox = weighed_mailbox()
    tenants = [f"tenant {number}" for number in range(200)]
    for tenant in tenants:
        mailbox.ask((tenant, HEAVY))
    for _ in range(100):
        mailbox.ask(("light", 1))
        names: list[str] = []
        while "light" not in names or len(names) <= ROUND:
            ((name, _),) = await taken(mailbox)
            names.append(name)
            if name != "light":
                mailbox.ask((name, HEAVY))
        assert names.index("light") <= 2 * ROUND


@pytest.mark.parametrize("are_new", [False, True], ids=["the same", "new ones"])
async def test_a_heavy_message_comes_however_many_light_ones_do(are_new: bool) -> None:
    """After as many rounds as it takes turns: each of the others has had as much by then."""
    mailbox = weighed_mailbox()
    names = (f"light {number}" for number in count())
    lights = [next(names) for _ in range(10)]
    for name in lights:
        mailbox.ask((name, 1))
    mailbox.ask(("heavy", HEAVY))
    before = 0
    while (name := (await taken(mailbox))[0][0]) != "heavy":
        mailbox.ask((next(names) if are_new else name, 1))
        before += 1
    # The others have had all of 31 rounds; 11 shares have turns in each, or had them ahead of it.
    assert 10 * (HEAVY - 1) <= before <= 2.5 * 11 * HEAVY


async def test_a_shares_second_heavy_message_comes_however_many_shares_have_one() -> None:
    """Shares that are new each time have no more than their turns before it."""
    mailbox = weighed_mailbox()
    names = (f"new {number}" for number in count())
    for _ in range(10):
        mailbox.ask((next(names), HEAVY))
    mailbox.ask(("other", HEAVY))
    mailbox.ask(("other", HEAVY))
    order: list[str] = []
    while order.count("other") < 2:
        ((name, _),) = await taken(mailbox)
        order.append(name)
        mailbox.ask((next(names), HEAVY))
    assert len(order) < 50


async def test_a_share_whose_turns_were_taken_ahead_comes_after_them() -> None:
    """Else one that comes back at once would have all of the work."""
    mailbox = weighed_mailbox()
    for name in "abb":
        mailbox.ask((name, 8))
    order = await taken(mailbox)
    mailbox.ask(("a", 8))
    order += await taken(mailbox, 3)
    assert "abba" == "".join(name for name, _ in order)


async def test_what_waits_is_bounded_by_the_work_that_it_is() -> None:
    """The last message may take more places than are left; the next one finds none."""
    mailbox = weighed_mailbox(3 * PLACES_OF_HEAVY - 1)
    for name in "abc":
        mailbox.ask((name, HEAVY))
    for turns in (HEAVY, 2 * HEAVY):
        with pytest.raises(Overloaded):
            mailbox.ask(("d", turns))
    assert (3, 3 * PLACES_OF_HEAVY) == (len(mailbox), mailbox.places)
    await taken(mailbox, 3)
    assert (0, 0) == (len(mailbox), mailbox.places)


async def test_an_empty_mailbox_takes_the_heaviest_message() -> None:
    """However few places it has."""
    mailbox = weighed_mailbox(1)
    mailbox.ask(("a", HEAVY))
    assert [("a", HEAVY)] == await taken(mailbox)


async def test_light_messages_take_the_places_of_heavy_ones() -> None:
    """As many as one has, before another one goes."""
    mailbox = weighed_mailbox(2 * PLACES_OF_HEAVY)
    heavy = {name: mailbox.ask((name, HEAVY)) for name in "ab"}
    for number in range(PLACES_OF_HEAVY):
        assert mailbox.would_displace(f"light {number}") or number
        mailbox.ask((f"light {number}", 1))
        assert [False, True] == [heavy[name].done() for name in "ab"]
    mailbox.ask(("one more", 1))
    assert heavy["a"].done()
    assert PLACES_OF_HEAVY + 1 == mailbox.places
    assert PLACES_OF_HEAVY + 1 == len(await taken(mailbox, 100))


async def test_a_heavy_message_displaces_enough_light_ones_or_none() -> None:
    """Those behind it in the order; if they leave it no place, they stay."""
    mailbox = weighed_mailbox(40)
    light = [mailbox.ask(("a", 1)) for _ in range(36)]
    light += [mailbox.ask(("b", 1)) for _ in range(3)]
    mailbox.ask(("heavy", HEAVY))
    assert 39 + PLACES_OF_HEAVY == mailbox.places
    # The last four of a's are behind another heavy one: too few for its place.
    with pytest.raises(Overloaded):
        mailbox.ask(("other", HEAVY))
    assert not any(each.done() for each in light)
    assert 40 == len(mailbox)
    # That other one, too, is behind this.
    mailbox.ask(("third", HEAVY - 2))
    assert 4 == sum(each.done() for each in light)
    assert (36, 35 + PLACES_OF_HEAVY) == (len(mailbox), mailbox.places)


async def test_what_is_put_back_sets_no_other_share_back() -> None:
    """A heavy message keeps the place for which it has waited, however often others are put back."""
    mailbox = weighed_mailbox()
    mailbox.ask(("heavy", HEAVY))
    mailbox.ask(("other", 1))
    rounds = 0
    while len(batch := await mailbox.take(1)) and batch[0].message[0] == "other":
        mailbox.put_back(batch)
        rounds += 1
        assert rounds < 4 * HEAVY
    assert [("heavy", HEAVY)] == [envelope.message for envelope in batch]


async def test_what_is_put_back_need_not_wait_for_its_turns_again() -> None:
    """It has had them: it takes one more."""
    mailbox = weighed_mailbox()
    mailbox.ask(("a", HEAVY))
    batch = await mailbox.take(1)
    for name in "bcd":
        mailbox.ask((name, 2))
    mailbox.put_back(batch)
    assert [("a", HEAVY)] == await taken(mailbox)


async def ask_again_and_again(rejected_max: int) -> int:
    """Have twice as many shares as find a place ask again and again, and one now and then.

    Return how often that one was rejected before it was answered, 100 times at most.
    """
    mailbox = weighed_mailbox(10, rejected_max)
    waiting: dict[str, asyncio.Future[str]] = {}

    def ask(name: str) -> None:
        if name not in waiting or waiting[name].done():
            try:
                waiting[name] = mailbox.ask((name, 1))
            except Overloaded:
                waiting.pop(name, None)

    for number in range(20):
        ask(f"impatient {number}")
    for rejections in range(100):
        # These ask whenever one is answered, before the polite one asks again.
        for _ in range(5):
            for each in await mailbox.take(1):
                each.answer("done")
            for number in range(20):
                ask(f"impatient {number}")
        if "polite" in waiting and waiting["polite"].done() and not waiting["polite"].exception():
            return rejections
        ask("polite")
    return 100


async def test_a_client_that_waits_before_it_asks_again_loses_nothing_to_others() -> None:
    """Its question is as old as the one that was rejected: it comes before those that came later."""
    assert 8 > await ask_again_and_again(1000)


async def test_without_ages_such_a_client_is_rejected_for_ever() -> None:
    """The twin: whoever asks first after a place was left gets it."""
    assert 100 == await ask_again_and_again(0)


async def test_ages_are_kept_of_a_bounded_number_of_shares() -> None:
    """Those that have asked last."""
    mailbox = weighed_mailbox(1, 3)
    mailbox.ask(("a", 1))
    for name in "bcdeb":
        with pytest.raises(Overloaded):
            mailbox.ask((name, 1))
    ages: dict[Hashable, int] = dict(mailbox._rejected)
    assert ["d", "e", "b"] == list(ages)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_asked_each_message_is_taken_or_rejected_once(seed: int) -> None:
    """In the order of its share; places and bounds are true at any time, and nothing is left."""
    chosen = random.Random(seed)
    mailbox = weighed_mailbox(30, 8 * (seed % 2))
    queued: dict[str, list[asyncio.Future[str]]] = {}
    for _ in range(1000):
        action = chosen.random()
        if action < 0.6:
            name = chosen.choice("abcdefghijkl")
            try:
                future = mailbox.ask((name, chosen.choice((1, 1, 1, 2, 8, HEAVY))))
            except Overloaded:
                continue
            queued.setdefault(name, []).append(future)
        elif len(mailbox):
            batch = await mailbox.take(chosen.randint(1, 4))
            for envelope in batch:
                assert envelope.answered is queued[envelope.message[0]][0]
                queued[envelope.message[0]].pop(0)
            if action > 0.9:
                mailbox.put_back(batch)
                for envelope in reversed(batch):
                    queued[envelope.message[0]].insert(0, envelope.answered)
        for name, futures in queued.items():
            # The newest were displaced, if any.
            done = [future.done() for future in futures]
            assert sorted(done) == done
            queued[name] = [future for future in futures if not future.done()]
        rounds = mailbox._rounds
        messages = [each for number in rounds for each in rounds[number]]
        assert sum(map(len, queued.values())) == len(messages) == len(mailbox)
        assert sum(each.places for each in messages) == mailbox.places < 30 + PLACES_OF_HEAVY + 4
        assert not rounds or (min(rounds), max(rounds)) == (mailbox._first, mailbox._last)
    while len(mailbox):
        await mailbox.take(3)
    assert (0, {}, {}, {}) == (mailbox.places, rounds, mailbox._last_rounds, mailbox._ahead)
