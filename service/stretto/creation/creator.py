"""GroupCreator: answers every request for a group, so that a key never makes two.

It decides what a request waits for. The first request of a key starts its flight (`flights.py`);
later ones wait for the flight's end, without a connection. The writers write the rows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

from stretto.codec import BODIES_PER_TURN, is_large, parse_json
from stretto.creation.attempt import AnswerStatus
from stretto.creation.flight import Answer, answer_of
from stretto.creation.flights import Flights
from stretto.creation.follower import Follower
from stretto.creation.hook_calls import HookCalls
from stretto.creation.outcomes import NO_BODY, OutcomeMemory, document_for, document_of_repeat
from stretto.domain import IdempotencyKey, NewGroup, UserId, digest, group_id_bytes
from stretto.errors import AttemptPending, KeyReused, StrettoError
from stretto.kinds import require_kind, require_seconds
from stretto.misuse import CreatedInHook, WrongEventLoop
from stretto.observations import AttemptAnswered, AttemptStrayed
from stretto.runtime.turns import Turns
from stretto.telemetry.request_context import CURRENT_REQUEST, trace_id_of
from stretto.uuids import uuid_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from stretto.creation.age import OutOfRange
    from stretto.creation.authorization import Authorization
    from stretto.creation.flight import Flight
    from stretto.creation.ports import AttemptStore, Writers
    from stretto.creation.settings import CreatorSettings
    from stretto.observations import Observer

WAIT_SECONDS_DEFAULT: Final = 10.0
WAIT_SECONDS_MAX: Final = 30.0
# The request that starts a flight waits this long even with `wait=0`: its own write is under way,
# and the answer "pending" would only cost its client another request.
OWN_WRITE_SECONDS: Final = 1.0
_REPLAYED: Final = AnswerStatus.REPLAYED  # Python 3.11 takes 0.2 µs to look it up.


class GroupCreator:
    """Creates groups, once per owner and key; use as `async with`, in one event loop."""

    def __init__(  # noqa: PLR0913 its parts; tests leave most of them out
        self,
        writers: Writers,
        attempts: AttemptStore,
        settings: CreatorSettings,
        observe: Observer,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        hooks: HookCalls | None = None,
        *,
        authorization: Authorization | None = None,
    ) -> None:
        """Take what knows which of the host's hooks run: none of them may await a creation.

        With an `authorization` nothing is claimed that the host has not allowed.
        """
        self._authorization = authorization
        self._observe = observe
        self._hooks = hooks or HookCalls()
        self._memory = OutcomeMemory(settings.outcomes_max)
        self._follower = Follower(writers, attempts, settings.lease_seconds, observe, pause)
        self.places = self._follower.places
        self._flights = Flights(
            writers,
            self._follower,
            self._memory,
            rate_limit=settings.rate_limit,
            stop_seconds=settings.stop_seconds,
        )
        self.turns = Turns(BODIES_PER_TURN)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Reject new requests and let every flight finish, for a bounded time. Idempotent."""
        await self._flights.stop()

    def forget(self) -> None:
        """Drop all outcomes: the database may be another one now, or has not said what was deleted."""
        self._memory.forget()

    def forget_group(self, id_: bytes) -> None:
        """Drop the outcome of a key whose group was deleted."""
        self._flights.forget(id_)

    def confirm(self, at_seconds: float) -> None:
        """Note that groups that were deleted before that time, by `boot_seconds`, are forgotten."""
        self._memory.confirm(at_seconds)

    @property
    def is_stopping(self) -> bool:
        """Whether new requests are rejected."""
        return self._flights.is_stopping

    @property
    def flights(self) -> int:
        """How many keys are in flight."""
        return len(self._flights)

    def flights_by_age(self) -> Mapping[str, int]:
        """Return how many keys are in flight, by class of age."""
        return self._flights.by_age()

    @property
    def outcomes(self) -> int:
        """How many successes are remembered."""
        return len(self._memory)

    async def create(
        self,
        key: IdempotencyKey,
        new_group: NewGroup,
        *,
        wait_seconds: float = WAIT_SECONDS_DEFAULT,
    ) -> Answer:
        """Create the group, or find the one that this owner and key have created already.

        Cancelling the call does not cancel the attempt; call again with the same key. Raises
        `KeyReused`, `AttemptFailed`, `GroupDeleted`, `AttemptPending`, `RateLimited`, `Overloaded`,
        `HookFailed` or `DatabaseUnavailable`, `CreationRefused` or `AuthorizeFailed` by the host's
        `authorize`, and `KeyInvalid` for a key that could not come over HTTP.
        """
        self.require_own_loop()
        require_kind("new_group", new_group, NewGroup)
        if type(key) is not IdempotencyKey:
            key = IdempotencyKey(key)
        id_ = group_id_bytes(new_group.owner, key)
        return await self._create(id_, self._memory.find(id_), new_group, NO_BODY, wait_seconds)

    async def create_from(  # noqa: PLR0913 by name alone
        self,
        owner: UserId,
        key: IdempotencyKey,
        body: bytes,
        *,
        wait_seconds: float = WAIT_SECONDS_DEFAULT,
        out_of_range: OutOfRange | None = None,
        claims: Mapping[str, Any] | None = None,
        parsed: Callable[[], object] = lambda: None,
    ) -> Answer:
        """Create the group that a request's JSON body asks for; as `create` otherwise.

        Most retries repeat their request byte by byte: such a body is not parsed again once it has
        succeeded. Raises `RequestInvalid` too, and `FirstSentOutOfRange` if `out_of_range` and the
        key has no attempt and no group. `claims` are those of the request's token. `parsed` is
        called when the body is kept no longer.
        """
        self.require_own_loop()
        require_kind("body", body, bytes)
        if type(key) is not IdempotencyKey:
            key = IdempotencyKey(key)
        owner = owner if type(owner) is UserId else UserId(owner)
        id_ = group_id_bytes(owner, key)
        known = self._memory.find(id_)
        if known is not None and (document := document_of_repeat(known, body)) is not None:
            return self._observed(document, _REPLAYED)
        if is_large(body):
            await self.turns.take(owner, BODIES_PER_TURN)
            known = self._memory.find(id_)  # It may have succeeded meanwhile.
        given = id_, known, NewGroup.parse(owner, parse_json(body), claims), digest(body)
        del body
        parsed()
        return await self._create(*given, wait_seconds, out_of_range=out_of_range)

    def begin(  # noqa: PLR0913 an object of them would be made for each request
        self,
        owner: UserId,
        key: str,
        body: bytes,
        *,
        wait_seconds: float,
        may_start: bool,
        then: Callable[[Answer | StrettoError], None],
        claims: Mapping[str, Any] | None = None,
    ) -> Answer | asyncio.Future[bytes] | None:
        """Do what `create_from` does, as far as that needs no task.

        Return the answer to a body that is repeated byte by byte. If such a body is in flight, or
        its flight may start and does, return a future: `then` gets the outcome, unless the future
        is cancelled. Return None for all else: `create_from` answers it, or raises the error.
        """
        id_ = group_id_bytes(owner, key)
        known = self._memory.find(id_)
        if known is not None:
            document = document_of_repeat(known, body)
            return None if document is None else self._observed(document, _REPLAYED)
        flight = self._flights.find(id_)
        deadline = self._loop.time() + wait_seconds
        if flight is not None:
            if flight.body_digest != digest(body) or not flight.may_be_joined:
                return None
            waiter = flight.join(deadline)
            waiter.add_done_callback(partial(self._answered, None, then))
            return waiter
        if not may_start or self._authorization is not None or is_large(body):
            return None
        try:
            IdempotencyKey(key)
            new_group = NewGroup.parse(owner, parse_json(body), claims)
            flight = self._flights.start(id_, new_group, new_group.fingerprint(), digest(body))
        except StrettoError:
            return None
        waiter = flight.join(deadline, max(deadline, self._loop.time() + OWN_WRITE_SECONDS))
        waiter.add_done_callback(partial(self._answered, flight, then))
        return waiter

    def _answered(
        self,
        own: Flight | None,
        then: Callable[[Answer | StrettoError], None],
        waiter: asyncio.Future[bytes],
    ) -> None:
        """Report the outcome to a request that waits without a task, unless it has left.

        `own` is the flight that this request has started; None if it has joined another's.
        """
        if not waiter.cancelled():
            answer = answer_of(waiter, _REPLAYED if own is None else own.status)
            outcome = answer.status if isinstance(answer, Answer) else answer.code
            self._observe(AttemptAnswered(outcome))
            then(answer)

    async def _create(
        self,
        id_: bytes,
        known: bytes | None,
        new_group: NewGroup,
        body_digest: bytes,
        wait_seconds: float,
        *,
        out_of_range: OutOfRange | None = None,
    ) -> Answer:
        """Answer from the known outcome, else from the key's flight, else from a new flight."""
        require_seconds("wait_seconds", wait_seconds)
        if (hook := self._hooks.caller()) is not None:
            raise CreatedInHook(hook)
        fingerprint = new_group.fingerprint()
        deadline, authorization = self._loop.time() + wait_seconds, self._authorization
        try:
            while True:
                if known is not None:
                    return self._observed(document_for(known, fingerprint), _REPLAYED)
                flight = self._flights.find(id_)
                if flight is None and out_of_range is not None:
                    whose = uuid_of(id_), new_group.owner, fingerprint
                    await self._follower.require_attempt(*whose, out_of_range)
                    # There is something to follow, or another request was quicker.
                    out_of_range, known = None, self._memory.find(id_)
                    continue
                if flight is None and authorization is not None and not self.is_stopping:
                    await authorization.require(id_, new_group)
                    authorization = None
                    # Another request of the key may have started, or succeeded, meanwhile.
                    known = self._memory.find(id_)
                    continue
                if flight is None:
                    flight = self._flights.start(id_, new_group, fingerprint, body_digest)
                    own_deadline = max(deadline, self._loop.time() + OWN_WRITE_SECONDS)
                    return self._observed(await flight.wait(deadline, own_deadline), flight.status)
                if flight.fingerprint == fingerprint and flight.may_be_joined:
                    return self._observed(await flight.wait(deadline), _REPLAYED)
                # Another body, or a deletion meanwhile: what the flight leaves behind decides.
                try:
                    await flight.wait(deadline)
                except AttemptPending:
                    raise
                except StrettoError:
                    pass
                # A failure is not remembered: then this request starts a flight, and finds out.
                known = self._memory.find(id_)
        except StrettoError as error:
            if isinstance(error, KeyReused) and known is not None:
                # Without `known` it comes from a follower, which has reported it.
                owner, trace_id = new_group.owner, trace_id_of(CURRENT_REQUEST.get())
                self._observe(AttemptStrayed("other_body", uuid_of(id_), owner, trace_id=trace_id))
            self._observe(AttemptAnswered(error.code))
            raise

    def require_own_loop(self) -> None:
        """Raise `WrongEventLoop` where the caller's loop would not see that an answer has come."""
        if asyncio.get_running_loop() is not self._loop:
            raise WrongEventLoop

    def _observed(self, document: bytes, status: AnswerStatus) -> Answer:
        """Return a successful answer, and report it."""
        self._observe(AttemptAnswered(status))
        return Answer(document, status)
