"""Whether the database takes our reads and writes, as `/readyz` asks.

A read of our own alone does not show it: the server may refuse writes, or have no connection left
for a writer or for what reads requests' answers. Nor do writers and readers alone: without requests
they try nothing, and the cause may be over. So one that is cut off counts only until a connection
like its own can be opened, and one whose statement met a missing table or right only until the
schema suits us and takes a group, which is rolled back. One whose connections are all in use is busy,
and stays ready: another instance would be no less busy. Nor would it have a connection that the server
refuses to all of them (`cut_offs.py`): while a writer has one, groups are created.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from stretto.postgres.lanes import Lane
from stretto.postgres.rehearsal import rehearse
from stretto.postgres.writes import PostgresWriteStore
from stretto.store_errors import Misconfigured, StoreError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.domain import UserId
    from stretto.postgres.connections import Database

# At most so often, since `/readyz` needs no token, and each probe is a new connection.
PROBE_SECONDS: Final = 1.0
_MISFIT: Final = "a statement has met a missing table, column, partition or right"
_CUT_OFF: Final = "no connection to the database can be opened"


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
        self._refusal: str | None = None
        """What the last probe has met."""

    async def check(self) -> None:
        """Raise `Unreachable` unless the database answers, has the tables and takes our work."""
        database = self._database
        is_writing = any(store.is_connected for store in self._stores)
        try:
            await database.ping()
        except Unreachable:
            if not (is_writing and database.cut_offs.is_refused(Lane.PROBE)):
                raise
        is_misfit = database.is_misfit or any(store.is_misfit for store in self._stores)
        is_cut_off = database.cut_offs.is_any_serving(is_writing=is_writing) or all(
            store.is_cut_off for store in self._stores
        )
        if is_misfit or is_cut_off:
            await self._probe(is_misfit=is_misfit)

    async def _probe(self, *, is_misfit: bool) -> None:
        """Do as a writer does; if that works, all writers and readers count as well again."""
        now = self._clock_seconds()
        if now - self._probed_at < PROBE_SECONDS:
            if self._refusal is None:
                # It has just worked. One owner's trigger, which is repeated, keeps no other waiting.
                return
            raise Unreachable(self._refusal)
        self._probed_at = now
        # Until it says more.
        self._refusal = _MISFIT if is_misfit else _CUT_OFF
        try:
            if is_misfit:
                await self._require_fit()
            else:
                await self._database.release(await self._database.acquire())
        except StoreError as error:
            self._refusal = str(error)
            raise Unreachable(self._refusal) from error
        self._refusal = None
        self._database.forgive()
        for store in self._stores:
            store.is_cut_off = store.is_misfit = False

    async def _require_fit(self) -> None:
        """Raise a `StoreError` unless the schema suits us and takes a writer's groups."""
        # Its error says what to do.
        await self._database.inspect()
        store = PostgresWriteStore(self._database, lambda: None)
        try:
            await store.open()
        finally:
            await store.close()
        await rehearse(self._database, next(iter(_owners_led(self._stores)), None))


async def rehearse_for_others(
    database: Database, stores: Sequence[PostgresWriteStore], owner: str
) -> None:
    """Write a group of another owner than this one and roll it back; raises as `rehearse` does.

    So it shows whether what a write of this owner has met is the server's state.
    """
    led = _owners_led(stores)
    try:
        await rehearse(database, next((each for each in led if each != owner), None))
    except Misconfigured:
        # Where none was led, a rule of the operator's may be why, which takes no unknown owner's groups.
        if led:
            raise


def _owners_led(stores: Sequence[PostgresWriteStore]) -> set[UserId]:
    return {each.owner_led for each in stores if each.owner_led is not None}
