"""ContendedKeys: the keys whose claims another transaction has held up a short while ago.

A claim that meets an uncommitted claim of its key waits for it, and so does everything in its
statement. The other claim may last for long: its client may be gone without the server's knowledge.
So such a key stays out of shared batches until it can be claimed again.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

# As many as several batches hold; each costs some 200 bytes.
KEYS_MAX: Final = 4096
# As long as the server lets a transaction run (`TRANSACTION_SECONDS`), after which the key is free.
KEY_SECONDS: Final = 30.0


class ContendedKeys:
    """Group ids, for a bounded time and number; `clock_seconds` is for tests."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._until: OrderedDict[UUID, float] = OrderedDict()

    def __contains__(self, group_id: UUID) -> bool:
        return self._until.get(group_id, 0.0) > self._clock_seconds()

    def __len__(self) -> int:
        return len(self._until)

    def add(self, group_id: UUID) -> None:
        """Keep the key apart from now on; beyond `KEYS_MAX` the oldest is dropped."""
        self._until.pop(group_id, None)
        self._until[group_id] = self._clock_seconds() + KEY_SECONDS
        if len(self._until) > KEYS_MAX:
            self._until.popitem(last=False)

    def drop_stale(self) -> None:
        """Forget the keys whose time is over: most are settled by others, and never come again."""
        now = self._clock_seconds()
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)

    def discard(self, group_id: UUID) -> None:
        """Let the key share statements again."""
        self._until.pop(group_id, None)
