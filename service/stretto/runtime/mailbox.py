"""A bounded mailbox of typed messages, each of which is answered exactly once.

If it is full, the sender gets an error at once. The actor that takes messages out answers every
one, with a result or an error. What is still queued when the mailbox closes is answered with an
error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from stretto.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _weightless(_: object) -> int:
    return 0


class Mailbox(Generic[Message, Reply]):
    """Messages for any number of actors that share the work."""

    def __init__(self, messages_max: int) -> None:
        self.messages_max = messages_max
        self._queue: deque[Envelope[Message, Reply]] = deque()
        self._arrived = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._queue)

    def ask(self, message: Message) -> asyncio.Future[Reply]:
        """Queue a message; raises `Overloaded` at once when the mailbox is full or closed."""
        if self._closed:
            raise Overloaded.while_stopping()
        if len(self._queue) >= self.messages_max:
            raise Overloaded(retry_after_seconds=1)
        envelope: Envelope[Message, Reply] = Envelope(
            message, asyncio.get_running_loop().create_future()
        )
        self._queue.append(envelope)
        self._arrived.set()
        return envelope.answered

    async def take(
        self,
        messages_max: int,
        weigh: Callable[[Message], int] = _weightless,
        weight_max: int = 0,
    ) -> list[Envelope[Message, Reply]]:
        """Wait for a message; return it and those queued behind it, in order.

        At most `messages_max`, whose weights add up to at most `weight_max`; only the first message
        may be heavier than that.
        """
        # Another actor that shares the work may have taken the message since the wake-up.
        while not self._queue:
            self._arrived.clear()
            await self._arrived.wait()
        batch = [self._queue.popleft()]
        weight = weigh(batch[0].message)
        while self._queue and len(batch) < messages_max:
            weight += weigh(self._queue[0].message)
            if weight > weight_max:
                break
            batch.append(self._queue.popleft())
        return batch

    def take_queued(self) -> list[Envelope[Message, Reply]]:
        """Return all queued messages, without waiting."""
        queued = list(self._queue)
        self._queue.clear()
        return queued

    def close(self) -> None:
        """Accept no more messages; answer those queued with `Overloaded`. Idempotent."""
        self._closed = True
        for envelope in self.take_queued():
            envelope.fail(Overloaded.while_stopping())
