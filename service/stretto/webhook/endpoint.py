"""WebhookEndpoint: sends events to one address, over HTTP, signed.

The address is somebody's setting and its name somebody's DNS: no redirect is followed, no cookie or
proxy used, and no address connected to that is not public, unless that is allowed. The last is seen
to where the socket is made, so that it holds for the very address that is connected to.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import aiohttp

from stretto.events.event import CONTENT_TYPE
from stretto.network import network_failure
from stretto.webhook.rules import Answered, NotCalled, Unanswered, is_public, sign

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from aiohttp import AddrInfoType

    from stretto.webhook.rules import Answer, WebhookSettings

# Standard Webhooks recommends 15 to 30 s, from the first packet to the last.
SEND_SECONDS: Final = 15.0
# Nobody reads what is answered. What is no longer than this does not cost its connection.
ANSWER_BYTES_MAX: Final = 16 * 1024


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

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(socket_factory=self._socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._send_seconds),
            auto_decompress=False,
            headers={"User-Agent": "stretto", "Content-Type": CONTENT_TYPE},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(self, event_id: UUID, body: bytes) -> Answer:
        """Send an event; whatever goes wrong on the way is an answer too."""
        now = self._now_seconds()
        headers = {
            "webhook-id": str(event_id),
            "webhook-timestamp": str(int(now)),
            "webhook-signature": sign(self._settings.secrets, str(event_id), int(now), body),
        }
        try:
            async with self._session.post(
                self._settings.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                # The status has come, and it decides.
                with suppress(aiohttp.ClientError, TimeoutError):
                    await response.content.read(ANSWER_BYTES_MAX)
                return Answered(
                    response.status, _retry_after(response.headers.get("Retry-After", ""), now)
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            if isinstance(getattr(error, "os_error", None), AddressRefused):
                return NotCalled()
            # Their texts may hold the address, and that a secret.
            return Unanswered(network_failure(error))

    async def is_blocked(self) -> bool:
        """Whether it would not be called now, because no address of its is public."""
        if self._settings.is_private_allowed:
            return False
        host = urlsplit(self._settings.url).hostname or ""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except (OSError, UnicodeError):
            # What is not known now, a try will say.
            return False
        return not any(is_public(str(place[0])) for *_, place in found)

    def _socket(self, addr_info: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, place = addr_info
        if not (self._settings.is_private_allowed or is_public(str(place[0]))):
            raise AddressRefused(errno.EACCES, "address is not public")
        return socket.socket(family, kind, protocol)


def _retry_after(text: str, now: float) -> float | None:
    """Return the seconds that a `Retry-After` tells (RFC 9110, 10.2.3), as number or as date."""
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    return max(0.0, at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now)
