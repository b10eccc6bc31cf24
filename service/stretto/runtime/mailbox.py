"""A bounded mailbox of typed messages, fair between its shares; each is answered exactly once.

The actor that takes messages out answers every one, with a result or an error. What is still queued
when the mailbox closes is answered with an error.

Messages are taken in rounds (`rounds.py`): each share, such as the owner of a write, has one turn in a
round, and a heavy message takes several. So a share waits for no more work of every other share than
it has itself, however much those have queued.

A heavy message takes several places, too: what waits is bounded by the work that it is. If the mailbox
is full, what would be taken last gets an error at once. That is the newcomer, or the newest message of
the share with most turns queued ("longest queue drop"). Among equals it is the newcomer.

With `rejected_max` it is, among equals, the one that has asked last: a share that was rejected keeps
the age of its first question until a message of it finds a place. So a client that waits before it asks
again loses nothing to those that ask at once, again and again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from stretto.errors import Overloaded
from stretto.misuse import WrongEventLoop
from stretto.runtime.rounds import Envelope, Message, Reply, Rounds, weightless

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from stretto.errors import StrettoError


def nothing_done(_: object) -> StrettoError:
    """Nothing was done for a message that finds no place."""
    return Overloaded(retry_after_seconds=1)


def _one_share(_: object) -> None:
    """All messages have one share: they are taken in the order of their arrival."""


class Mailbox(Rounds[Message, Reply]):
    """Messages for any number of actors that share the work."""

    def __init__(
        self,
        messages_max: int,
        share_of: Callable[[Message], Hashable] = _one_share,
        rejection_of: Callable[[Message], StrettoError] = nothing_done,
        turns_of: Callable[[Message], int] | None = None,
        rejected_max: int = 0,
    ) -> None:
        """Take what names the share of a message: each share has one turn in a round.

        `rejection_of` returns what a message gets that finds no place, or loses it to another;
        `turns_of` how many turns it takes, some tens at most. `rejected_max` shares keep their age.
        """
        super().__init__()
        self.messages_max = messages_max
        """Places: as many light messages may queue."""
        self._share_of = share_of
        self._rejection_of = rejection_of
        self._turns_of = turns_of
        self._rejected_max = rejected_max
        self._asked = 0
        self._rejected: OrderedDict[Hashable, int] = OrderedDict()
        """The ages of shares that were rejected, and have not got a place since."""
        self._arrived = asyncio.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """Of the actors that take messages."""

    def ask(self, message: Message) -> asyncio.Future[Reply]:
        """Queue a message.

        Raises `Overloaded` when the mailbox is closed, its rejection when it is full and no message
        would be taken later, and `WrongEventLoop` in another loop than the actors'. The future raises
        the rejection when a message that would be taken earlier needs the place.
        """
        if self._closed:
            raise Overloaded.while_stopping()
        loop = asyncio.get_running_loop()
        if self._loop is not loop and self._loop is not None:
            # An answer would not wake the caller's loop.
            raise WrongEventLoop
        share = self._share_of(message)
        turns = 1 if self._turns_of is None else self._turns_of(message)
        self._asked += 1
        age = self._asked
        if self._rejected:
            age = self._rejected.pop(share, age)
        if self.places >= self.messages_max and not self._make_room(share, turns, age):
            self._keep_age(share, age)
            raise self._rejection_of(message)
        envelope: Envelope[Message, Reply] = Envelope(
            message, loop.create_future(), share, turns, age
        )
        self._queue(envelope)
        if self._messages == 1:
            self._arrived.set()
        return envelope.answered

    async def take(
        self,
        messages_max: int,
        weigh: Callable[[Message], int] = weightless,
        weight_max: int = 0,
    ) -> list[Envelope[Message, Reply]]:
        """Wait for a message; return it and those queued behind it, in order.

        At most `messages_max`, whose weights add up to at most `weight_max`; only the first message
        may be heavier than that.
        """
        self._loop = asyncio.get_running_loop()
        # Another actor that shares the work may have taken the message since the wake-up.
        while not self._messages:
            self._arrived.clear()
            await self._arrived.wait()
        return self._take_queued(messages_max, weigh, weight_max)

    def put_back(self, batch: Sequence[Envelope[Message, Reply]]) -> None:
        """Queue what was taken and not done: before the other messages of its shares.

        These shares have the last turns of each round. If they had the first ones, and were put back
        again and again, the others would never be in a batch. What is put back has had its turns, and
        takes one more; the messages of other shares stay where they are.
        """
        if not batch:
            return
        for envelope in batch:
            envelope.share, envelope.turns = self._share_of(envelope.message), 1
            # Behind all that is queued for the same round.
            self._asked += 1
            envelope.age = self._asked
        self._queue_again({envelope.share for envelope in batch}, batch)
        if self._closed:
            self.close()
        else:
            self._arrived.set()

    def close(self) -> None:
        """Accept no more messages; answer those queued with `Overloaded`. Idempotent."""
        self._closed = True
        for envelope in self.take_queued():
            envelope.fail(Overloaded.while_stopping())

    def _make_room(self, share: Hashable, turns: int, age: int) -> bool:
        """Displace what would be taken after such a message; return whether it has room then."""
        order = self._next_round(share) + turns, age if self._rejected_max else self._asked
        excess, count = self.places - self.messages_max, 0
        for number in range(self._last, self._first - 1, -1):
            for envelope in reversed(self._rounds.get(number, ())):
                if excess < 0:
                    break
                if order >= (number, envelope.age):
                    return False
                excess -= envelope.places
                count += 1
        if excess >= 0:
            return False
        for _ in range(count):
            displaced = self.displace()
            self._keep_age(displaced.share, displaced.age)
            displaced.fail(self._rejection_of(displaced.message))
        return True

    def _keep_age(self, share: Hashable, age: int) -> None:
        """Have the next message of a rejected share be as old as its first one."""
        if not self._rejected_max:
            return
        self._rejected[share] = min(age, self._rejected.get(share, age))
        if len(self._rejected) > self._rejected_max:
            self._rejected.popitem(last=False)
