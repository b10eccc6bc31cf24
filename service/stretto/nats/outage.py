"""Outage: while the database is away or full, commands stay in their stream; one at a time is tried.

Put off one by one, with pauses that grow, they would come again long after the database is back. They
would also take the places that the consumer has, and their owners' shares. So no more are taken.

What the server's state refuses, such as a full disk, may also be raised by a trigger for one owner alone:
the others must not wait for that. So then a write of another owner is rehearsed, and decides. Nothing else
would: in an outage the stream gives the first command again and again, perhaps that owner's.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from stretto.creation.blame import is_away, is_of_server
from stretto.errors import AttemptPending, DatabaseUnavailable, StrettoError
from stretto.store_errors import OutcomeUnknown, StoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

# From one try to the next, in each process: a database that comes back is noticed after so long.
TRY_SECONDS: Final = 0.5
# Each rehearsal is a new connection and a few dead rows.
REHEARSAL_SECONDS: Final = 1.0


class Outage:
    """Whether the database is away or full, as far as commands have met it.

    `rehearse` writes a group of another owner than the one it gets, rolls it back, and raises a `StoreError`.
    """

    def __init__(self, rehearse: Callable[[str], Awaitable[None]]) -> None:
        self._rehearse = rehearse
        self._rehearsing = asyncio.Lock()
        self._rehearsed_at = float("-inf")
        self._refuses_all = False
        """What the last rehearsal has shown."""
        self._over = asyncio.Event()
        self._over.set()
        self._turns = asyncio.Lock()
        self._tries = 0
        """How many commands may be tried in the outage."""
        self._successes = 0

    @property
    def is_over(self) -> bool:
        """Whether the database answers and takes groups, as far as is known."""
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

    @asynccontextmanager
    async def trial(self, owner: str) -> AsyncIterator[None]:
        """Learn from the outcome of an owner's command; raises `DatabaseUnavailable` if it has no turn."""
        if not self.is_over:
            if not self._tries:
                raise DatabaseUnavailable
            self._tries -= 1
        successes = self._successes
        try:
            yield
        except StrettoError as error:
            await self._learn(error, owner, lambda: self._successes > successes)
            raise
        self._successes += 1
        self._over.set()

    async def _learn(
        self, error: StrettoError, owner: str, others_succeed: Callable[[], bool]
    ) -> None:
        cause = error.__cause__
        is_down = False
        if isinstance(cause, StoreError) and is_of_server(cause):
            is_down = is_away(cause) or others_succeed() or await self._is_of_all(owner)
        if is_down:
            # Where others succeed meanwhile, only some of the connections are away, or one owner fails.
            if not others_succeed():
                self._over.clear()
                self._tries = 0
        elif not isinstance(error, AttemptPending) and not isinstance(cause, OutcomeUnknown):
            # What was refused without the database shows nothing: then the next command finds out.
            self._over.set()

    async def _is_of_all(self, owner: str) -> bool:
        """Whether the database takes no groups of others either, as the last rehearsal has it."""
        async with self._rehearsing:
            clock_seconds = asyncio.get_running_loop().time
            if clock_seconds() - self._rehearsed_at >= REHEARSAL_SECONDS:
                self._refuses_all = False
                try:
                    await self._rehearse(owner)
                except StoreError as error:
                    self._refuses_all = is_of_server(error)
                self._rehearsed_at = clock_seconds()
        return self._refuses_all
