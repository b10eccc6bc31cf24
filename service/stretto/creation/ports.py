"""What creating a group needs from other parts: stores and writers.

A store's write ends in one of seven ways, and never in a guess. It returns: committed. It raises
`Refused`, `Transient`, `Stalled`, `HookError` or `Unreachable`: not committed. It raises
`OutcomeUnknown`: not known yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from stretto.creation.attempt import AnswerStatus
from stretto.telemetry.request_context import trace_id_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from typing import TypeAlias
    from uuid import UUID

    from stretto.creation.attempt import Sighting
    from stretto.domain import Group, Member, NewGroup, UserId
    from stretto.errors import Failure
    from stretto.runtime.rounds import Envelope
    from stretto.telemetry.request_context import RequestContext

    WriteRequest: TypeAlias = Envelope["Write", "WriteResult"]
    """A write in the writers' mailbox, and the future of its result."""


@dataclass(frozen=True, slots=True)
class Write:
    """All that one request may write."""

    group_id: UUID
    claim_token: UUID
    conversation_id: UUID
    new_group: NewGroup
    fingerprint: bytes
    is_claimed: bool
    """Whether the attempt has the token already: it was reclaimed, or put back."""
    request: RequestContext | None = None
    """Whose write it is."""
    is_abandoned: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Whether no request waits for it any more."""

    @property
    def trace_id(self) -> str | None:
        """Of the same request, if it is sampled."""
        return trace_id_of(self.request)

    @property
    def status(self) -> AnswerStatus:
        """How a group that this write creates came about."""
        return AnswerStatus.RECOVERED if self.is_claimed else AnswerStatus.CREATED


@dataclass(frozen=True, slots=True)
class Led:
    """This write created the group, committed."""


@dataclass(frozen=True, slots=True)
class NotLed:
    """Nothing was written: the attempt is another's, gone, or settled. Follow."""


@dataclass(frozen=True, slots=True)
class SettledAsFailed:
    """The attempt is durably failed."""

    failure: Failure
    is_veto: bool = field(default=False, compare=False)
    """Whether the host's hook has refused the group, and not the database."""


WriteResult = Led | NotLed | SettledAsFailed


class WriteStore(Protocol):
    """The leader's statements, on a connection of its own; raises `StoreError`s."""

    @property
    def is_connected(self) -> bool:
        """Whether a write needs no new connection, as far as is known."""

    @property
    def writes_at_once(self) -> bool:
        """Whether a batch may be claimed and led in one round trip."""

    async def open(self) -> None:
        """Connect before the first write. If this is not called, or raises, a write connects."""

    async def claim_and_lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Claim, commit, then lead, in one round trip; return the tokens that led.

        After an error the claims may be committed.
        """

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        """Insert pending attempts; return the tokens of those that won."""

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        """Write groups and settle their attempts in one commit; return the tokens that did.

        A write whose token is not the attempt's, or whose attempt is not pending, writes nothing.
        With `is_hasty`, a lock is waited for only as long as other requests can bear.
        """

    async def unlocked(self, writes: Sequence[Write]) -> set[UUID]:
        """Return the tokens whose attempts carry them, are pending, and are locked by no other."""

    async def are_tables_locked(self) -> bool:
        """Whether another session holds or awaits a table lock that lets no group be written."""

    async def fail(self, write: Write, failure: Failure) -> bool:
        """Settle as failed if the attempt still carries the token and no group exists."""

    async def close(self) -> None:
        """Give the connection back. Idempotent."""

    def cut_off(self) -> None:
        """Break the connection under a write that must not be waited for any longer."""


class AttemptStore(Protocol):
    """A follower's statements; each holds a connection only while it runs.

    What settles or reclaims is recorded in the attempt's trail, with the trace of `CURRENT_REQUEST`.
    """

    async def look(self, group_id: UUID, lease_seconds: float, owner: UserId, /) -> Sighting:
        """Read the attempt and the group of that id in one query; owners take turns."""

    async def heal(self, group_id: UUID) -> None:
        """Settle the attempt as succeeded from the domain tables; does nothing without a group."""

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        """Replace the token that was seen, if the lease is over and no writer holds the row."""


class Writers(Protocol):
    """Take the writes of requests."""

    def ask(self, message: Write) -> asyncio.Future[WriteResult]:
        """Queue the write; raises `Overloaded` at once where there is no room.

        The future raises a `StoreError` when the attempt could not be settled, and `Overloaded`
        when the mailbox needed its place, or was closed. Where there is no room for a write that is
        claimed, the call and the future raise `AttemptPending` instead.
        """


class BatchAttemptStore(AttemptStore, Protocol):
    """A follower's statements; looks of many requests share one."""

    async def look_all(self, wanted: Sequence[tuple[UUID, float]]) -> Sequence[Sighting]:
        """For each `(group_id, lease_seconds)`: the attempt and the group; all in one query."""


class BatchGroupStore(Protocol):
    """Reads of the domain tables: each takes a batch of questions, and answers them in order."""

    async def group_of_member(
        self, wanted: Sequence[tuple[UUID, UserId | None]]
    ) -> Sequence[Group | None]:
        """For each `(group_id, user)`: the group, if the user is a member of it or None."""

    async def groups_of_member(
        self, wanted: Sequence[tuple[UserId, UUID | None, int]]
    ) -> Sequence[Sequence[Group]]:
        """For each `(user, after, limit)`: the next groups, newest first, after a conversation."""

    async def members_of_group(
        self, wanted: Sequence[tuple[UUID, UserId | None, str | None, int]]
    ) -> Sequence[Sequence[Member] | None]:
        """For each `(group_id, member, after, limit)`: the next members, by id, after a user.

        None where there is no such group, or the user `member` is none of its members.
        """
