"""What a creation can be told at the door: when it has been read, and before a task begins for it.

An exact repeat of what has succeeded is answered here, for half of what it would cost further
inside: retries are the normal case, and come in storms. So is a creation that there is no room for
(`shedding.py`). Whatever is asked in any other way goes its usual way, and is told the same.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp import HttpVersion11, hdrs
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import SERVER_SOFTWARE

from stretto.http.groups import created_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aiohttp import StreamReader
    from aiohttp.http import RawRequestMessage

    from stretto.http.service import Service

CREATE_PATH: Final = "/v1/groups"


class DoorParser:
    """Reads requests as aiohttp's parser does, and keeps back those that `answer` takes."""

    __slots__ = ("_answer", "_feed", "_parser", "message_consumed")

    def __init__(
        self, parser: Any, answer: Callable[[RawRequestMessage, StreamReader], bool]
    ) -> None:
        self._parser = parser
        self._feed = parser.feed_data
        self._answer = answer
        self.message_consumed = parser.message_consumed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> tuple[Sequence[Any], bool, bytes]:
        """Return the requests that have come with these bytes, but for one that is answered."""
        messages, upgraded, tail = self._feed(data)
        if len(messages) == 1 and not upgraded and self._answer(*messages[0]):
            self.message_consumed()
            messages = ()
        return messages, upgraded, tail


def is_plain_creation(message: RawRequestMessage, body: StreamReader) -> bool:
    """Whether it is a creation that is here in full, on a connection that goes on after it."""
    return (
        message.path == CREATE_PATH
        and message.method == hdrs.METH_POST
        and message.version is HttpVersion11
        and not message.should_close
        and body.is_eof()
    )


def replay(service: Service, message: RawRequestMessage, body: StreamReader) -> bytes | None:
    """Return the answer to an exact repeat of a plain creation, as it is sent."""
    headers = message.headers
    keys = headers.getall("Idempotency-Key", ())
    tokens = headers.getall(hdrs.AUTHORIZATION, ())
    # Whoever reads it cannot give it back; a request without a body has no such thing.
    parts: Sequence[bytes] = getattr(body, "_buffer", ())
    if (
        len(keys) != 1
        or len(tokens) != 1
        or len(parts) != 1
        or headers.get(hdrs.CONTENT_TYPE) != "application/json"
        or message.compression is not None
        or hdrs.EXPECT in headers
        # A quoted key has to be read first; one that is not ASCII is none.
        or keys[0].startswith('"')
        or not keys[0].isascii()
    ):
        return None
    verified = service.authenticator.recall(tokens[0])
    if verified is None:
        return None
    answer = service.creator.replay(verified.owner, keys[0], parts[0])
    if answer is None:
        return None
    service.metrics.count_request(hdrs.METH_POST, CREATE_PATH, HTTPStatus.CREATED, None)
    fields = created_fields(CREATE_PATH, answer)
    # Those that aiohttp adds, in its order.
    fields[hdrs.CONTENT_TYPE] = "application/json"
    fields[hdrs.CONTENT_LENGTH] = str(len(answer.document))
    fields[hdrs.DATE] = rfc822_formatted_time()
    fields[hdrs.SERVER] = SERVER_SOFTWARE
    return written(HTTPStatus.CREATED, fields, answer.document)


def written(status: HTTPStatus, fields: Mapping[str, object], body: bytes) -> bytes:
    """Return an answer as it is sent, with these header fields and no others."""
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    return f"HTTP/1.1 {status} {status.phrase}\r\n{''.join(lines)}\r\n".encode() + body
