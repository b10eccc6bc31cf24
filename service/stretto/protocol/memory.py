"""What became of attempts, as far as this process has seen it: never asked of the database again.

A settled attempt never changes, so remembering one is safe for as long as the database that settled
it is the same; `forget()` is called whenever that may have changed. Bounded: the oldest entry goes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from stretto.domain import FINGERPRINT_BYTES, CreatedGroup
from stretto.errors import AttemptFailed, Failure, KeyReused

if TYPE_CHECKING:
    from typing import TypeAlias

    _Success: TypeAlias = bytes
    _Failed: TypeAlias = tuple[bytes, Failure]


class OutcomeMemory:
    """The last settled attempts by group id.

    A success is kept as its bytes, fingerprint and conversation, and not as objects: those are
    walked by each full garbage collection, which stops the process for 100 ms at 50,000 of them.
    """

    def __init__(self, outcomes_max: int) -> None:
        self._outcomes_max = outcomes_max
        self._outcomes: dict[bytes, _Success | _Failed] = {}

    def __len__(self) -> int:
        return len(self._outcomes)

    def recall(self, group_id: UUID, fingerprint: bytes) -> CreatedGroup | None:
        """Return the group that the attempt has created, if anything is known of the attempt.

        Raises `KeyReused` where it belongs to another request, and `AttemptFailed`.
        """
        outcome = self._outcomes.get(group_id.bytes)
        if outcome is None:
            return None
        if isinstance(outcome, bytes):
            if not outcome.startswith(fingerprint):
                raise KeyReused
            return CreatedGroup(group_id, UUID(bytes=outcome[FINGERPRINT_BYTES:]))
        owns, failure = outcome
        raise AttemptFailed(failure) if owns == fingerprint else KeyReused

    def remember(self, group_id: UUID, fingerprint: bytes, result: CreatedGroup | Failure) -> None:
        """Keep the outcome; the oldest one makes room."""
        if len(self._outcomes) >= self._outcomes_max:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[group_id.bytes] = (
            (fingerprint, result)
            if isinstance(result, Failure)
            else fingerprint + result.conversation_id.bytes
        )

    def forget(self) -> None:
        """Know nothing any more."""
        self._outcomes.clear()
