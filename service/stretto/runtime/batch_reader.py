"""BatchReader: asks the database questions of one kind, many of them with one statement.

A read costs several turns of the loop, however small it is. If each request reads by itself over a
few connections, a loop that lags by 80 ms does ten reads a second while the database is idle;
writes, in batches of a hundred, go through. So reads are batched, too: the questions that arrive
during one statement are the next. No question waits for a connection with a time-out, which would
measure our own lag. The number of waiting questions is bounded, and more are rejected at once (load
shedding): first those of the share that has most of them, such as one user, and among equals those
that were asked last (`mailbox.py`).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic

from stretto.errors import InternalError, Overloaded
from stretto.runtime.actor import Actor
from stretto.runtime.backoff import Backoff
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.rounds import Message, Reply, weightless
from stretto.store_errors import ReadCancelled, StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence

    from stretto.runtime.rounds import Envelope

    Read = Callable[[Sequence[Message]], Awaitable[Sequence[Reply]]]

# Questions that may wait: of small pages a second of work for a healthy loop, and little memory. All
# clients may ask at once, such as when their sessions could not resume. If the database does not
# answer, all of them get the error together when the connection is cut.
WAITING_MAX: Final = 1024
# Users who were rejected, and whose next question is as old as that one: more than clients that
# retry are at a time. Some hundred bytes each.
REJECTED_MAX: Final = 4096
# Of a question that alone weighs as much as a batch may: small ones of other users come before it. The
# largest page (`creation/reads.py`) takes five, and one place: few users have as many groups as they ask
# for.
TURNS_OF_BATCH: Final = 8
# After a bug. Short: it may be due to one question, and the others wait meanwhile.
READ_BACKOFF: Final = Backoff(0.02, 0.5)


@contextmanager
def answering(
    batch: list[Envelope[Message, Reply]], mailbox: Mailbox[Message, Reply]
) -> Iterator[None]:
    """Fail the requests that are still in the batch at the end and have no answer, whatever happens.

    Where the database does not answer, those that wait in the mailbox join them. A bug is raised.
    """
    unanswered: Exception = Overloaded.while_stopping()
    try:
        yield
    except StoreError as error:
        unanswered = error
        # The waiting ones would use the same connection, and fail one after the other.
        batch += mailbox.take_queued()
    except Exception:
        unanswered = InternalError()
        raise
    finally:
        for request in batch:
            request.fail(unanswered)


class BatchReader(Actor, Generic[Message, Reply]):
    """Asks `read` for the answers to a batch of questions, in their order; one batch at a time."""

    backoff = READ_BACKOFF

    def __init__(
        self,
        name: str,
        read: Read[Message, Reply],
        *,
        share_of: Callable[[Message], Hashable],
        batch_max: int,
        weigh: Callable[[Message], int] = weightless,
        weight_max: int = 0,
    ) -> None:
        """Take what names the share of a question: shares take turns, several for a heavy question.

        `weight_max` bounds what the questions of a batch weigh together; one alone may weigh more.
        """
        weight_of_turn = weight_max // TURNS_OF_BATCH
        super().__init__(name)
        self._read = read
        self._batch_max = batch_max
        self._weigh = weigh
        self._weight_max = weight_max
        self._mailbox: Mailbox[Message, Reply] = Mailbox(
            max(WAITING_MAX, batch_max),
            share_of,
            turns_of=(lambda asked: 1 + weigh(asked) // weight_of_turn) if weight_of_turn else None,
            rejected_max=REJECTED_MAX,
        )

    async def ask(self, question: Message) -> Reply:
        """Return the answer; raises `Overloaded` if too many wait, else what the read raises."""
        return await self._mailbox.ask(question)

    async def run_once(self) -> int:
        """Wait for questions, answer a batch; return how many there were."""
        batch = await self._mailbox.take(self._batch_max, self._weigh, self._weight_max)
        with answering(batch, self._mailbox):
            await self._answer(batch)
        return len(batch)

    def stop(self) -> None:
        """Accept no more questions; answer those that wait with an error. Idempotent."""
        super().stop()
        self._mailbox.close()

    async def close(self) -> None:
        """Leave no question without an answer after the last turn, also if it was never stopped."""
        self._mailbox.close()

    async def _answer(self, batch: Sequence[Envelope[Message, Reply]]) -> None:
        # A request that stopped waiting costs no read.
        waiting = [request for request in batch if not request.answered.done()]
        if not waiting:
            return
        try:
            replies = await self._read([request.message for request in waiting])
        except ReadCancelled as error:
            # The server cancelled the statement: one slow question must not fail the others.
            if len(waiting) == 1:
                waiting[0].fail(error)
                return
            for request in waiting:
                await self._answer([request])
            return
        for request, reply in zip(waiting, replies, strict=True):
            request.answer(reply)
