"""The order of a mailbox: rounds, in which each share has one turn.

A light message takes one turn of its share. A heavy one takes several: it belongs to a round as many
rounds later, and what is queued for the rounds before is taken first. So a share waits for no more
work of another than it has itself, however much that has queued.

A round ends when as many turns were taken as shares had work at its beginning. If no message belongs
to it, those of the next rounds are taken, and count for it: they are ahead of their time, and a
newcomer that is light still comes before the rest of them (as in weighted fair queueing). Newcomers
belong to later rounds than the one that has begun: so each message is reached, however many come.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container, Hashable, Sequence

Message = TypeVar("Message")
Reply = TypeVar("Reply")

# A message takes one place, and one more for each so many turns.
TURNS_PER_PLACE: Final = 6


@dataclass(slots=True, eq=False)
class Envelope(Generic[Message, Reply]):
    """A message and the future of its answer."""

    message: Message
    answered: asyncio.Future[Reply]
    share: Hashable = None
    """Of the mailbox alone, as what follows."""
    turns: int = 1
    age: int = 0
    """Of two that would be taken last, the one with the lower number has asked first."""

    @property
    def places(self) -> int:
        """Return how many places of the mailbox it takes."""
        return 1 + self.turns // TURNS_PER_PLACE

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


class Rounds(Generic[Message, Reply]):
    """What is queued, in the order in which it is taken."""

    def __init__(self) -> None:
        self.places = 0
        """Those that the messages take."""
        self._messages = 0
        self._round = 0
        """The number of the round that has begun."""
        self._turns_left = 0
        """Of that round; less than 0 where the last message took more."""
        self._rounds: dict[int, list[Envelope[Message, Reply]]] = {}
        """What is queued, by round: none is empty. Each has its messages in the order of their age."""
        self._first = self._last = 0
        """The numbers of the first and the last of them, if there are any."""
        self._last_rounds: dict[Hashable, int] = {}
        """Of each share that has work in a later round, the last such round."""
        self._ahead: dict[int, list[Hashable]] = {}
        """By that round, shares whose last message was taken ahead of it."""

    def __len__(self) -> int:
        return self._messages

    def has_besides(self, shares: Container[Hashable]) -> bool:
        """Return whether a message of any other share is queued."""
        return self.has_any(lambda share: share not in shares)

    def has_any(self, is_wanted: Callable[[Any], bool]) -> bool:
        """Return whether a message of any such share is queued."""
        queued = chain.from_iterable(self._rounds.values())
        return any(is_wanted(envelope.share) for envelope in queued)

    def would_displace(self, share: Hashable, turns: int = 1) -> bool:
        """Return whether a message would be taken after one of this share that is queued now.

        `turns` includes those of the share's messages that are not queued yet and come before it.
        """
        return self._messages > 0 and self._next_round(share) + turns < self._last

    def displace(self) -> Envelope[Message, Reply]:
        """Remove and return what would be taken last: the newest message of the last round.

        Only for a share that would displace it.
        """
        number = self._last
        last = self._rounds[number]
        envelope = last.pop()
        self._messages -= 1
        self.places -= envelope.places
        # A newcomer goes before it: what the share has besides is in rounds before.
        before = number - envelope.turns
        if before > self._round:
            self._last_rounds[envelope.share] = before
            # It may have been taken.
            self._ahead.setdefault(before, []).append(envelope.share)
        else:
            self._last_rounds.pop(envelope.share, None)
        if not last:
            del self._rounds[number]
            while self._messages and self._last not in self._rounds:
                self._last -= 1
        return envelope

    def take_queued(self) -> list[Envelope[Message, Reply]]:
        """Return all queued messages in order, without waiting."""
        queued = [each for number in sorted(self._rounds) for each in self._rounds[number]]
        self._rounds.clear()
        self._messages = self.places = 0
        self._begin_anew()
        return queued

    def _take_queued(
        self, messages_max: int, weigh: Callable[[Message], int], weight_max: int
    ) -> list[Envelope[Message, Reply]]:
        """Take what is queued, as `Mailbox.take` does."""
        batch: list[Envelope[Message, Reply]] = []
        weight = taken = 0
        while self._messages and taken < messages_max and (not taken or weight <= weight_max):
            number, before = self._first, taken
            queued = self._rounds[number]
            for envelope in queued:
                weight += weigh(envelope.message)
                if taken and (weight > weight_max or taken == messages_max):
                    break
                batch.append(envelope)
                taken += 1
                if self._turns_left <= 0:
                    self._begin_rounds()
                turns = envelope.turns
                self._turns_left -= turns
                self.places -= 1 if turns == 1 else envelope.places
                if self._last_rounds.get(envelope.share) == number:
                    self._end(envelope.share)
            self._remove_first(taken - before)
        if not self._messages:
            self._begin_anew()
        return batch

    def _remove_first(self, count: int) -> None:
        """Remove that many messages of the first round."""
        queued = self._rounds[self._first]
        self._messages -= count
        if count < len(queued):
            del queued[:count]
            return
        del self._rounds[self._first]
        if self._messages:
            while self._first not in self._rounds:
                self._first += 1

    def _next_round(self, share: Hashable) -> int:
        """Return the round behind which a share's next message has its turns."""
        return self._last_rounds.get(share, self._round)

    def _queue(self, envelope: Envelope[Message, Reply]) -> None:
        """Add a message to the round in which it has had its turns, behind the older ones there."""
        number = self._last_rounds.get(envelope.share, self._round) + envelope.turns
        self._last_rounds[envelope.share] = number
        queued = self._rounds.get(number)
        if queued is None:
            self._rounds[number] = [envelope]
            if not self._messages:
                self._first = self._last = number
            elif number > self._last:
                self._last = number
            elif number < self._first:
                self._first = number
        elif queued[-1].age < envelope.age:
            queued.append(envelope)
        else:
            insort(queued, envelope, key=attrgetter("age"))
        self._messages += 1
        self.places += 1 if envelope.turns == 1 else envelope.places

    def _end(self, share: Hashable) -> None:
        """Note that the last message of a share was taken, from the first round."""
        if self._first <= self._round:
            del self._last_rounds[share]
        else:
            # It has had its turns ahead: its next message comes after them.
            self._ahead.setdefault(self._first, []).append(share)

    def _begin_rounds(self) -> None:
        """Begin the next round that has turns left; from now on newcomers belong to later ones."""
        shares, before = len(self._last_rounds) or 1, self._round
        if before < self._first and not (self._turns_left or self._ahead):
            # Nearly always.
            self._round += 1
            self._turns_left = shares
            return
        # None is over while a message of it is queued.
        self._round = min(before + 1 - self._turns_left // shares, self._first)
        self._turns_left = max(self._turns_left + shares * (self._round - before), 0)
        if self._ahead:
            for number in range(before + 1, self._round + 1):
                for share in self._ahead.pop(number, ()):
                    if self._last_rounds.get(share) == number:
                        del self._last_rounds[share]

    def _begin_anew(self) -> None:
        """Forget whose turns were taken: no message waits."""
        self._turns_left = 0
        self._last_rounds.clear()
        self._ahead.clear()

    def _queue_again(
        self, shares: Container[Hashable], batch: Sequence[Envelope[Message, Reply]]
    ) -> None:
        """Queue what these shares have behind all else, and that of the batch first.

        Of other shares each message stays where it is, unless its round is over.
        """
        rounds = sorted(self._rounds.items())
        self._rounds = {}
        self._messages = self.places = 0
        own: list[Envelope[Message, Reply]] = []
        others: set[Hashable] = set()
        for number, queued in rounds:
            for each in queued:
                if each.share in shares:
                    each.age = batch[-1].age
                    own.append(each)
                    continue
                if each.share not in others:
                    others.add(each.share)
                    self._last_rounds[each.share] = max(number, self._round + 1) - each.turns
                self._queue(each)
        for share in {each.share for each in batch}:
            self._last_rounds.pop(share, None)
        for each in chain(batch, own):
            self._queue(each)
