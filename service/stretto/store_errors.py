"""What stores raise: each kind says what is known about a write, or a read.

None has a code: the creator turns them into errors for callers (`errors.py`). A host meets
`Unreachable` itself where its database does not answer at the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stretto.errors import Failure


class StoreError(Exception):
    """A store could not do what it was asked."""

    retry_after_seconds: int | None = None
    """How long the owner is paused, if it is."""
    detail: str | None = None
    """What the answer to a client says of the cause, if not what its code says."""


class Refused(StoreError):
    """The database, or the host's hook, rejected this write; nothing was committed."""

    def __init__(self, failure: Failure, cause: str = "", *, is_veto: bool = False) -> None:
        """Take the failure that the client gets, the cause for the log, and whether a hook vetoed it."""
        super().__init__(cause or failure.code)
        self.failure = failure
        self.is_veto = is_veto


class RefusedAgain(StoreError):
    """Not tried, as the database refuses writes of its owner again and again."""

    detail = (
        "The database refuses groups of this owner again and again, which keeps others waiting:"
        " this one was not tried."
    )


class Transient(StoreError):
    """Nothing was committed; the same write may succeed in a moment."""


class Exhausted(Transient):
    """The server has no disk space, memory or connection left, or takes no writes now."""


class Locked(Transient):
    """Another transaction held a row or a table for longer than a statement waits."""


class Stalled(StoreError):
    """The server was asked to end a write that kept others waiting, and did; nothing was committed."""


class HookError(StoreError):
    """The host's hook failed the write without a veto; nothing was committed."""


class HookEnded(HookError):
    """The hook was ended because it kept others waiting; nothing was committed."""


class HookCutOff(HookError):
    """The session was lost while the hook ran; nothing was committed, unless the hook did."""


class HookInterrupted(HookError, Transient):
    """The hook met a lock, a deadlock or a full disk; the same write may succeed in a moment."""


class Unreachable(StoreError):
    """There is no connection, or the database cannot serve; nothing was committed."""


class Unmigrated(Unreachable):
    """The schema is missing, or not granted to our role: `stretto migrate` helps."""


class Outdated(Unmigrated):
    """The schema is older than ours."""


class ReadCancelled(Unreachable):
    """The server has cancelled a read that took too long; the connection lives."""


class Misconfigured(Unreachable):
    """The server runs, but lacks what a statement needs, such as a table or a permission."""


class OutcomeUnknown(StoreError):
    """The connection was lost after the write was sent: it may be committed, now or later."""


class InDoubt(OutcomeUnknown):
    """The server has answered with an error that leaves the outcome open; the connection lives."""
