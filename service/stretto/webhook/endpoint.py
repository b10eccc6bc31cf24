"""WebhookEndpoint: sends signed events to one address over HTTP.

The address comes from a setting, and its name is resolved by a DNS that we do not control. So the
endpoint follows no redirect, uses no cookie and no proxy, and connects to no address that is not
public, unless that is allowed. The check is made where the socket is made: it holds for the very
address that is connected to.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import socket
import time
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import aiohttp

from stretto.network import network_failure
from stretto.runtime.bounded_answers import BoundedConnector
from stretto.runtime.lookups import loop_with_own_lookups
from stretto.targets.bus import CONTENT_TYPE
from stretto.webhook.rules import (
    Answered,
    NotCalled,
    NotConnected,
    Unanswered,
    is_public,
    sign,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from aiohttp import AddrInfoType

    from stretto.webhook.rules import Answer, WebhookSettings

# Standard Webhooks recommends 15 to 30 s, from the first packet to the last.
SEND_SECONDS: Final = 15.0
# Of this, for a connection with its TLS. One that takes longer is not opened.
CONNECT_SECONDS: Final = 5.0
# The body of an answer is not used. A body up to this size, which comes in this time, is read, so that
# the connection is kept.
ANSWER_BYTES_MAX: Final = 16 * 1024
ANSWER_SECONDS: Final = 1.0
# The last one is for a name that no resolver takes.
_NOT_CONNECTED: Final = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, UnicodeError)
_NO_FIELDS: Final[Mapping[str, str]] = MappingProxyType({})


class AddressRefused(OSError):
    """The address is not public."""


class WebhookEndpoint:
    """An `Endpoint`; use as `async with`."""

    def __init__(
        self,
        settings: WebhookSettings,
        *,
        send_seconds: float = SEND_SECONDS,
        now_seconds: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._send_seconds = send_seconds
        self._now_seconds = now_seconds
        self.connections_opened = 0
        """Without those that are used again, which show nothing: they may be dead."""

    async def __aenter__(self) -> Self:
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_end.append(self._note_opened)
        resolver = aiohttp.ThreadedResolver(loop_with_own_lookups())
        self._session = aiohttp.ClientSession(
            connector=BoundedConnector(
                body_bytes_max=ANSWER_BYTES_MAX, socket_factory=self._socket, resolver=resolver
            ),
            trace_configs=[trace],
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._send_seconds, sock_connect=CONNECT_SECONDS),
            auto_decompress=False,
            headers={"User-Agent": "stretto", "Content-Type": CONTENT_TYPE},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    @property
    def url_digest(self) -> bytes:
        """SHA-256 of its URL: it differs if the settings name another endpoint."""
        return hashlib.sha256(self._settings.webhook_url.encode()).digest()

    async def send(
        self, event_id: UUID, body: bytes, fields: Mapping[str, str] = _NO_FIELDS
    ) -> Answer:
        """Send an event with further header fields; every network error is returned as an answer."""
        now = self._now_seconds()
        headers = {
            **fields,
            "webhook-id": str(event_id),
            "webhook-timestamp": str(int(now)),
            "webhook-signature": sign(self._settings.webhook_secret, str(event_id), int(now), body),
        }
        try:
            async with self._session.post(
                self._settings.webhook_url, data=body, headers=headers, allow_redirects=False
            ) as response:
                # The status is known, and it alone decides: no delivery waits for the rest.
                with suppress(aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError):
                    async with asyncio.timeout(ANSWER_SECONDS):
                        await response.content.readexactly(ANSWER_BYTES_MAX)
                return Answered(
                    response.status, _retry_after(response.headers.get("Retry-After", ""), now)
                )
        except (aiohttp.ClientError, TimeoutError, UnicodeError) as error:
            if isinstance(getattr(error, "os_error", None), AddressRefused):
                return NotCalled()
            # The errors' texts may contain the address, which may contain a secret.
            reason = network_failure(error)
            return NotConnected(reason) if isinstance(error, _NOT_CONNECTED) else Unanswered(reason)

    async def is_blocked(self) -> bool:
        """Whether it would not be called now, because none of its addresses is public."""
        if self._settings.webhook_allow_private:
            return False
        host = urlsplit(self._settings.webhook_url).hostname or ""
        try:
            found = await loop_with_own_lookups().getaddrinfo(host, None)
        except (OSError, UnicodeError):
            # Unknown now: the next try decides.
            return False
        return not any(is_public(str(address[0])) for *_, address in found)

    async def _note_opened(self, *_: object) -> None:
        self.connections_opened += 1

    def _socket(self, addr_info: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = addr_info
        if not (self._settings.webhook_allow_private or is_public(str(address[0]))):
            raise AddressRefused(errno.EACCES, "address is not public")
        return socket.socket(family, kind, protocol)


def _retry_after(text: str, now: float) -> float | None:
    """Return the seconds of a `Retry-After` (RFC 9110, 10.2.3), which is a number or a date."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    # The latter for a year or a zone of many digits.
    except (ValueError, OverflowError):
        return None
    return max(0.0, at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now)
