"""Flights: one per key in this process; starts them, finishes them, and remembers what succeeded.

A flight goes on when all its requests have left, because its write may already be under way. Most
flights finish with their first write; one that has to follow gets a task.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from stretto.codec import created_document
from stretto.creation.flight import NEVER, Flight, by_age, public_error
from stretto.creation.limiter import OwnerLimiter
from stretto.domain import CreatedGroup
from stretto.errors import InternalError, Overloaded, StrettoError
from stretto.store_errors import StoreError
from stretto.telemetry.request_context import CURRENT_REQUEST
from stretto.telemetry.tracing import span_of
from stretto.uuids import uuid_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.creation.follower import Follower
    from stretto.creation.outcomes import OutcomeMemory
    from stretto.creation.ports import Write, WriteResult, Writers
    from stretto.domain import NewGroup
    from stretto.errors import Failure


class Flights:
    """The flights of a creator."""

    def __init__(
        self,
        writers: Writers,
        follower: Follower,
        memory: OutcomeMemory,
        *,
        rate_limit: float,
        stop_seconds: float,
    ) -> None:
        self._writers = writers
        self._follower = follower
        self._memory = memory
        self._stop_seconds = stop_seconds
        self._flights: dict[bytes, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._all_finished = asyncio.Event()
        self._limiter = OwnerLimiter(rate_limit, lambda: asyncio.get_running_loop().time())

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def is_stopping(self) -> bool:
        """Whether no flight starts any more."""
        return self._stopping

    def find(self, id_: bytes) -> Flight | None:
        """Return the flight of a key."""
        return self._flights.get(id_)

    def forget(self, id_: bytes) -> None:
        """Drop a key's outcome, and remember none of its flight: the group was deleted.

        A flight that starts later reads the tombstone. One that is under way may have met the group: no
        further request may join it.
        """
        self._memory.drop(id_)
        flight = self._flights.get(id_)
        if flight is not None:
            flight.memory_epoch = NEVER

    def by_age(self) -> Mapping[str, int]:
        """Return how many flights are in each class of ages."""
        return by_age(self._flights.values(), asyncio.get_running_loop().time())

    async def stop(self) -> None:
        """Start no more flights and let every one finish, for a bounded time. Idempotent."""
        self._stopping = True
        self._follower.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._stop_seconds):
                while self._flights:
                    self._all_finished.clear()
                    await self._all_finished.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # What is left waits for a writer, which finishes the write if it can.
        for flight in tuple(self._flights.values()):
            self._finish(flight, Overloaded.while_stopping())

    def start(
        self, id_: bytes, new_group: NewGroup, fingerprint: bytes, body_digest: bytes
    ) -> Flight:
        """Register a flight and hand its write to the writers.

        Raises `RateLimited` or `Overloaded`; nothing was claimed then.
        """
        flight = Flight(
            uuid_of(id_),
            new_group,
            fingerprint,
            body_digest,
            self._memory.epoch,
            asyncio.get_running_loop().time(),
            CURRENT_REQUEST.get(),
        )
        if self._stopping:
            raise Overloaded.while_stopping()
        self._limiter.admit(new_group.owner)
        write = flight.new_write()
        try:
            written = self._writers.ask(write)
        except StrettoError:
            self._limiter.give_back(new_group.owner)
            raise
        # No `await` since the flight was looked up: no other task can have registered one.
        self._flights[flight.group_id.bytes] = flight
        written.add_done_callback(partial(self._written, flight, write))
        return flight

    def _written(self, flight: Flight, write: Write, written: asyncio.Future[WriteResult]) -> None:
        """Finish the flight if its own write has settled the attempt; else have it follow."""
        outcome = written.exception() or flight.outcome_of(write, written.result())
        if outcome is not None:
            self._finish(flight, outcome)
        elif self._flights.get(flight.group_id.bytes) is flight:
            following = self._follow(flight, write)
            task = written.get_loop().create_task(following, name=f"flight {flight.group_id}")
            self._tasks.add(task)
            task.add_done_callback(partial(self._followed, flight))

    def _followed(self, flight: Flight, following: asyncio.Task[None]) -> None:
        """Finish the flight also where a host has cancelled the task before its first step."""
        self._tasks.discard(following)
        self._finish(
            flight, Overloaded.while_stopping() if following.cancelled() else InternalError()
        )

    async def _follow(self, flight: Flight, write: Write) -> None:
        """Follow the attempt to its outcome."""
        try:
            with span_of(flight.trace, "stretto.follow"):
                outcome = await self._follower.pursue(flight, write)
            self._finish(flight, outcome)
        except (StrettoError, StoreError) as error:
            self._finish(flight, error)
        # Any other exception is a bug, which leaves the outcome unknown: it ends this task, and the
        # requests get an error (`_followed`).

    def _finish(self, flight: Flight, outcome: CreatedGroup | Failure | BaseException) -> None:
        """Answer the flight's requests and remember a success. Does nothing if it has finished."""
        id_ = flight.group_id.bytes
        if self._flights.get(id_) is not flight:
            return
        del self._flights[id_]
        if isinstance(outcome, CreatedGroup):
            document = created_document(outcome)
            # A flight that began before the last `forget` may have met another server, or a group
            # that is deleted by now.
            if flight.memory_epoch == self._memory.epoch:
                self._memory.remember(id_, flight.fingerprint, document, flight.body_digest)
            flight.finish(document)
        else:
            flight.finish(public_error(outcome))
        if not self._flights:
            self._all_finished.set()
