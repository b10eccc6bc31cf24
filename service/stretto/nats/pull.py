"""Pull: takes the messages of a durable consumer, one at a time.

The NATS client's own `fetch` recognises JetStream's answers by their header `Status`. The sender of
a stored message can set it as well: such a message would fail the fetch, or come back for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self

import nats.errors
import orjson
from nats.js.api import Header, StatusCode

from stretto.nats.client import is_stored
from stretto.nats.connection import NATS_ERRORS

if TYPE_CHECKING:
    from types import TracebackType

    from nats.aio.msg import Msg

    from stretto.nats.connection import Link

# The server answers when a request ends. A request that is made before that answer would leave two
# of them open.
LATE_SECONDS: Final = 1.0
# After a request that the server ended at once, for example for a new leader, or because the consumer
# lets no more of them wait: the next one would be ended at once as well, and again.
CONFLICT_SECONDS: Final = 0.25
# No message in time.
_NOTHING: Final = (StatusCode.NO_MESSAGES, StatusCode.REQUEST_TIMEOUT)


class Pull:
    """One task's requests to a consumer; has its own inbox, since an answer must wake no other."""

    def __init__(self, link: Link, stream: str, consumer: str, wait_seconds: float) -> None:
        """Let each request wait on the server for `wait_seconds`."""
        self._client = link.client
        self._wait_seconds = wait_seconds
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        # One message: larger requests can stall (nats.py issues 933 and 986).
        self._request = orjson.dumps({"batch": 1, "expires": int(wait_seconds * 1e9)})
        self._inbox = link.client.new_inbox()

    async def __aenter__(self) -> Self:
        self._subscription = await self._client.subscribe(self._inbox)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Messages on their way to us are redelivered to other consumers.
        with contextlib.suppress(*NATS_ERRORS):
            await self._subscription.unsubscribe()

    async def next(self) -> Msg | None:
        """Return the next message; None if there was none in time.

        Raises `NATS_ERRORS`, for example if the stream or its consumer is gone.
        """
        if not self._subscription.pending_msgs:
            await self._client.publish(self._subject, self._request, reply=self._inbox)
        try:
            message = await self._subscription.next_msg(self._wait_seconds + LATE_SECONDS)
        except TimeoutError:
            return None
        if is_stored(message):
            return message
        headers = message.headers or {}
        status = headers.get(Header.STATUS.value)
        if status is None or status in _NOTHING:
            return None
        if status == StatusCode.CONFLICT:
            await asyncio.sleep(CONFLICT_SECONDS)
            return None
        raise nats.errors.Error(
            f"JetStream answers {status} {headers.get(Header.DESCRIPTION.value, '')}".rstrip()
        )
