"""OutcomeMemory: the attempts that succeeded in this process, so that a replay needs no database.

A group stays, whatever becomes of its attempt. So a success may be remembered for as long as the
database behind the process is the same, and the group is not deleted. `forget()` is called whenever
the database may have changed, `drop()` when the group was deleted, `confirm()` when all groups that
were deleted are dropped. A failure is not remembered: it lasts as long as its attempt, which
another process may delete.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from stretto.domain import FINGERPRINT_BYTES, digest
from stretto.errors import KeyReused
from stretto.runtime.boot_clock import boot_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    _Generation: TypeAlias = dict[bytes, bytes]

# Of a request that did not come as a body: no body has this digest.
NO_BODY: Final = bytes(FINGERPRINT_BYTES)

# In an outage the look for deletions fails sooner, and its failure forgets everything. This bound is for
# a process that was suspended (SIGSTOP, a paused machine), and answers before its next look.
UNCONFIRMED_SECONDS_MAX: Final = 8.0

_DOCUMENT: Final = slice(2 * FINGERPRINT_BYTES, None)


class OutcomeMemory:
    """The last successes by group id (its bytes).

    Each is one string of bytes: the digest of its request's body, its fingerprint, and the document
    that every request of its key is answered with. The garbage collector would walk objects: a full
    collection then stops the process for 100 ms at 50,000 of them.

    Two generations bound it. When the young one holds half of the maximum, it becomes the old one,
    and the old one is dropped. One dictionary that drops its oldest entry each time would step over
    all entries that were dropped before: 30 µs at 50,000 entries.
    """

    def __init__(
        self, outcomes_max: int, clock_seconds: Callable[[], float] = boot_seconds
    ) -> None:
        self._clock_seconds = clock_seconds
        self._known_until_seconds = math.inf
        """Where nothing looks for deletions, for ever."""
        self._young_max = max(1, outcomes_max // 2)
        self._young: _Generation = {}
        self._old: _Generation = {}
        self.epoch = 0
        """Grows with every `forget`: a flight that began before leaves nothing to remember."""

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is remembered, oldest first."""
        yield from self._old.items()
        yield from self._young.items()

    def find(self, group_id: bytes) -> bytes | None:
        """Return the success of a key, if it is remembered; the two functions below read it.

        None where too much time has passed since the last `confirm`: the group may be deleted.
        """
        success = self._young.get(group_id) or self._old.get(group_id)
        if success is not None and self._clock_seconds() > self._known_until_seconds:
            return None
        return success

    def remember(
        self, group_id: bytes, fingerprint: bytes, document: bytes, body_digest: bytes
    ) -> None:
        """Keep a success."""
        if len(self._young) >= self._young_max:
            self._old, self._young = self._young, {}
        self._young[group_id] = body_digest + fingerprint + document

    def confirm(self, at_seconds: float) -> None:
        """Note that what was deleted before that time, on our clock, is dropped.

        After the first call, what is not confirmed again in time counts as unknown.
        """
        self._known_until_seconds = at_seconds + UNCONFIRMED_SECONDS_MAX

    def drop(self, group_id: bytes) -> None:
        """Drop what is known of one key."""
        self._young.pop(group_id, None)
        self._old.pop(group_id, None)

    def forget(self) -> None:
        """Drop everything."""
        self._young.clear()
        self._old.clear()
        self.epoch += 1
        if self._known_until_seconds < math.inf:
            # What is remembered from now on is read from now on.
            self.confirm(self._clock_seconds())


def document_of_repeat(success: bytes, body: bytes) -> bytes | None:
    """Return the document of a success whose request had this very body."""
    return success[_DOCUMENT] if success.startswith(digest(body)) else None


def document_for(success: bytes, fingerprint: bytes) -> bytes:
    """Return the document of a success; raises `KeyReused` where it belongs to another request."""
    if not success.startswith(fingerprint, FINGERPRINT_BYTES):
        raise KeyReused
    return success[_DOCUMENT]
