"""The side of a connection that counts what has arrived and no work has taken over.

The sum of all connections is bounded (`arrived.py`). Where it is too much, a connection is refused what
it has sent: the request whose head is not complete or waits for its turn, whose body is read or waits to
be parsed, and the first that is queued, are answered 503, and the connection ends. What is worked on
already is answered before; with a large head, which its work may read until then, it is not answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stretto.http.bodies import BodyClient, too_many_bodies
from stretto.http.front.chunks import memory_of_body
from stretto.http.front.counted_heads import CountedHeads
from stretto.http.front.heads import authorization_in

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from aiohttp import StreamReader, web
    from aiohttp.web_protocol import _ErrInfo
    from aiohttp.web_request import BaseRequest

    from stretto.domain import UserId
    from stretto.http.front.limits import LimitedServer


class CountedArrival(CountedHeads, BodyClient):
    """aiohttp's side of a connection of which all that arrives is counted."""

    __slots__ = (
        *("_arrived", "_begun", "_body_bytes", "_is_refused", "_refusal", "_refusal_turns"),
        *("_read_left_seconds", "_read_seconds", "_read_timer"),
    )

    def __init__(self, manager: LimitedServer, write_seconds: float, **options: Any) -> None:
        super().__init__(manager, write_seconds, **options)
        self._arrived = manager.arrived
        self._refusal_turns = manager.turns_of_refusals
        self._read_timer: asyncio.TimerHandle | None = None
        """Runs while a request has begun to arrive and is not complete."""
        self._read_seconds = self._read_left_seconds = manager.limits.read_timeout_seconds
        """How long a request may take to arrive; what was left of it when it began to wait for us."""
        self._begun: StreamReader | None = None
        """The body of the request whose handler has begun, until its work has taken the body over."""
        self._body_bytes = 0
        """Of that body when it was read, and decompressed."""
        self._refusal: asyncio.Timeout | None = None
        """Ends the wait of that request, if it has come to read its body."""
        self._is_refused = False
        """Whether what has arrived was refused."""

    @property
    def arrived_bytes(self) -> int:
        """What has arrived and is not worked on yet."""
        count = len(self._unparsed) + len(self._rest) + len(self._held) + len(self._message_tail)
        count += len(self._late)
        count += self._requests_memory
        if self._begun is not None:
            count += max(memory_of_body(self._begun), self._body_bytes)
        return count

    def _must_wait_to_be_read(self, data: bytes) -> bool:
        """Return whether bytes wait until their connection is read; its time does not go on meanwhile.

        Where others than users wait, a token that is known names its user: a proxy's connection may have been
        another client's before, or this is the first request of a new one, and a large one.
        """
        if self.user is None and self._reading_turns.are_spent(self) and self._service is not None:
            self.user = self._service.authenticator.owner_of(authorization_in(data))
        must_wait = super()._must_wait_to_be_read(data)
        if must_wait:
            self._pause_read_timer()
        return must_wait

    def _note_arrived(self) -> None:
        """Count what has arrived."""
        if not self._is_refused:
            self._arrived.note(self)

    def _read_held(self) -> None:
        """Read what was held behind a request that is answered: it is held no longer."""
        has_held = bool(self._held)
        super()._read_held()
        if has_held:
            self._note_arrived()

    def begin(self) -> None:
        """Note that a handler begins to work for a request of this client."""
        super().begin()
        request = self._current_request
        if request is not None and request.body_exists:
            # Nothing of it need have come: a proxy sends the head by itself.
            self._begun = request.content
            if self._is_refused:
                # Python 3.11 begins a handler a turn of the loop after its message was taken.
                self._refuse_unread(self._begun)
        if self._begun is not None or self._messages:
            self._note_arrived()

    def begin_body(self, owner: UserId, refusal: asyncio.Timeout) -> None:
        """Note that the body is read, and whose it is: its token may be verified only now."""
        self.user = owner
        self._refusal = refusal

    def note_body(self, count: int) -> None:
        """Note how long the body is: decompressed, it is longer than what has arrived."""
        self._body_bytes = count
        self._note_arrived()

    def end_body(self) -> None:
        """Count the body no longer, and keep nothing of it."""
        if self._current_request is not None:
            # No host's middleware reads it here.
            self._current_request._read_bytes = None  # noqa: SLF001 where aiohttp keeps a body
        self._begun = self._refusal = None
        self._body_bytes = 0
        self._note_arrived()

    def _make_error_handler(
        self, err_info: _ErrInfo
    ) -> Callable[[BaseRequest], Awaitable[web.StreamResponse]]:
        """Return what answers a request that no handler has: in a turn, as handlers begin."""
        refuse = super()._make_error_handler(err_info)

        async def refuse_in_turn(request: BaseRequest) -> web.StreamResponse:
            self.waits_for_turn = True
            await self._refusal_turns.take(self)
            self.waits_for_turn = False
            return await refuse(request)

        return refuse_in_turn

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer; nothing of its request counts any more."""
        # aiohttp keeps it until the connection's next request.
        request._read_bytes = None  # noqa: SLF001 where aiohttp keeps a body that was read
        self.end_body()
        answered = await super().finish_response(request, resp, start_time)
        if self._large is not None:
            # Before the client has read the answer, or has closed its half after the last one.
            self._drop_large()
            self._note_arrived()
        return answered

    def drop_fields(self) -> None:
        """Keep the fields of the request in progress no longer: its work may go on for a day."""
        super().drop_fields()
        self._note_arrived()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the client."""
        self._stop_read_timer()
        self._is_refused = True
        self._arrived.forget(self)
        self._reading_turns.forget(self)
        super().connection_lost(exc)
        self._begun = self._refusal = self._large = None

    def refuse_arrived(self) -> None:
        """Answer what is not worked on yet with an error, and drop it; then the connection ends."""
        if self._is_refused or self.is_ending or self.transport is None:
            return
        self._is_refused = True
        if self._upgraded:
            # No session goes on behind a gap.
            self.close_at_once()
            return
        # Nothing more is read. What is held behind a creation in flight has no answer.
        self._has_all = True
        is_in_head = self._ends_in_head or bool(self._late and not self._is_in_body)
        self._unparsed = self._held = self._late = b""
        self._stop_read_timer()
        self._pause_transport_reading()
        self._refuse_waiting()
        queued = [body for _, body in self._messages]
        self._messages.clear()
        for body in queued:
            # The parser still has the last one, if that is not complete.
            self._drop_unread(body)
        self._request_count -= len(queued)
        is_begun_in_body = self._is_in_body and not (queued and queued[-1] is self._newest)
        if is_begun_in_body and self._newest is not None:
            if self._refusal is None:
                self._drop_unread(self._newest)
            self._refuse_body(too_many_bodies())
        elif self._refusal is not None:
            self._refusal.reschedule(self._loop.time())
        elif self._begun is not None and not self._begun.at_eof():
            self._refuse_unread(self._begun)
        elif self._large is not None:
            self.close_at_once()
            return
        if queued or is_in_head:
            self._refuse_head(too_many_bodies())

    def _refuse_unread(self, body: StreamReader) -> None:
        """Fail a complete body that its handler has not come to read."""
        self._drop_unread(body)
        body.set_exception(too_many_bodies())

    def _drop_unread(self, body: StreamReader) -> None:
        """Drop what has arrived of a body that nothing reads yet."""
        if body.exception() is None:
            body.read_nowait()

    @property
    def arriving_since(self) -> float | None:
        """Since when a request arrives, less the time in which it waited for us; None if none does."""
        if self._read_timer is not None:
            return self._read_timer.when() - self._read_seconds
        if self._waits_to_be_read:
            return self._loop.time() + self._read_left_seconds - self._read_seconds
        return None

    def _start_read_timer(self) -> None:
        if self._read_timer is None and not self._waits_to_be_read:
            self._read_timer = self._loop.call_later(
                self._read_left_seconds, self._cut_off, "too_slow"
            )

    def _pause_read_timer(self) -> None:
        """Have what is left of the time go on at the next start: meanwhile the client waits for us."""
        if self._read_timer is not None:
            left = self._read_timer.when() - self._loop.time()
            self._stop_read_timer()
            self._read_left_seconds = left

    def _stop_read_timer(self) -> None:
        self._read_left_seconds = self._read_seconds
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _cut_off(self, reason: str) -> None:
        """End a request that does not arrive in time."""
        raise NotImplementedError
