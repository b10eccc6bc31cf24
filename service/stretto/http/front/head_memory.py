"""What the head of a request takes in memory, and what lets go of it.

aiohttp's parser makes several objects of each field, and keeps them until the next head begins. What
takes a message from the queue keeps it for as long, and so does the request that is made of it. So a
connection that sends one head of 30 KB and then nothing would hold 100 KiB of memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

if TYPE_CHECKING:
    from aiohttp.http import RawRequestMessage
    from aiohttp.web_request import BaseRequest

# For each byte of a head: names and values as bytes and as text, and names once more in lower case.
MEMORY_SHARE: Final = 4
# If it is not ASCII: text with a character beyond the Basic Multilingual Plane has four bytes for each.
MEMORY_SHARE_NO_ASCII: Final = 6
# Of each field, beside its bytes: tuples and the heads of objects.
FIELD_MEMORY: Final = 160
_NO_FIELDS: Final = CIMultiDictProxy(CIMultiDict[str]())
_NOWHERE: Final = URL("/")


class LargeHead:
    """A complete head that takes much memory, in place of its message in aiohttp's queue.

    aiohttp keeps what it takes from there until the connection's next request.
    """

    __slots__ = ("_message", "memory_bytes")

    def __init__(self, message: RawRequestMessage, memory_bytes: int) -> None:
        self._message: RawRequestMessage | None = message
        self.memory_bytes = memory_bytes

    def take(self) -> RawRequestMessage:
        """Return the message, and keep it no longer."""
        message, self._message = self._message, None
        assert message is not None
        return message


def least_memory(message: RawRequestMessage, head_bytes: int) -> int:
    """Return what a complete head of so many bytes takes in memory, if it is ASCII."""
    return MEMORY_SHARE * head_bytes + FIELD_MEMORY * len(message.raw_headers)


def memory_of(message: RawRequestMessage, head_bytes: int) -> int:
    """Return what a complete head of so many bytes takes in memory."""
    memory = least_memory(message, head_bytes)
    if not (message.path.isascii() and all(value.isascii() for _, value in message.raw_headers)):
        memory += (MEMORY_SHARE_NO_ASCII - MEMORY_SHARE) * head_bytes
    return memory


def memory_of_part(data: bytes) -> int:
    """Return what a part of a head takes in memory."""
    share = MEMORY_SHARE if data.isascii() else MEMORY_SHARE_NO_ASCII
    return share * len(data) + FIELD_MEMORY * data.count(b"\n")


def drop_fields(request: BaseRequest) -> None:
    """Keep the fields of a request no longer, whose work goes on without them."""
    message = request._message  # noqa: SLF001 where aiohttp keeps them
    request._message = message._replace(headers=_NO_FIELDS, raw_headers=())  # noqa: SLF001
    request._headers = _NO_FIELDS  # noqa: SLF001
    request._cache.clear()  # noqa: SLF001 where it keeps what was made of them and of the target


def drop_head(request: BaseRequest) -> None:
    """Keep no part of a request's head that is large; nothing reads it any more."""
    drop_fields(request)
    message = request._message  # noqa: SLF001 where aiohttp keeps it
    request._message = message._replace(path="/", url=_NOWHERE)  # noqa: SLF001
    request._rel_url = _NOWHERE  # noqa: SLF001
    if isinstance(request, web.Request):
        request._match_info = None  # noqa: SLF001 as here
