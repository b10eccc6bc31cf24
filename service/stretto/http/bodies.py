"""While a body is read, decompressed, and waits to be parsed: it may be refused, as one of too many.

Its request says here when that begins, and when the work has taken it over: from then on nothing of
it is kept. Our own server counts such bodies (`front/arrived.py`); a host's counts none.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs

from stretto.codec import LARGE_BODY_BYTES
from stretto.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp import web

    from stretto.domain import UserId

# When some have been refused, there is room again.
RETRY_AFTER_SECONDS: Final = 1


def too_many_bodies() -> Overloaded:
    """Return the error of a request that is refused while it arrives, or waits to be parsed."""
    return Overloaded(retry_after_seconds=RETRY_AFTER_SECONDS)


class BodyClient:
    """A connection that counts what has arrived."""

    __slots__ = ()

    user: UserId | None
    """Whose token the last request has shown."""

    def begin_body(self, owner: UserId, refusal: asyncio.Timeout) -> None:
        """Note whose body is read; one that is refused while it waits is ended by this time-out."""
        raise NotImplementedError

    def note_body(self, count: int) -> None:
        """Note how long the body is: decompressed, it is longer than what has arrived."""
        raise NotImplementedError

    def end_body(self) -> None:
        """Count the body no longer, and keep nothing of it."""
        raise NotImplementedError

    def drop_fields(self) -> None:
        """Keep the fields of the request in progress no longer: its work may go on for a day."""
        raise NotImplementedError


class BodyUnderWay:
    """One body that is counted; without a client, one that is not."""

    __slots__ = ("_client", "_refusal")

    def __init__(
        self, client: BodyClient | None = None, refusal: asyncio.Timeout | None = None
    ) -> None:
        self._client = client
        self._refusal = refusal

    def noted(self, body: bytes) -> bytes:
        """Return a body that was read, and note how long it is."""
        if self._client is not None:
            self._client.note_body(len(body))
        return body

    def hand_over(self) -> None:
        """Note that the work has it; raises `Overloaded` if it was refused in this turn of the loop."""
        if self._refusal is not None and self._refusal.when() is not None:
            raise too_many_bodies()
        if self._client is not None:
            self._client.end_body()


@asynccontextmanager
async def body_under_way(request: web.Request, owner: UserId) -> AsyncIterator[BodyUnderWay]:
    """Count the body that is read in the context; raises `Overloaded` where there are too many."""
    client = request.protocol
    content = request.content
    # Most bodies came with their heads, and are too small to count.
    is_small = content.is_eof() and content.total_bytes < LARGE_BODY_BYTES
    is_packed = hdrs.CONTENT_ENCODING in request.headers
    if not isinstance(client, BodyClient) or (is_small and not is_packed):
        yield BodyUnderWay()
        return
    refusal = asyncio.timeout(None)
    try:
        async with refusal:
            client.begin_body(owner, refusal)
            yield BodyUnderWay(client, refusal)
    except TimeoutError:
        if refusal.expired():
            raise too_many_bodies() from None
        raise
    finally:
        client.end_body()
