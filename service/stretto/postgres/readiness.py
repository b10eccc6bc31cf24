"""Whether the database takes our writes, as `/readyz` asks.

A read alone does not say so: the server may refuse writes, or have no connection left for a writer.
Nor do the writers alone: where nobody asks for a group, they try nothing, and what kept them away may
long be over. So a writer that is cut off is believed only until a connection like its own can be had,
and one whose write met a missing table or right until another one can do its statements.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from stretto.errors import StoreError, Unreachable
from stretto.postgres.attempts import PostgresWriteStore
from stretto.postgres.connections import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.postgres.connections import Database

# However often `/readyz` is asked, which needs no token: each probe is a new connection.
PROBE_SECONDS: Final = 1.0


class Readiness:
    """Asks the database, and the writers of this process; `clock_seconds` is for tests."""

    def __init__(
        self,
        database: Database,
        stores: Sequence[PostgresWriteStore],
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._stores = stores
        self._clock_seconds = clock_seconds
        self._probed_at = float("-inf")
        self._refusal = "no writer reaches the database"

    async def check(self) -> None:
        """Raise `Unreachable` unless the database answers, has the tables and takes our writes."""
        await self._database.ping()
        is_misfit = any(store.is_misfit for store in self._stores)
        if is_misfit or all(store.is_cut_off for store in self._stores):
            await self._probe(is_misfit=is_misfit)

    async def _probe(self, *, is_misfit: bool) -> None:
        """Do as a writer does; where that works, they are believed to be well again."""
        now = self._clock_seconds()
        if now - self._probed_at < PROBE_SECONDS:
            raise Unreachable(self._refusal)
        self._probed_at = now
        try:
            if is_misfit:
                await self._require_fit()
            else:
                await self._database.give_back(await self._database.lend())
        except StoreError as error:
            self._refusal = str(error)
            raise Unreachable(self._refusal) from error
        for store in self._stores:
            store.is_cut_off = store.is_misfit = False

    async def _require_fit(self) -> None:
        """Raise a `StoreError` unless the schema is ours to use, and takes a writer's statements."""
        async with self._database.reading(Lane.PROBE) as connection:
            # Says what to do about it.
            await self._database.require_schema(connection)
        store = PostgresWriteStore(self._database, lambda: None)
        try:
            await store.open()
        finally:
            await store.close()
