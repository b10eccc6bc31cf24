"""The NATS client, made safe against messages that any program with a right to publish can send.

A server passes on a block of headers and a subject as they come, whatever bytes they have. The
original client's read loop ends at those that it cannot parse: its connection is then deaf, and the
next one gets the same message again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import nats.aio.client

if TYPE_CHECKING:
    from nats.aio.msg import Msg

# JetStream's reply subject for the acknowledgement of a stored message.
_ACKNOWLEDGE: Final = "$JS.ACK."


class Client(nats.aio.client.Client):
    """A client that reads on after a message that it cannot parse."""

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


def is_stored(message: Msg) -> bool:
    """Whether a stream delivers this message, rather than JetStream's answer or another client.

    Only the reply subject tells: the sender of a stored message chooses its headers, `Status` too.
    """
    return message.reply.startswith(_ACKNOWLEDGE)
