"""What a write's error says of its owner: whether it is its own, and whether the write has hung."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.creation.breakers import OWNER_SECONDS_MAX
from stretto.store_errors import (
    Exhausted,
    HookCutOff,
    HookEnded,
    HookError,
    Locked,
    Misconfigured,
    Stalled,
    StoreError,
    Unreachable,
)

if TYPE_CHECKING:
    from stretto.creation.breakers import OwnerBreakers
    from stretto.creation.ports import Write


class RowLocked(Locked):
    """A row beside the attempts, such as a host's, was locked, and no table: others can be written.

    `OwnerPaused.kind` reports it by this name; with a private one it would be reported as `Locked`.
    """


def is_away(error: StoreError) -> bool:
    """Whether the database cannot be reached: every other request would meet the same."""
    return isinstance(error, Unreachable) and not isinstance(error, Misconfigured)


def is_of_server(error: StoreError) -> bool:
    """Whether the server's state may be why: full, or without a right. Then no other write succeeds.

    A trigger may raise the same for one owner alone.
    """
    return isinstance(error, Unreachable | Exhausted)


def is_ended(error: StoreError) -> bool:
    """Whether a write was ended since it kept others waiting: it may have hung, or all are slow."""
    return isinstance(error, Stalled | HookEnded)


def is_own(error: StoreError, started: float, breakers: OwnerBreakers) -> bool:
    """Whether a failure since `started` is its owner's own: a lock on a row, or the host's hook.

    A write or a hook that was ended may have been slow because all are, and where a hook has lost its
    session, all may have. So it is its owner's own only where another write has gone through meanwhile.
    """
    if is_ended(error) or isinstance(error, HookCutOff):
        return breakers.has_led_since(started)
    return _may_be_own(error)


def note_hang(breakers: OwnerBreakers, write: Write, error: StoreError, seconds: float) -> bool:
    """Suspect the owner of a write that has failed alone after so long, if it may be its own.

    Call it before `proofs.forget`: it asks whether the owner is known.
    """
    may_be_own = _may_be_own(error) and not isinstance(error, HookCutOff)
    is_hang = may_be_own and seconds >= OWNER_SECONDS_MAX
    if is_hang:
        owner = write.new_group.owner
        is_newcomer = not breakers.proofs.is_known(owner)
        breakers.suspects.note_hang(owner, error, seconds, is_newcomer=is_newcomer)
    return is_hang


def _may_be_own(error: StoreError) -> bool:
    return isinstance(error, Stalled | HookError | RowLocked)


def slow() -> StoreError:
    """Return the error of an owner whose writes succeed, but keep others waiting: it is paused."""
    return Stalled("writes of this owner take long while others wait")
