"""A bounded mailbox of typed messages, fair between its shares; each is answered exactly once.

The actor that takes messages out answers every one, with a result or an error. What is still queued
when the mailbox closes is answered with an error.

Messages are taken in rounds: of each share, such as the owner of a write, one per round, its oldest.
So a share waits for one message of every other share, however many those have queued. A round that
has begun is closed to newcomers: each round ends, however many shares come.

If the mailbox is full, what would be taken last gets an error at once. That is the newcomer, or the
newest message of the share with the longest queue ("longest queue drop"). Among equals it is the
newcomer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stretto.errors import Overloaded
from stretto.misuse import WrongEventLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Sequence

    from stretto.errors import StrettoError

Message = TypeVar("Message")
Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Envelope(Generic[Message, Reply]):
    """A message and the future of its answer."""

    message: Message
    answered: asyncio.Future[Reply]

    def answer(self, reply: Reply) -> None:
        """Answer the sender, unless it has stopped waiting."""
        if not self.answered.done():
            self.answered.set_result(reply)

    def fail(self, error: Exception) -> None:
        """Answer the sender with an error, unless it was answered or has stopped waiting.

        Without its traceback, which refers to the actor's frame: to the error and all senders.
        """
        if not self.answered.done():
            self.answered.set_exception(error.with_traceback(None))


def weightless(_: object) -> int:
    """Only the number of messages counts."""
    return 0


def nothing_done(_: object) -> StrettoError:
    """Nothing was done for a message that finds no place."""
    return Overloaded(retry_after_seconds=1)


def _one_share(_: object) -> None:
    """All messages have one share: they are taken in the order of their arrival."""


class Mailbox(Generic[Message, Reply]):
    """Messages for any number of actors that share the work."""

    def __init__(
        self,
        messages_max: int,
        share_of: Callable[[Message], Hashable] = _one_share,
        rejection_of: Callable[[Message], StrettoError] = nothing_done,
    ) -> None:
        """Take what names the share of a message: each share has one message in a round.

        `rejection_of` returns what a message gets that finds no place, or loses it to another.
        """
        self.messages_max = messages_max
        self._share_of = share_of
        self._rejection_of = rejection_of
        self._messages = 0
        self._round = 0
        """The number of the round that is being taken."""
        self._taking: list[Envelope[Message, Reply]] = []
        """What is left of that round, the oldest at the end."""
        self._rounds: dict[int, list[Envelope[Message, Reply]]] = {}
        """The later rounds by number, in order. None is empty: a share has a message in each of them
        up to its last."""
        self._last_rounds: dict[Hashable, int] = {}
        """Of each share in the later rounds, the one with its newest message."""
        self._arrived = asyncio.Event()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """Of the actors that take messages."""

    def __len__(self) -> int:
        return self._messages

    def ask(self, message: Message) -> asyncio.Future[Reply]:
        """Queue a message.

        Raises `Overloaded` when the mailbox is closed, its rejection when it is full and no share has
        a longer queue, and `WrongEventLoop` in another loop than the actors'. The future raises the
        rejection when a share with a shorter queue needs the place.
        """
        if self._closed:
            raise Overloaded.while_stopping()
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            # An answer would not wake the caller's loop.
            raise WrongEventLoop
        share = self._share_of(message)
        if self._messages >= self.messages_max:
            if not self.would_displace(share):
                raise self._rejection_of(message)
            displaced = self.displace()
            displaced.fail(self._rejection_of(displaced.message))
        envelope: Envelope[Message, Reply] = Envelope(message, loop.create_future())
        self._queue(envelope, share)
        self._arrived.set()
        return envelope.answered

    def has_besides(self, shares: Container[Hashable]) -> bool:
        """Return whether a message of any other share is queued."""
        return self.has_any(lambda share: share not in shares)

    def has_any(self, is_wanted: Callable[[Any], bool]) -> bool:
        """Return whether a message of any such share is queued."""
        queued = chain(self._last_rounds, (self._share_of(each.message) for each in self._taking))
        return any(map(is_wanted, queued))

    def would_displace(self, share: Hashable, ahead: int = 0) -> bool:
        """Return whether another message would be taken after the next one of this share.

        `ahead` counts messages of the share that are not queued yet and come before that one.
        """
        number = self._last_rounds.get(share, self._round) + 1 + ahead
        return number < self._round + len(self._rounds)

    def displace(self) -> Envelope[Message, Reply]:
        """Remove and return what would be taken last: the newest message of a longest queue.

        Only for a share that would displace it.
        """
        number = self._round + len(self._rounds)
        last = self._rounds[number]
        envelope = last.pop()
        if not last:
            del self._rounds[number]
        # A newcomer goes before the last round: so this share has a message in the round before.
        self._last_rounds[self._share_of(envelope.message)] = number - 1
        self._messages -= 1
        return envelope

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
        batch: list[Envelope[Message, Reply]] = []
        weight = 0
        while self._messages and len(batch) < messages_max:
            if not self._taking:
                self._begin_round()
            weight += weigh(self._taking[-1].message)
            if batch and weight > weight_max:
                break
            batch.append(self._taking.pop())
            self._messages -= 1
        return batch

    def put_back(self, batch: Sequence[Envelope[Message, Reply]]) -> None:
        """Queue what was taken and not done: before the other messages of its shares.

        These shares have the last turns of each round. If they had the first ones, and were put back
        again and again, the others would never be in a batch.
        """
        if not batch:
            return
        shares = {self._share_of(envelope.message) for envelope in batch}
        own: list[Envelope[Message, Reply]] = []
        others: list[Envelope[Message, Reply]] = []
        for envelope in self.take_queued():
            (own if self._share_of(envelope.message) in shares else others).append(envelope)
        for envelope in chain(others, batch, own):
            self._queue(envelope, self._share_of(envelope.message))
        if self._closed:
            self.close()
        else:
            self._arrived.set()

    def take_queued(self) -> list[Envelope[Message, Reply]]:
        """Return all queued messages in order, without waiting."""
        queued = [*reversed(self._taking), *chain.from_iterable(self._rounds.values())]
        self._taking = []
        self._rounds.clear()
        self._last_rounds.clear()
        self._messages = 0
        return queued

    def close(self) -> None:
        """Accept no more messages; answer those queued with `Overloaded`. Idempotent."""
        self._closed = True
        for envelope in self.take_queued():
            envelope.fail(Overloaded.while_stopping())

    def _queue(self, envelope: Envelope[Message, Reply], share: Hashable) -> None:
        """Add a message to the round after the last one in which its share has a message."""
        number = self._last_rounds.get(share, self._round) + 1
        self._last_rounds[share] = number
        if number in self._rounds:
            self._rounds[number].append(envelope)
        else:
            self._rounds[number] = [envelope]
        self._messages += 1

    def _begin_round(self) -> None:
        """Begin to take the next round; from now on newcomers join later ones."""
        self._round += 1
        self._taking = self._rounds.pop(self._round)
        self._taking.reverse()
        for envelope in self._taking:
            share = self._share_of(envelope.message)
            if self._last_rounds[share] == self._round:
                del self._last_rounds[share]
