"""Which attempts have succeeded, as far as this process has seen it: never asked of the database again.

A group stays, whatever becomes of its attempt, so remembering a success is safe for as long as the
database that has the group is the same; `forget()` is called whenever that may have changed. A failure
is not remembered: it lasts as long as its attempt, which may be deleted behind this process's back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.domain import FINGERPRINT_BYTES, digest
from stretto.errors import KeyReused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    _Generation: TypeAlias = dict[bytes, bytes]

# Of a request that did not come as a body: no body has this digest.
NO_BODY: Final = bytes(FINGERPRINT_BYTES)

_DOCUMENT: Final = slice(2 * FINGERPRINT_BYTES, None)


class OutcomeMemory:
    """The last successes by group id (its bytes).

    Each is kept as one string of bytes: digest of its body, fingerprint, and the document that every
    request of its key is answered with. Objects would be walked by each full garbage collection,
    which stops the process for 100 ms at 50,000 of them.

    Bounded by two generations: when the young one is half of what may be remembered, it is the old
    one, whose predecessor goes. Dropping the oldest entry of one dictionary each time has to step
    over all that was dropped before it: 30 µs at 50,000 entries.
    """

    def __init__(self, outcomes_max: int) -> None:
        self._young_max = max(1, outcomes_max // 2)
        self._young: _Generation = {}
        self._old: _Generation = {}
        self.epoch = 0
        """Grows whenever all is forgotten: what began before must not be remembered after it."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is remembered, oldest first."""
        yield from self._old.items()
        yield from self._young.items()

    def recall_repeated(self, group_id: bytes, body: bytes) -> bytes | None:
        """Return the document of the success whose request had this very body."""
        outcome = self._outcome(group_id)
        if outcome is not None and outcome.startswith(digest(body)):
            return outcome[_DOCUMENT]
        return None

    def recall(self, group_id: bytes, fingerprint: bytes) -> bytes | None:
        """Return the document that the attempt has succeeded with, if anything is known of it.

        Raises `KeyReused` where it belongs to another request.
        """
        outcome = self._outcome(group_id)
        if outcome is None:
            return None
        if not outcome.startswith(fingerprint, FINGERPRINT_BYTES):
            raise KeyReused
        return outcome[_DOCUMENT]

    def remember(
        self, group_id: bytes, fingerprint: bytes, document: bytes, body_digest: bytes
    ) -> None:
        """Keep a success."""
        if len(self._young) >= self._young_max:
            self._old, self._young = self._young, {}
        self._young[group_id] = body_digest + fingerprint + document

    def forget(self) -> None:
        """Know nothing any more."""
        self._young.clear()
        self._old.clear()
        self.epoch += 1

    def _outcome(self, group_id: bytes) -> bytes | None:
        return self._young.get(group_id) or self._old.get(group_id)
