"""The side of a connection that knows how much memory the heads of its requests take.

Small ones are not counted: nearly all are, and come in one packet. A large one counts from its first
byte until its answer is written, and then nothing of it is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from aiohttp.web_protocol import _ErrInfo

from stretto.http.front.arrived import COUNTED_BYTES_MIN
from stretto.http.front.chunks import memory_of_body
from stretto.http.front.head_memory import (
    LargeHead,
    drop_fields,
    drop_head,
    least_memory,
    memory_of,
    memory_of_part,
)
from stretto.http.front.heads import head_bytes
from stretto.http.front.unparsed_checks import UnparsedChecks
from stretto.http.problems import drop_frames

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

    from stretto.errors import StrettoError
    from stretto.http.front.limits import LimitedServer


class CountedHeads(UnparsedChecks):
    """aiohttp's side of a connection of which large heads are counted."""

    __slots__ = ("_has_turn", "_is_head_dropped", "_large", "_large_memory", "_part_memory")

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, **options)
        self._part_memory = 0
        """Of the head that is not complete, at most; valid if the last byte belongs to one."""
        self._large: BaseRequest | None = None
        """The request in progress, if its head is large and kept."""
        self._large_memory = 0
        """Of that head."""
        self._has_turn = False
        """Whether work has begun for the request in progress."""
        self._is_head_dropped = False
        """Whether the head of that request was dropped before."""

    @property
    def is_in_head(self) -> bool:
        """Whether the rest of a head is all that is waited for."""
        has_begun = self._ends_in_head or bool(self._late)
        return has_begun and not (self._owes_answers or self._is_in_body or self._owes_unparsed)

    @property
    def _requests_memory(self) -> int:
        """What is taken by heads that are not complete or in progress, and by all that is queued."""
        memory = self._large_memory
        if self._ends_in_head:
            memory += self._part_memory
        for message, body in self._messages:
            memory += memory_of_body(body)
            if isinstance(message, LargeHead):
                memory += message.memory_bytes
            elif len(self._messages) > 1 and not isinstance(message, _ErrInfo):
                memory += least_memory(message, head_bytes(message))
        return memory

    def _read_part(self, data: bytes) -> bool:
        """Parse a part of one request; note how much memory its head takes."""
        count, was_in_body = self._request_count, self._is_in_body
        is_complete = super()._read_part(data)
        if self._request_count > count:
            self._part_memory = 0
            self._note_head()
        elif not was_in_body:
            self._part_memory += memory_of_part(data)
        return is_complete

    def _note_head(self) -> None:
        """Note how large the newest head is."""
        message, body = self._messages[-1]
        if isinstance(message, _ErrInfo):
            # The error refers to all that was read, and may wait behind other requests.
            drop_frames(message.exc)
            self._renew_parser()
        elif least_memory(message, self._newest_head_bytes) >= COUNTED_BYTES_MIN:
            memory = memory_of(message, self._newest_head_bytes)
            self._messages[-1] = cast("Any", LargeHead(message, memory)), body

    def _refuse_head(self, error: StrettoError) -> None:
        """Answer the newest head with an error, and keep nothing of it."""
        super()._refuse_head(error)
        self._ends_in_head = False
        self._renew_parser()

    def begin_head(self, request: BaseRequest, memory_bytes: int) -> None:
        """Note that a request has a large head; it waits for its turn."""
        self._large, self._large_memory = request, memory_bytes
        self._has_turn = False

    def begin_work(self) -> bool:
        """Note that a request has its turn; return whether it still has its head."""
        self._has_turn = True
        return not self._is_head_dropped

    def _refuse_waiting(self) -> None:
        """Drop the head of a request that waits for its turn: it is answered then with an error."""
        if self._large is not None and not self._has_turn:
            self._drop_large()
            self._is_head_dropped = True

    def _drop_large(self) -> None:
        """Keep nothing of the head in progress."""
        if self._large is not None:
            drop_head(self._large)
            self._forget_large()

    def drop_fields(self) -> None:
        """Keep the fields of the request in progress no longer: its work may go on for a day."""
        if self._large is not None:
            drop_fields(self._large)
            self._forget_large()

    def _forget_large(self) -> None:
        self._large = None
        self._large_memory = 0
        # The parser may have begun with the next request, and drops this one's head itself.
        is_idle = not (self._messages or self._unparsed or self._ends_in_head or self._is_in_body)
        if self._has_all or is_idle:
            self._renew_parser()
