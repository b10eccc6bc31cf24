"""Requests to one service as one user, tried again while that may help."""

from __future__ import annotations

import itertools
import logging
import random
from asyncio import sleep, timeout
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp

from stretto.client.connections import NoConnectionError, replying, shortage
from stretto.client.replies import BACKOFF_SECONDS_FIRST, Reply, TryAgainError, foreign
from stretto.network import network_failure

BACKOFF_SECONDS_MAX: Final = 2.0
# Until the reply begins, and the longest silence in it. The service answers within its own wait of 10 s:
# where nothing comes in 15 s the connection is lost. A body of 256 KiB has 30 s more, as long as the
# service takes one. A reply that keeps coming is read, however slow its link is: the call's own time
# bounds it.
TRY_SECONDS_MAX: Final = 15.0
BYTES_PER_SECOND_MIN: Final = 8740
# Several times as much as a page of the largest groups: more would only fill the program's memory.
REPLY_BYTES_MAX: Final = 16 * 2**20

# Below the host's usual level: a retry is the normal way, and stdout is the host's own.
_LOGGER: Final = logging.getLogger("stretto")

Token = str | Callable[[], Awaitable[str]]
T = TypeVar("T")


class Calls:
    """Sends the requests of one user over the given session.

    A token that is an async function is asked for before each try; what it raises ends the call. Raises
    `aiohttp.InvalidURL` for a `base_url` that is neither http nor https. One that is empty or begins with
    a slash is relative to the session's own.
    """

    def __init__(self, session: aiohttp.ClientSession, base_url: str, token: Token) -> None:
        if base_url and not base_url.lower().startswith(("http://", "https://", "/")):
            raise aiohttp.InvalidURL(base_url, "base_url must begin with http:// or https://")
        self._session = session
        self._url = base_url.rstrip("/") + "/v1/"
        self._token = token

    async def call(  # noqa: PLR0913 the fields of a request
        self,
        method: str,
        path: str,
        read: Callable[[Reply], T],
        *,
        timeout_seconds: float,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str | int] | None = None,
        body: bytes | None = None,
        warning: str = "",
    ) -> T:
        """Return what `read` makes of a reply; try again for as long as it says so.

        Raises what `read` and the token's function raise, and `TimeoutError`, with the last reason and a
        warning.
        """
        tries = Tries()
        try_seconds = TRY_SECONDS_MAX + len(body or b"") / BYTES_PER_SECOND_MIN

        async def send() -> T:
            async with self.opened(
                method,
                path,
                headers=headers or {},
                params=params or {},
                body=body,
                times=aiohttp.ClientTimeout(total=None, sock_read=try_seconds),
                head_seconds=try_seconds,
            ) as response:
                return read(await reply_of(response))

        try:
            async with timeout(timeout_seconds) as scope:
                return await tries.until_it_answers(send)
        except TimeoutError:
            # One of the token's function is the caller's own.
            if not scope.expired():
                raise
            why = tries.last_error or shortage(self._session, self._url) or "no answer"
            message = f"no outcome within {timeout_seconds} s ({why})"
            raise TimeoutError(message + warning) from tries.last_error

    @asynccontextmanager
    async def opened(  # noqa: PLR0913 the fields of a request
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        params: Mapping[str, str | int],
        times: aiohttp.ClientTimeout,
        head_seconds: float | None = None,
        body: bytes | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request once; where the network fails, also in the block, raise `TryAgainError`.

        It fails too where the reply does not begin within `head_seconds`, or within the `times`. That is
        a `NoConnectionError` if the session had no connection left for it.
        A token that is refused is asked for once again: it may have ended on the way.
        """
        for is_last in (True,) if isinstance(self._token, str) else (False, True):
            token = await self._current_token()
            try:
                async with replying(
                    self._session,
                    method,
                    self._url + path,
                    head_seconds=head_seconds,
                    data=body,
                    params=params,
                    headers={**headers, "Authorization": f"Bearer {token}"},
                    # A redirected POST would go on as a GET.
                    allow_redirects=False,
                    # Replies are judged here, whatever the caller's session does with its own.
                    raise_for_status=False,
                    timeout=times,
                ) as response:
                    if response.status != HTTPStatus.UNAUTHORIZED or is_last:
                        yield response
                        return
            except aiohttp.InvalidURL:
                raise
            except (aiohttp.ClientError, TimeoutError) as error:
                raise self._failure(error) from error

    def _failure(self, error: aiohttp.ClientError | TimeoutError) -> TryAgainError:
        why = shortage(self._session, self._url) if isinstance(error, TimeoutError) else ""
        return NoConnectionError(why) if why else TryAgainError(network_failure(error))

    async def _current_token(self) -> str:
        return self._token if isinstance(self._token, str) else await self._token()


async def reply_of(response: aiohttp.ClientResponse) -> Reply:
    """Read a reply; raises `ClientError` for one that is larger than any of the service's."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > REPLY_BYTES_MAX:
            if response.ok:
                raise foreign(response.status)
            # A proxy's page: it is judged by its status.
            body.clear()
            break
    return Reply(response.status, response.headers, bytes(body))


class Tries:
    """Calls a function until it does not raise `TryAgainError`, with pauses between the tries."""

    def __init__(self) -> None:
        self.last_error: TryAgainError | None = None

    async def until_it_answers(self, function: Callable[[], Awaitable[T]]) -> T:
        """Return what the function returns, and raise what else it raises."""
        for failures in itertools.count():
            try:
                return await function()
            except TryAgainError as error:
                self.last_error = error
                seconds = error.retry_after_seconds or _backoff_seconds(failures)
                _LOGGER.debug("client.retried cause=%r pause_seconds=%.1f", str(error), seconds)
            await sleep(seconds)
        raise AssertionError  # the loop returns or raises


def _backoff_seconds(failures: int) -> float:
    """Return a pause that doubles, with jitter: clients that failed together come back apart."""
    # The exponent is bounded too: a float has no 2**1024.
    longer = BACKOFF_SECONDS_FIRST * 2.0 ** min(failures, 16)
    return min(BACKOFF_SECONDS_MAX, longer + random.uniform(0, BACKOFF_SECONDS_FIRST))
