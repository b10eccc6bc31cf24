"""What became of attempts, as far as this process has seen it: never asked of the database again.

A settled attempt never changes, so remembering one is safe for as long as the database that settled
it is the same; `forget()` is called whenever that may have changed. Bounded: the oldest entry goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.errors import AttemptFailed, Failure, KeyReused

if TYPE_CHECKING:
    from uuid import UUID

    from stretto.domain import CreatedGroup


@dataclass(frozen=True, slots=True)
class Outcome:
    """A settled attempt: the group it created, or why it failed for good."""

    fingerprint: bytes
    result: CreatedGroup | Failure

    def group_for(self, fingerprint: bytes) -> CreatedGroup:
        """Return the group; raises `KeyReused` or `AttemptFailed`."""
        if fingerprint != self.fingerprint:
            raise KeyReused
        if isinstance(self.result, Failure):
            raise AttemptFailed(self.result)
        return self.result


class OutcomeMemory:
    """The last settled attempts by group id."""

    def __init__(self, outcomes_max: int) -> None:
        self._outcomes_max = outcomes_max
        self._outcomes: dict[UUID, Outcome] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def recall(self, group_id: UUID) -> Outcome | None:
        """Return what is known of the attempt."""
        return self._outcomes.get(group_id)

    def remember(self, group_id: UUID, outcome: Outcome) -> None:
        """Keep the outcome; the oldest one makes room."""
        if len(self._outcomes) >= self._outcomes_max:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[group_id] = outcome

    def forget(self) -> None:
        """Know nothing any more."""
        self._outcomes.clear()
