"""Requests to JetStream that outlast a change of leaders.

In a cluster each stream and each consumer has a leader among the servers. If a leader's server
stops in order, another one leads at once. If it dies, the others wait 4 to 9 s before they elect
one; NATS has no setting for that. A request in between is answered "no responders", or not at all:
only its sender can notice that, and send it again. So nothing here waits long for an answer that
may have been lost with a leader, and nothing pauses longer than `AGAIN_SECONDS`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from nats.js.errors import APIError, NoStreamResponseError

from stretto.nats.connection import end_tasks
from stretto.runtime.cancelling import retrieve

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from nats.js.api import PubAck

    from stretto.nats.connection import Link

Result = TypeVar("Result")

# Between a request and its repetition. Some 40 go out before a dead leader has its successor.
AGAIN_SECONDS: Final = 0.25
# If no acknowledgement at all comes for so long, those that are missing will not come, unless the
# messages are still on their way.
QUIET_SECONDS: Final = 0.5
# A ping that the server answers later has waited behind messages. No round trip takes so long.
SLOW_SECONDS: Final = 0.25
# Of a ping, whose end is another.
_FOR_EVER_SECONDS: Final = 86_400
# Longer than the others may take to elect a leader; after that, the caller's own back-off begins.
LEADER_SECONDS: Final = 12.0
# JetStream's error codes of a server that knows no leader, or is the leader no more.
_LEADERLESS: Final = (10008, 10009)


@dataclass(frozen=True, slots=True)
class Unsent:
    """A message for a stream."""

    subject: str
    body: bytes
    headers: dict[str, str]


async def answered(ask: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Return the first answer to a question that does no harm if it is asked more than once.

    Earlier questions stay open: a server that is slow, not dead, answers one of them. Raises
    `NATS_ERRORS`, for example `TimeoutError`.
    """
    asked: list[asyncio.Task[Result]] = []
    try:
        async with asyncio.timeout(LEADER_SECONDS):
            while True:
                asked.append(asyncio.create_task(ask(), name="stretto nats question"))
                done, _ = await asyncio.wait(
                    [each for each in asked if not each.done()],
                    timeout=AGAIN_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for question in done:
                    if not _is_lost(question):
                        return question.result()
                if done:
                    await asyncio.sleep(AGAIN_SECONDS)
    finally:
        await end_tasks(asked)


async def acknowledged(
    link: Link, messages: Sequence[Unsent]
) -> list[PubAck | BaseException | None]:
    """Send messages to their stream; return the answer to each, None where it is lost.

    A message without an answer may be stored: send it again under its `Nats-Msg-Id`.
    """
    sending = [
        asyncio.create_task(
            link.jetstream.publish(each.subject, each.body, headers=each.headers),
            name="stretto nats message",
        )
        for each in messages
    ]
    left = set(sending)
    try:
        while left:
            before = len(left)
            _, left = await asyncio.wait(left, timeout=QUIET_SECONDS)
            if len(left) == before and not await _is_slow(link):
                break
    finally:
        # Those that have ended, too: nothing looks at them where this is cancelled.
        await end_tasks(sending)
    return [None if _is_lost(each) else each.exception() or each.result() for each in sending]


async def _is_slow(link: Link) -> bool:
    """Wait until the server has all that was sent; return whether that took time. `NATS_ERRORS`.

    It has not answered what was still on its way. To send that again would make the link slower.
    """
    # It lasts until its answer, or as long as the connection: the client stops reading, without a
    # word to us, at an answer to a ping that was cancelled.
    ping = asyncio.create_task(link.client.flush(_FOR_EVER_SECONDS), name="stretto nats ping")

    def cancel(_: object) -> None:
        ping.cancel()

    def forget(_: object) -> None:
        link.ended.remove_done_callback(cancel)
        retrieve(ping)

    link.ended.add_done_callback(cancel)
    ping.add_done_callback(forget)
    for seconds in (SLOW_SECONDS, LEADER_SECONDS):
        await asyncio.wait([ping], timeout=seconds)
        if ping.done():
            # In the midst of its end, the client raises errors of all kinds.
            if ping.cancelled() or ping.exception() is not None:
                raise ConnectionResetError("the connection was lost")
            return seconds > SLOW_SECONDS
    raise TimeoutError("the server does not answer a ping")


def _is_lost(request: asyncio.Task[Any]) -> bool:
    """Whether a request has ended without the answer of a leader."""
    if request.cancelled():
        return True
    error = request.exception()
    return isinstance(error, (TimeoutError, NoStreamResponseError)) or (
        isinstance(error, APIError) and error.err_code in _LEADERLESS
    )
