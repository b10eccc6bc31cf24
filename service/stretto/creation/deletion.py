"""GroupDeleter: deletes groups for their owners, and has their keys forgotten.

The row of a deleted group stays, as a tombstone: its key is answered `GroupDeleted` for ever.

A host's transaction may hold a group for any time, and its trigger may be slow. So a turn is short,
and what it has no time for is put back behind the others. While others wait, a lock is waited for only
as long as they can bear. Owners whose deletions have taken long come last for a while (`suspects.py`); those of
whom one failed then have less time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from stretto.creation.suspects import Suspects
from stretto.errors import NotFound
from stretto.runtime.actor import Actor
from stretto.runtime.batch_reader import READ_BACKOFF, REJECTED_MAX, answering
from stretto.runtime.mailbox import Mailbox
from stretto.store_errors import ReadCancelled, Unreachable
from stretto.telemetry.request_context import CURRENT_REQUEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from typing import TypeAlias
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.runtime.rounds import Envelope

    _Request: TypeAlias = Envelope["Deletion", bool | None]

# Requests; beyond, the newest of the owner with most is rejected. At some milliseconds each, all of
# them wait for less than `ANSWER_SECONDS`.
WAITING_MAX: Final = 1024
# One deletion after the other, some milliseconds each. With the last one, of `READ_SECONDS` at most,
# a turn ends before its connection would be cut.
TURN_SECONDS: Final = 0.5
# How long a hasty deletion waits for a lock. The owner of one that takes as long is a suspect.
SLOW_SECONDS: Final = 0.05
# For a deletion of an owner of whom one has taken long and failed.
HUNG_SECONDS: Final = 0.5
# A client's default wait.
ANSWER_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Deletion:
    """A group that its owner wants to be deleted."""

    group_id: UUID
    owner: UserId
    trace_context: str | None
    """Of the request, if it is sampled."""


class Delete(Protocol):
    """Deletes one group."""

    def __call__(
        self, wanted: Deletion, /, *, is_hasty: bool, seconds_max: float | None = None
    ) -> Awaitable[bool | None]:
        """Return True for a group that is deleted now, False for one that was deleted before.

        None for one that is not there, or not this owner's. Raises `ReadCancelled` for one that cannot
        be deleted now. With `is_hasty`, a lock is waited for only as long as others can bear. Each
        statement may take `seconds_max`; None: as long as any other.
        """


class DeletionStore(Protocol):
    """Deletes groups, each in a commit of its own."""

    def deleting(self) -> AbstractAsyncContextManager[Delete]:
        """Yield what deletes; raises `Unreachable`, even if the last group may be deleted."""


class GroupDeleter(Actor):
    """Takes the deletions of all requests; owners take turns."""

    backoff = READ_BACKOFF

    def __init__(
        self,
        store: DeletionStore,
        forget: Callable[[bytes], None],
        wakes: Sequence[Callable[[], None]],
    ) -> None:
        """Take what forgets a key's outcome, and what wakes the readers of the log."""
        super().__init__("deleter of groups")
        self._store = store
        self._forget = forget
        self._wakes = wakes
        self._mailbox: Mailbox[Deletion, bool | None] = Mailbox(
            WAITING_MAX, lambda wanted: wanted.owner, rejected_max=REJECTED_MAX
        )
        self._suspects = Suspects(_clock_seconds)

    async def delete(self, group_id: UUID, owner: UserId) -> None:
        """Delete a group, or find that it was deleted before.

        Raises `NotFound` for one that is not this owner's, `Overloaded`, and `Unreachable`: the same
        call then finds out.
        """
        request = CURRENT_REQUEST.get()
        trace = None if request is None or request.trace is None else request.trace.context
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                is_deleted = await self._mailbox.ask(Deletion(group_id, owner, trace))
        except TimeoutError as error:
            message = f"a deletion has not ended after {ANSWER_SECONDS:g} s"
            raise Unreachable(message) from error
        if is_deleted is None:
            raise NotFound

    async def run_once(self) -> int:
        """Wait for requests, answer as many as there is time for; return how many were taken."""
        batch = await self._mailbox.take(WAITING_MAX)
        taken = len(batch)
        with answering(batch, self._mailbox):
            left = await self._delete_in_turn(self._ordered(batch))
            self._mailbox.put_back(left)
            batch.clear()
        return taken

    def stop(self) -> None:
        """Accept no more requests; answer those that wait with an error. Idempotent."""
        super().stop()
        self._mailbox.close()

    async def close(self) -> None:
        """Leave no request without an answer after the last turn, also if it was never stopped."""
        self._mailbox.close()

    def _ordered(self, batch: Iterable[_Request]) -> deque[list[_Request]]:
        """Return requests for the same group and owner together; those of suspects come last.

        A request whose sender has left is dropped.
        """
        self._suspects.drop_stale()
        groups: dict[tuple[UUID, UserId], list[_Request]] = {}
        for each in batch:
            if not each.answered.done():
                groups.setdefault((each.message.group_id, each.message.owner), []).append(each)
        return deque(sorted(groups.values(), key=lambda alike: _owner(alike) in self._suspects))

    async def _delete_in_turn(self, groups: deque[list[_Request]]) -> list[_Request]:
        """Delete group by group, one at least; return the requests for which there is no time."""
        if groups:
            async with self._store.deleting() as delete:
                ends = _clock_seconds() + TURN_SECONDS
                while True:
                    alike = groups.popleft()
                    others_wait = bool(groups) or len(self._mailbox) > 0
                    is_hasty = others_wait or _owner(alike) in self._suspects
                    await self._delete(delete, alike, is_hasty=is_hasty)
                    if not groups or _clock_seconds() >= ends:
                        break
        return [each for alike in groups for each in alike]

    async def _delete(self, delete: Delete, alike: list[_Request], *, is_hasty: bool) -> None:
        """Delete one group, and answer all requests for it."""
        wanted, began = alike[0].message, _clock_seconds()
        suspects, owner = self._suspects, wanted.owner
        has_hung = suspects.error_of(owner) is not None
        seconds_max = HUNG_SECONDS if has_hung else None
        try:
            is_deleted = await delete(wanted, is_hasty=is_hasty, seconds_max=seconds_max)
        except ReadCancelled as error:
            # Not again: after a while it has all of the time, as its trigger may only be slow by then.
            if not has_hung:
                suspects.note_hang(owner, error, _clock_seconds() - began)
            for each in alike:
                each.fail(error)
        else:
            if is_deleted:
                for wake in self._wakes:
                    wake()
            for each in alike:
                each.answer(is_deleted)
        finally:
            # Also where it is not known what was deleted: what is forgotten is looked up again. The
            # senders go on only after this.
            self._forget(wanted.group_id.bytes)
        seconds = _clock_seconds() - began
        if seconds < SLOW_SECONDS:
            suspects.discard(owner)
        else:
            suspects.note_untried(owner, seconds)


def _owner(alike: list[_Request]) -> UserId:
    return alike[0].message.owner


def _clock_seconds() -> float:
    return asyncio.get_running_loop().time()
