"""CommandConsumer: creates groups requested over the bus, with the same guarantees as over HTTP.

A command stays in a JetStream stream until it is settled, and is acknowledged only after that. So
redelivery, a second consumer or a crash only cause another call of `create` with the same key. A
command that can never succeed is dead-lettered together with its problem document.

A publisher of commands can act for every owner: the operator must restrict who may publish.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
from nats.js.api import Header

from stretto.codec import BODY_BYTES_MAX, PROBLEM_CONTENT_TYPE, STATUS, problem
from stretto.domain import IdempotencyKey, UserId
from stretto.errors import (
    AttemptFailed,
    BodyTooLarge,
    InternalError,
    KeyMissing,
    RequestInvalid,
    Retry,
    StrettoError,
    Unauthenticated,
)
from stretto.nats.command_streams import provide_command_streams
from stretto.nats.connection import (
    CANCEL_SECONDS,
    NATS_ERRORS,
    RETRY,
    Link,
    NatsConnection,
    end_tasks,
)
from stretto.observations import CommandHandled
from stretto.runtime.actor import Actor, Pace, TryAgain
from stretto.runtime.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from nats.aio.msg import Msg

    from stretto.creation.creator import Answer, GroupCreator
    from stretto.nats.deployment import Deployment
    from stretto.observations import Observer

KEY: Final = "Idempotency-Key"
OWNER: Final = "Stretto-Owner"
# JetStream acknowledges to the message's own reply subject, and does not store that subject.
REPLY_TO: Final = "Stretto-Reply-To"
STATUS_CODE: Final = "Stretto-Status"
# Only these: an outcome is published with our permissions, not with the sender's.
_REPLY_TOKENS: Final = r"(\.[A-Za-z0-9_-]+){1,8}"
# How long one delivery waits for its outcome; well below `ack_seconds`.
CREATE_SECONDS: Final = 5.0
# Delays of redelivery; other commands are handled meanwhile.
DELAY: Final = Backoff(0.5, 30.0)
# A command usually takes some milliseconds; one that does not end in time is redelivered.
STOP_SECONDS: Final = 2.0
# For header names, line ends and the protocol's own line.
_FRAME_BYTES: Final = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """How commands are consumed."""

    workers: int = 32
    """Commands under way at once in this process; their writes share batches."""
    ack_seconds: float = 30.0
    """After this long, a command whose consumer has died is delivered to another consumer."""
    fetch_seconds: float = 5.0
    """How long one request for the next command waits on the server."""


class CommandConsumer(Actor):
    """One of any number of consumers that share the commands; a turn is a connection's life."""

    cancel_again_seconds = CANCEL_SECONDS

    def __init__(
        self,
        connection: NatsConnection,
        deployment: Deployment,
        creator: GroupCreator,
        observe: Observer,
        settings: CommandSettings | None = None,
    ) -> None:
        super().__init__("commands")
        self.pace, self.backoff = Pace(seconds=RETRY.seconds_first, full=1), RETRY
        self._connection = connection
        self._deployment = deployment
        self._creator = creator
        self._observe = observe
        self._settings = settings or CommandSettings()
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
            await link.unless_ended(
                provide_command_streams(link, self._deployment, self._settings.ack_seconds)
            )
            await self._consume(link)
        except Exception as error:
            # The NATS client may raise anything.
            self._connection.report(error)
            if not link.ended.done():
                raise TryAgain from error
        return int(link.ended.done())

    async def _consume(self, link: Link) -> None:
        """Run the workers until the link ends or one of them raises."""
        workers = [
            asyncio.create_task(self._work(link), name=f"stretto command worker {number}")
            for number in range(self._settings.workers)
        ]
        working: set[asyncio.Future[None]] = set(workers)
        try:
            while working and not (link.ended.done() or self._idle.done()):
                done, _ = await asyncio.wait(
                    (*working, link.ended, self._idle), return_when=asyncio.FIRST_COMPLETED
                )
                working -= done
                for ended in done:
                    ended.result()
        finally:
            await end_tasks(workers)

    async def _work(self, link: Link) -> None:
        # One subscription per worker: an answer to one worker's request must not wake another.
        subscription = await link.jetstream.pull_subscribe_bind(
            self._deployment.command_consumer, stream=self._deployment.command_stream
        )
        try:
            while not self.is_stopping:
                # One at a time: larger fetches can stall (nats.py issues 933 and 986).
                with contextlib.suppress(TimeoutError):
                    (message,) = await subscription.fetch(1, timeout=self._settings.fetch_seconds)
                    await self._to_its_end(self._handle(link, message))
        finally:
            # Commands on their way to us are redelivered to other consumers.
            with contextlib.suppress(*NATS_ERRORS):
                await subscription.unsubscribe()

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

    async def _handle(self, link: Link, message: Msg) -> None:
        """Handle one delivery of a command."""
        headers = message.headers or {}
        try:
            reply_to = self._reply_to(headers)
            answer = await self._create(headers, message.data)
        except StrettoError as error:
            outcome = await self._refuse(link, message, error)
        except Exception as error:  # noqa: BLE001 a bug of ours must not stop the workers
            self._connection.report(error)
            outcome = await self._refuse(link, message, InternalError())
        else:
            outcome = answer.status.value
            await _reply(link, reply_to, *_success(answer))
            await message.ack()
        self._observe(CommandHandled(outcome))

    async def _create(self, headers: dict[str, str], body: bytes) -> Answer:
        if KEY not in headers:
            raise KeyMissing
        key = IdempotencyKey.parse(headers[KEY])
        try:
            owner = UserId(headers.get(OWNER))
        except ValueError as error:
            raise Unauthenticated(f"{OWNER}: {error}") from error
        if len(body) > BODY_BYTES_MAX:
            raise BodyTooLarge
        return await self._creator.create_from(owner, key, body, wait_seconds=CREATE_SECONDS)

    async def _refuse(self, link: Link, message: Msg, error: StrettoError) -> str:
        """Put off a command that may still succeed; reply to others, dead-letter invalid ones."""
        if error.retry is Retry.SAME_KEY:
            tries = message.metadata.num_delivered
            seconds = max(DELAY.seconds(tries - 1), error.retry_after_seconds or 0)
            await message.nak(seconds)
            return "put_off"
        with contextlib.suppress(RequestInvalid):
            reply_to = self._reply_to(message.headers or {})
            await _reply(link, reply_to, orjson.dumps(problem(error)), _problem_headers(error))
        if isinstance(error, AttemptFailed):
            # Settled: every later request reads the failure from the attempt.
            await message.ack()
            return "failed"
        await self._dead_letter(link, message, error)
        await message.term()
        return "buried"

    def _reply_to(self, headers: dict[str, str]) -> str | None:
        """Return the subject for the outcome; raises `RequestInvalid` if it is no reply subject."""
        subject = headers.get(REPLY_TO)
        own = self._deployment.reply_subjects
        if subject is not None and not re.fullmatch(
            rf"(_INBOX|{re.escape(own)}){_REPLY_TOKENS}", subject
        ):
            raise RequestInvalid([], f"{REPLY_TO} must begin with _INBOX. or {own}.")
        return subject

    async def _dead_letter(self, link: Link, message: Msg, error: StrettoError) -> None:
        """Store the problem document together with the command."""
        sequence = message.metadata.sequence.stream
        command = {
            "sequence": sequence,
            "headers": message.headers or {},
            "body": b64encode(message.data).decode(),
        }
        document = orjson.dumps({**problem(error), "command": command})
        if len(document) + _FRAME_BYTES > link.client.max_payload:
            document = orjson.dumps({**problem(error), "command": {"sequence": sequence}})
        message_id = f"{self._deployment.command_stream}/{sequence}"
        headers = {**_problem_headers(error), Header.MSG_ID.value: message_id}
        await link.jetstream.publish(self._deployment.dead_subject, document, headers=headers)


def _problem_headers(error: StrettoError) -> dict[str, str]:
    return {"Content-Type": PROBLEM_CONTENT_TYPE, STATUS_CODE: str(STATUS[error.code])}


def _success(answer: Answer) -> tuple[bytes, dict[str, str]]:
    headers = {
        "Content-Type": "application/json",
        STATUS_CODE: "201",
        "Idempotency-Status": answer.status.value,
    }
    if answer.status.is_replay:
        headers["Idempotent-Replayed"] = "true"
    return answer.document, headers


async def _reply(link: Link, subject: str | None, body: bytes, headers: dict[str, str]) -> None:
    if subject is not None:
        await link.client.publish(subject, body, headers=headers)
