"""Outage: while the database is away, commands stay in their stream, and one at a time is tried.

Put off one by one, with pauses that grow, they would come again long after the database is back. They
would also take the places that the consumer has, and their owners' shares. So no more are taken.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from stretto.creation.blame import is_away
from stretto.errors import AttemptPending, DatabaseUnavailable, StrettoError
from stretto.store_errors import OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

# From one try to the next, in each process: a database that comes back is noticed after so long.
TRY_SECONDS: Final = 0.5


class Outage:
    """Whether the database is away, as far as commands have met it."""

    def __init__(self) -> None:
        self._over = asyncio.Event()
        self._over.set()
        self._turns = asyncio.Lock()
        self._tries = 0
        """How many commands may be tried although the database is away."""
        self._successes = 0

    @property
    def is_over(self) -> bool:
        """Whether the database answers, as far as is known."""
        return self._over.is_set()

    async def turn(self) -> None:
        """Wait until the outage is over, or until one more command may be tried."""
        if self.is_over:
            return
        async with self._turns:
            with suppress(TimeoutError):
                async with asyncio.timeout(TRY_SECONDS):
                    await self._over.wait()
        if not self.is_over:
            self._tries += 1

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Learn from the outcome of a command; raises `DatabaseUnavailable` where it has no turn."""
        if not self.is_over:
            if not self._tries:
                raise DatabaseUnavailable
            self._tries -= 1
        successes = self._successes
        try:
            yield
        except StrettoError as error:
            self._learn(error, others_succeed=self._successes > successes)
            raise
        self._successes += 1
        self._over.set()

    def _learn(self, error: StrettoError, *, others_succeed: bool) -> None:
        cause = error.__cause__
        if isinstance(cause, StoreError) and is_away(cause):
            # Where others succeed meanwhile, only some of the connections are away.
            if not others_succeed:
                self._over.clear()
                self._tries = 0
        elif not isinstance(error, AttemptPending) and not isinstance(cause, OutcomeUnknown):
            # What was refused without the database shows nothing: then the next command finds out.
            self._over.set()
