"""The NATS client, with our credentials, and safe against whatever others may publish.

A server passes on a block of headers and a subject as they come, whatever bytes they have. The
original client's read loop ends at those that it cannot parse: its connection is then deaf, and the
next one gets the same message again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import ParseResult, unquote, urlsplit

import nats.aio.client

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from stretto.nats.access import Credentials

# JetStream's reply subject for the acknowledgement of a stored message.
_ACKNOWLEDGE: Final = "$JS.ACK."


class _ServerUrl(ParseResult):
    """A server's URL whose user, password or token are decoded: the original sends them as written.

    Otherwise no password could have a / or a #, which end a URL's host.
    """

    __slots__ = ()

    @property
    def username(self) -> str | None:
        """The user, or the token where there is no password."""
        return _decoded(super().username)

    @property
    def password(self) -> str | None:
        """The password; None where there is none."""
        return _decoded(super().password)


class Client(nats.aio.client.Client):
    """A client that reads on after a message that it cannot parse."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        super().__init__()
        self._credentials = credentials

    async def connect(self, *args: Any, **options: Any) -> None:
        """Connect, with our credentials if there are any."""
        if self._credentials is not None:
            # What the original makes of credentials needs one more package.
            self._public_nkey = self._credentials.public_key
            options["signature_cb"] = self._credentials.sign
            if jwt := self._credentials.jwt:
                options["user_jwt_cb"] = jwt.encode
        await super().connect(*args, **options)

    def was_last_at(self, url: str) -> bool:
        """Whether it was connected, or tried to connect, to this server last."""
        if self._current_server is None:
            return False
        last, asked = self._current_server.uri, urlsplit(url)
        return (last.hostname, last.port) == (asked.hostname, asked.port or last.port)

    @staticmethod
    def _parse_server_uri(connect_url: str) -> ParseResult:
        return _ServerUrl(*nats.aio.client.Client._parse_server_uri(connect_url))  # noqa: SLF001

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        readable = subject.decode(errors="replace").encode()
        await super()._process_msg(sid, readable, reply, data, headers)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (IndexError, ValueError):
            # The message counts as one without headers.
            return None


def _decoded(part: str | None) -> str | None:
    return None if part is None else unquote(part)


def is_stored(message: Msg) -> bool:
    """Whether a stream delivers this message, rather than JetStream's answer or another client.

    Only the reply subject shows it: a stored message's sender chooses its headers, `Status` too.
    """
    return message.reply.startswith(_ACKNOWLEDGE)
