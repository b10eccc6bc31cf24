"""CommandConsumer: creates groups requested over the bus, with the same guarantees as over HTTP.

A command stays in a JetStream stream until it is settled, and is acknowledged only after that. So
redelivery, a second consumer or a crash only cause another call of `create` with the same key. A
command that can never succeed is dead-lettered together with its problem document. So is one that
its owner has no place for, unless its sender waits for the answer.

A publisher of commands can act for every owner: the operator must restrict who may publish.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nats.js.api import Header

from stretto.codec import BODY_BYTES_MAX
from stretto.creation.age import FIRST_SENT
from stretto.domain import IdempotencyKey, UserId
from stretto.errors import (
    AttemptFailed,
    BodyTooLarge,
    GroupDeleted,
    KeyMissing,
    Overloaded,
    RequestInvalid,
    Retry,
    StrettoError,
    Unauthenticated,
)
from stretto.nats.command_context import KEY, context_of, end_span
from stretto.nats.command_outcomes import dead_letter, reply_problem, reply_subject, reply_success
from stretto.nats.command_streams import provide_command_streams
from stretto.nats.command_window import DELAY, OWNER, Command, CommandWindow, PutOff
from stretto.nats.connection import (
    CANCEL_SECONDS,
    NATS_ERRORS,
    RETRY,
    Link,
    NatsConnection,
    end_tasks,
)
from stretto.nats.pull import Pull
from stretto.observations import CommandHandled
from stretto.runtime.actor import Actor, Pace, TryAgain

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nats.aio.msg import Msg
    from nats.js.api import ConsumerConfig

    from stretto.creation.age import AttemptAge
    from stretto.creation.creator import GroupCreator
    from stretto.creation.flight import Answer
    from stretto.nats.deployment import Deployment
    from stretto.nats.outage import Outage
    from stretto.observations import Observer
    from stretto.telemetry.tracing import Tracing

# How long one delivery waits for its outcome; well below `ack_seconds`.
CREATE_SECONDS: Final = 5.0
# A command usually takes some milliseconds; one that does not end in time is redelivered.
STOP_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """How commands are consumed."""

    workers: int = 32
    """Commands under way at once in this process; their writes share batches."""
    fetchers: int = 16
    """Requests for the next command; each takes one at a time, so few would fall behind a backlog."""
    ack_seconds: float = 30.0
    """After this long, a command whose consumer has died is delivered to another consumer."""
    fetch_seconds: float = 2.5
    """How long one request for the next command waits on the server. With `LATE_SECONDS`, a request
    that died with the consumer's leader is over before another server leads."""


class CommandConsumer(Actor):
    """One of any number of consumers that share the commands; a turn is a connection's life."""

    cancel_again_seconds = CANCEL_SECONDS

    def __init__(  # noqa: PLR0913 its collaborators; put_together has them all
        self,
        connection: NatsConnection,
        deployment: Deployment,
        creator: GroupCreator,
        age: AttemptAge,
        observe: Observer,
        settings: CommandSettings | None = None,
        *,
        outage: Outage,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__("commands")
        self.pace, self.backoff = Pace(seconds=RETRY.seconds_first, full=1), RETRY
        self._connection = connection
        self._deployment = deployment
        self._creator = creator
        self._age = age
        self._settings = settings or CommandSettings()
        self._observe, self._tracing = observe, tracing
        self._put_off, self._outage = PutOff(), outage
        self._busy: set[asyncio.Task[None]] = set()
        self._idle: asyncio.Future[None] = asyncio.Future()
        """Done once the actor is stopping and no command is under way."""

    @property
    def stop_seconds(self) -> float:
        """Time for commands under way; no new ones are taken."""
        return STOP_SECONDS if self._busy else 0.0

    async def run_once(self) -> int:
        """Handle commands until the link ends; return 1 if the next turn must wait for a link."""
        link = await self._connection.linked()
        try:
            consumer = await link.unless_ended(
                provide_command_streams(link, self._deployment, self._settings.ack_seconds)
            )
            await self._consume(link, consumer)
        except Exception as error:
            # The NATS client may raise anything.
            self._connection.report(error)
            if not link.ended.done():
                raise TryAgain from error
        return int(link.ended.done())

    async def _consume(self, link: Link, consumer: ConsumerConfig) -> None:
        """Run the workers until the link ends, or one of them raises and the others are idle."""
        over = asyncio.Event()
        window = CommandWindow(consumer)
        work = [
            window.keep(consumer.ack_wait or self._settings.ack_seconds),
            *(self._fetch(link, window, over) for _ in range(self._settings.fetchers)),
            *(self._work(link, window, over) for _ in range(self._settings.workers)),
        ]
        workers = [
            asyncio.create_task(each, name=f"stretto command worker {number}")
            for number, each in enumerate(work)
        ]
        working: set[asyncio.Future[None]] = set(workers)
        try:
            while working and not (link.ended.done() or self._idle.done()):
                done, _ = await asyncio.wait(
                    (*working, link.ended, self._idle), return_when=asyncio.FIRST_COMPLETED
                )
                working -= done
                if any(ended.cancelled() or ended.exception() for ended in done):
                    over.set()
                    await self._end_when_idle(link, workers)
                for ended in done:
                    ended.result()
        finally:
            await end_tasks(workers)
            with contextlib.suppress(*NATS_ERRORS):
                await window.give_back()

    async def _end_when_idle(self, link: Link, workers: list[asyncio.Task[None]]) -> None:
        """End the workers that wait for a command, and wait for the commands under way."""
        await end_tasks([worker for worker in workers if worker not in self._busy])
        if self._busy:
            # After `ack_seconds` another consumer gets these commands anyway.
            # A copy: the last of them may end before the wait begins.
            finished = asyncio.wait([*self._busy], timeout=self._settings.ack_seconds)
            with contextlib.suppress(ConnectionResetError):
                await link.unless_ended(finished)

    async def _fetch(self, link: Link, window: CommandWindow, over: asyncio.Event) -> None:
        """Take one command after another from the stream until the consumer stops or `over` is set."""
        stream, consumer = self._deployment.command_stream, self._deployment.command_consumer
        async with Pull(link, stream, consumer, self._settings.fetch_seconds) as pull:
            while not (self.is_stopping or over.is_set()):
                await self._outage.turn()
                message = await pull.next()
                if message is not None:
                    # Handled here: no more is taken before this one is settled or put off.
                    for excess in window.offer(Command.of(message)):
                        rejected = self._handle(link, window, excess, Overloaded())
                        await self._to_its_end(rejected)

    async def _work(self, link: Link, window: CommandWindow, over: asyncio.Event) -> None:
        """Handle one command after another until the consumer stops or `over` is set."""
        while not (self.is_stopping or over.is_set()):
            command = await window.take()
            await self._to_its_end(self._handle(link, window, command))
            # What is refused at once needs no wait: let the others of the loop have their turn.
            await asyncio.sleep(0)

    async def _to_its_end(self, work: Coroutine[object, object, None]) -> None:
        """Run work that a stop does not interrupt while `stop_seconds` last."""
        worker = asyncio.current_task()
        assert worker is not None
        self._busy.add(worker)
        try:
            await work
        finally:
            self._busy.discard(worker)
            if self.is_stopping and not self._busy and not self._idle.done():
                self._idle.set_result(None)

    async def _handle(
        self,
        link: Link,
        window: CommandWindow,
        command: Command,
        error: StrettoError | None = None,
    ) -> None:
        """Handle one delivery of a command, or its error; only a lost connection raises."""
        context, outcome = context_of(command.message.headers or {}, self._tracing), None
        try:
            with context:
                outcome = await self._outcome_of(link, window, command, error)
        finally:
            end_span(context, outcome)
        window.release(command)
        self._observe(CommandHandled(outcome))

    async def _outcome_of(
        self, link: Link, window: CommandWindow, command: Command, error: StrettoError | None
    ) -> str:
        try:
            if error is None:
                return await self._settle(link, window, command)
            return await self._refuse(link, window, command, error)
        except Exception as failure:  # noqa: BLE001 one command must not stop the workers
            # A bug of ours, or its dead letter was not stored.
            self._connection.report(failure)
            return await self._delay(command)

    async def _settle(self, link: Link, window: CommandWindow, command: Command) -> str:
        message = command.message
        try:
            reply_to = reply_subject(message.headers or {}, self._deployment)
            async with self._outage.trial(command.owner):
                answer = await self._create(message)
        except StrettoError as error:
            return await self._refuse(link, window, command, error)
        await reply_success(link, reply_to, answer)
        await message.ack()
        return answer.status.value

    async def _create(self, message: Msg) -> Answer:
        headers, body = message.headers or {}, message.data
        if Header.STATUS.value in headers:
            # Other programs, and NATS clients, take such a message for JetStream's answer.
            raise RequestInvalid([], f"the header {Header.STATUS.value} is JetStream's own")
        if KEY not in headers:
            raise KeyMissing
        key = IdempotencyKey.parse(headers[KEY])
        try:
            owner = UserId(headers.get(OWNER))
        except ValueError as error:
            raise Unauthenticated(f"{OWNER}: {error}") from error
        if len(body) > BODY_BYTES_MAX:
            raise BodyTooLarge
        # Without that field, when the stream has stored the command: a redelivery changes neither.
        stored_at = message.metadata.timestamp.timestamp()
        out_of_range = self._age.out_of_range_stored(headers.get(FIRST_SENT), stored_at)
        return await self._creator.create_from(
            owner, key, body, wait_seconds=CREATE_SECONDS, out_of_range=out_of_range
        )

    async def _refuse(
        self, link: Link, window: CommandWindow, command: Command, error: StrettoError
    ) -> str:
        """Put off a command that may still succeed; reply to others, dead-letter invalid ones.

        Beyond its owner's share a command is not put off: it would keep a place from other owners.
        """
        may_succeed = error.retry is Retry.SAME_KEY
        if may_succeed and self._put_off.of(command.owner) < window.put_off_max:
            return await self._delay(command, error.retry_after_seconds or 0)
        message, reply_to = command.message, None
        with contextlib.suppress(RequestInvalid):
            reply_to = reply_subject(message.headers or {}, self._deployment)
            await reply_problem(link, reply_to, error)
        # A failed attempt is settled, and so is a deleted group: every later request finds that. A
        # sender that gets the error of another one knows that it has to send the command again.
        is_settled = isinstance(error, (AttemptFailed, GroupDeleted))
        if is_settled or (may_succeed and reply_to is not None):
            await message.ack()
            return "rejected" if may_succeed else "failed"
        await dead_letter(link, self._deployment, message, error)
        await message.term()
        return "rejected" if may_succeed else "dead_lettered"

    async def _delay(self, command: Command, seconds_min: float = 0.0) -> str:
        """Let the command come again, after a pause that grows, but not in an outage."""
        tries = command.message.metadata.num_delivered if self._outage.is_over else 1
        seconds = max(DELAY.seconds(tries - 1), seconds_min)
        await command.message.nak(seconds)
        self._put_off.add(command.owner, seconds)
        return "put_off"
