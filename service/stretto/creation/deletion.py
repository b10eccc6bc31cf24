"""GroupDeleter: deletes groups for their owners, and has their keys forgotten.

The row of a deleted group stays, as a tombstone: its key is answered `GroupDeleted` for ever.

A host's transaction may hold a group for any time, and its trigger may be slow. So there are two
deleters. The first one is hasty: a deletion that takes longer than others can bear is broken off, and
left to the second one, which gives it all of its time. That owner's deletions of the next minute go
there directly. So owners whose deletions are slow delay only each other.

A turn is short, and what it has no time for is put back. Whose deletion is next is decided by
`deletion_order.py`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from stretto.creation.deletion_order import DeletionOrder
from stretto.creation.suspects import Suspects
from stretto.errors import NotFound
from stretto.runtime.actor import Actor
from stretto.runtime.batch_reader import READ_BACKOFF, REJECTED_MAX, answering
from stretto.runtime.mailbox import Mailbox
from stretto.store_errors import ReadCancelled, StoreError, Unreachable
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
# One deletion after the other, some milliseconds each; no other begins after this time.
TURN_SECONDS: Final = 0.5
# The owner of a deletion that takes as long is a suspect: its next ones are left to the second deleter.
# A hasty one waits for a lock no longer.
SLOW_SECONDS: Final = 0.05
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

    def __call__(self, wanted: Deletion, /, *, is_hasty: bool) -> Awaitable[bool | None]:
        """Return True for a group that is deleted now, False for one that was deleted before.

        None for one that is not there, or not this owner's. Raises `ReadCancelled` for one that cannot
        be deleted now. With `is_hasty` it takes no longer than others can bear.
        """


class DeletionStore(Protocol):
    """Deletes groups, each in a commit of its own."""

    def deleting(self) -> AbstractAsyncContextManager[Delete]:
        """Yield what deletes; raises `Unreachable`, even if the last group may be deleted."""


class GroupDeleter(Actor):
    """Takes the deletions of all requests, or those that take long; owners take turns."""

    backoff = READ_BACKOFF

    def __init__(
        self,
        store: DeletionStore,
        forget: Callable[[bytes], None],
        wakes: Sequence[Callable[[], None]],
        slow: GroupDeleter | None = None,
    ) -> None:
        """Take what forgets a key's outcome, and what wakes the readers of the log.

        With `slow` it is hasty, and leaves to that one what takes long.
        """
        super().__init__("deleter of slow groups" if slow is None else "deleter of groups")
        self._store = store
        self._forget = forget
        self._wakes = wakes
        self.mailbox: Mailbox[Deletion, bool | None] = Mailbox(
            WAITING_MAX, lambda wanted: wanted.owner, rejected_max=REJECTED_MAX
        )
        self.suspects: Suspects = Suspects(_clock_seconds) if slow is None else slow.suspects
        """Owners who are left to the second deleter; both know them."""
        self.slow = slow
        self._order: DeletionOrder[list[_Request]] = DeletionOrder(ANSWER_SECONDS)

    async def delete(self, group_id: UUID, owner: UserId) -> None:
        """Delete a group, or find that it was deleted before.

        Raises `NotFound` for one that is not this owner's, `Overloaded`, and `Unreachable`: the same
        call then finds out.
        """
        request = CURRENT_REQUEST.get()
        trace = None if request is None or request.trace is None else request.trace.context
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                mailbox = self._deleter_of(owner).mailbox
                is_deleted = await mailbox.ask(Deletion(group_id, owner, trace))
        except TimeoutError as error:
            message = f"a deletion has not ended after {ANSWER_SECONDS:g} s"
            raise Unreachable(message) from error
        if is_deleted is None:
            raise NotFound

    async def run_once(self) -> int:
        """Wait for requests, answer as many as there is time for; return how many were taken."""
        batch = await self.mailbox.take(WAITING_MAX)
        taken = len(batch)
        with answering(batch, self.mailbox):
            self._order.begin(self._together(batch), _clock_seconds())
            await self._delete_in_turn()
            self.mailbox.put_back([each for alike in self._order.take_rest() for each in alike])
            batch.clear()
        return taken

    def stop(self) -> None:
        """Accept no more requests; answer those that wait with an error. Idempotent."""
        super().stop()
        self.mailbox.close()

    async def close(self) -> None:
        """Leave no request without an answer after the last turn, also if it was never stopped."""
        self.mailbox.close()

    def _deleter_of(self, owner: UserId) -> GroupDeleter:
        self.suspects.drop_stale()
        return self if self.slow is None or owner not in self.suspects else self.slow

    def _together(self, batch: Iterable[_Request]) -> list[tuple[UserId, list[_Request]]]:
        """Return requests for the same group and owner together, each with the owner.

        A request whose sender has left is dropped.
        """
        groups: dict[tuple[UUID, UserId], list[_Request]] = {}
        for each in batch:
            if not each.answered.done():
                groups.setdefault((each.message.group_id, each.message.owner), []).append(each)
        return [(owner, alike) for (_, owner), alike in groups.items()]

    async def _delete_in_turn(self) -> None:
        """Delete group by group, one at least, while there is time."""
        if self._order:
            async with self._store.deleting() as delete:
                ends = _clock_seconds() + TURN_SECONDS
                while True:
                    await self._delete(delete, self._order.take())
                    if not self._order or _clock_seconds() >= ends:
                        break

    async def _delete(self, delete: Delete, alike: list[_Request]) -> None:
        """Delete one group, and answer all requests for it, or leave them to the second deleter."""
        wanted, began = alike[0].message, _clock_seconds()
        deleter = self._deleter_of(wanted.owner)
        if deleter is not self:
            # Since it was queued, another one has taken long.
            deleter.mailbox.put_back(alike)
            return
        failed: ReadCancelled | None = None
        try:
            is_deleted = await delete(wanted, is_hasty=self.slow is not None)
        except ReadCancelled as error:
            failed = error
        except StoreError:
            self._note_time(wanted.owner, began)
            raise
        finally:
            # Also where it is not known what was deleted: what is forgotten is looked up again. The
            # senders go on only after this.
            self._forget(wanted.group_id.bytes)
        is_slow = self._note_time(wanted.owner, began)
        if failed is None:
            if is_deleted:
                if not is_slow:
                    self.suspects.discard(wanted.owner)
                for wake in self._wakes:
                    wake()
            for each in alike:
                each.answer(is_deleted)
        elif self.slow is not None and is_slow:
            self.slow.mailbox.put_back(alike)
        else:
            for each in alike:
                each.fail(failed)

    def _note_time(self, owner: UserId, began: float) -> bool:
        """Suspect the owner if its deletion has taken long; return whether it has."""
        ended = _clock_seconds()
        self._order.note(owner, began, ended)
        seconds = ended - began
        if seconds >= SLOW_SECONDS:
            self.suspects.note_untried(owner, seconds)
        return seconds >= SLOW_SECONDS


def _clock_seconds() -> float:
    return asyncio.get_running_loop().time()
