"""A bounded mailbox of typed messages, each of which is answered exactly once.

Full means an error at once, for the sender. Whoever takes messages out answers every one, with a
result or an error; what is still queued when the mailbox closes is answered with an error.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Generic, TypeVar

from stretto.errors import Overloaded

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
        """Answer the sender with an error, unless it was answered or has stopped waiting."""
        if not self.answered.done():
            self.answered.set_exception(error)


class Mailbox(Generic[Message, Reply]):
    """Messages for any number of actors that share the work."""

    def __init__(self, messages_max: int) -> None:
        self._queue: asyncio.Queue[Envelope[Message, Reply]] = asyncio.Queue(messages_max)
        self._closed = False

    def __len__(self) -> int:
        return self._queue.qsize()

    def ask(self, message: Message) -> asyncio.Future[Reply]:
        """Queue a message; raises `Overloaded` at once when the mailbox is full or closed."""
        if self._closed:
            raise Overloaded.while_stopping()
        envelope = Envelope(message, asyncio.get_running_loop().create_future())
        try:
            self._queue.put_nowait(envelope)
        except asyncio.QueueFull:
            raise Overloaded(retry_after_seconds=1) from None
        return envelope.answered

    async def take(self, messages_max: int) -> list[Envelope[Message, Reply]]:
        """Wait for a message; return it with what else has come by then, up to `messages_max`."""
        batch = [await self._queue.get()]
        while len(batch) < messages_max and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        return batch

    def take_queued(self) -> list[Envelope[Message, Reply]]:
        """Return all that is queued, without waiting."""
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    def close(self) -> None:
        """Accept nothing more and answer all that is queued with `Overloaded`. Idempotent."""
        self._closed = True
        for envelope in self.take_queued():
            envelope.fail(Overloaded.while_stopping())
