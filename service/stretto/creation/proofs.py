"""Proofs: owners whose writes have gone through, since when, and in which time.

An owner is proven by its last write, and known if the first one was some time ago. Every other owner is a
newcomer, even a proven one: an owner whose first write went through may hang with the next, and
thousands such may come.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.domain import UserId

# A newcomer is known after so long.
KNOWN_SECONDS: Final = 60.0
# What others can bear of one write.
QUICK_SECONDS: Final = 0.2
# What a newcomer's is expected to take: more than a usual one, less than one of an owner who is slow.
NEWCOMER_SECONDS: Final = 0.05
# Of 270 owners a second, all in that time; each costs some 250 bytes.
PROOFS_MAX: Final = 16_384


@dataclass(slots=True)
class _Proof:
    """Of one owner."""

    since: float
    """When a write of it first went through; none has failed alone since."""
    at: float = 0.0
    """When one last did."""
    seconds: float = 0.0
    """How long that took, with the writes of others by the same statement."""
    own_seconds: float = math.inf
    """How long a write of it takes at most: by the last one alone, or a quicker one with others since."""


class Proofs:
    """Owners, in a bounded number."""

    def __init__(self, clock_seconds: Callable[[], float]) -> None:
        self._clock_seconds = clock_seconds
        self._proofs: dict[UserId, _Proof] = {}
        """The latest at the end."""

    def note(self, owner: UserId, now: float, seconds: float, *, is_alone: bool = True) -> None:
        """Note that a write of the owner has gone through now, in so many seconds.

        With others, the time may be theirs: it says only that the owner's own is not longer.
        """
        # Of each write, so without a further object.
        proof = self._proofs.pop(owner, None) or _Proof(now)
        proof.at, proof.seconds = now, seconds
        proof.own_seconds = seconds if is_alone else min(seconds, proof.own_seconds)
        self._proofs[owner] = proof
        if len(self._proofs) > PROOFS_MAX:
            del self._proofs[next(iter(self._proofs))]

    def forget(self, owner: UserId) -> None:
        """Note that a write of the owner has failed alone. Idempotent."""
        self._proofs.pop(owner, None)

    def is_proven(self, owner: UserId) -> bool:
        """Whether a write of the owner went through lately, and none has failed alone since."""
        return owner in self._proofs

    def is_known(self, owner: UserId) -> bool:
        """Whether the owner has been proven for some time."""
        proof = self._proofs.get(owner)
        return proof is not None and self._clock_seconds() - proof.since >= KNOWN_SECONDS

    def is_quick(self, owner: UserId) -> bool:
        """Whether the owner is proven, by a write that took no longer than others can bear."""
        proof = self._proofs.get(owner)
        return proof is not None and proof.own_seconds < QUICK_SECONDS

    def expected_seconds(self, owner: UserId) -> float:
        """Return how long a write of the owner alone takes at most, by what is known."""
        proof = self._proofs.get(owner)
        return NEWCOMER_SECONDS if proof is None else proof.own_seconds

    def quickest_since_besides(self, started: float, owner: UserId) -> float:
        """Return how long the quickest write of another owner took since then; infinite if none."""
        since = takewhile(lambda each: each[1].at > started, reversed(self._proofs.items()))
        seconds = (proof.seconds for other, proof in since if other != owner)
        return min(seconds, default=math.inf)
