"""How the steps of a migration run: in one transaction, concurrently, or in batches.

One runner works at a time, in all ways by the same advisory lock. It is tried again and again rather
than waited for: an index that is built concurrently waits for the end of every statement that runs,
also of one that waits for the builder.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias

from stretto.postgres.migration_steps import FIRST_NUMBER
from stretto.postgres.queries import QUERIES
from stretto.start_errors import ConfigurationError
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.migration_steps import Step

    # The step under way, and of a back-fill how many rows are done, of about how many.
    Progress: TypeAlias = Callable[[Step, int, int], None]

# The key of the advisory lock, which no other program should use: "stretto" as a number.
_LOCK: Final = int.from_bytes(b"stretto", "big")
# Another runner is waited for this long: for a few short steps, not for an index of hours.
_RUNNER_SECONDS: Final = 60
_TURN_SECONDS: Final = 0.1
_TAKEN: Final = (
    f"another `stretto migrate` has been at work for {_RUNNER_SECONDS} s; wait for its end, then run"
    " this again"
)
# Rows of a batch are locked until it commits. A lead that meets one waits for it, and no longer than
# its lock time-out, of which a batch of this size is a small part.
BATCH_ROWS_MAX: Final = 1000
# Between two batches as long as a batch took: half of the disk is left to the service.
_REST_RATIO: Final = 1
_REST_SECONDS_MAX: Final = 1.0
_POOLED: Final = (
    "this migration builds an index outside a transaction, which needs a session of the server's:"
    " run `stretto migrate` with a URL that leads to PostgreSQL itself, not through a pooler"
)


@asynccontextmanager
async def sole_transaction(connection: Connection) -> AsyncIterator[None]:
    """Be the only runner during a transaction; raises `Unreachable` if another one stays at work."""
    deadline = time.monotonic() + _RUNNER_SECONDS
    while True:
        # Each try is a transaction of its own: a build would wait for the end of a longer one.
        async with connection.transaction():
            if await connection.fetchval(QUERIES["begin_migrating"], _LOCK):
                yield
                return
        await _wait_turn(deadline)


@asynccontextmanager
async def sole_session(connection: Connection, search_path: str) -> AsyncIterator[None]:
    """Be the only runner outside a transaction, without time-outs; raises like `sole_transaction`.

    Raises `ConfigurationError` behind a pooler: the lock would stay with a session that is others'.
    """
    if await connection.fetchval(QUERIES["migrating_backend"]) != connection.get_server_pid():
        raise ConfigurationError(_POOLED)
    deadline = time.monotonic() + _RUNNER_SECONDS
    while not await connection.fetchval(QUERIES["begin_migrating_session"], _LOCK):
        await _wait_turn(deadline)
    before = await connection.fetchrow(QUERIES["migrating_session"])
    assert before is not None
    try:
        # A build waits for every transaction that is open, and delays none of the service's.
        await connection.execute(QUERIES["set_migrating_session"], search_path, "0", "0")
        yield
    finally:
        if not connection.is_closed():
            await connection.execute(QUERIES["set_migrating_session"], *before)
            await connection.execute(QUERIES["end_migrating_session"], _LOCK)


async def is_migrating(connection: Connection) -> bool:
    """Whether a runner is at work in this database; between two steps none is."""
    return bool(await connection.fetchval(QUERIES["is_migrating"], _LOCK))


async def build_index(connection: Connection, step: Step) -> None:
    """Build the step's index, unless it is there; one that an interrupted build left is dropped."""
    is_valid = await connection.fetchval(QUERIES["index_state"], step.index)
    if is_valid is False:
        await connection.execute(f"DROP INDEX CONCURRENTLY {step.index}")
    if not is_valid:
        await connection.execute(step.statements)


async def fill_batch(connection: Connection, step: Step, progress: Progress) -> bool:
    """Do one batch of the step in the present transaction; return whether nothing was left to do.

    The place where it has ended commits with its rows: an interrupted back-fill goes on from there.
    """
    before = await connection.fetchrow(QUERIES["filled"])
    assert before is not None
    size = await connection.fetchrow(QUERIES["table_size"], step.table)
    assert size is not None
    batch = await connection.fetchrow(step.statements, before["filled_to"], BATCH_ROWS_MAX)
    done = before["filled_rows"]
    if batch is None or batch["position"] is None:
        progress(step, done, done)
        return True
    await connection.execute(QUERIES["fill_on"], batch["position"], batch["rows"])
    done += batch["rows"]
    progress(step, done, max(size["rows"], done))
    return False


async def rest(worked_seconds: float) -> None:
    """Leave the database to the service between two batches."""
    await asyncio.sleep(min(_REST_RATIO * worked_seconds, _REST_SECONDS_MAX))


async def record(connection: Connection, step: Step, oldest_served: int) -> None:
    """Note that the step is applied, and which instances may run on the schema from now on."""
    async with connection.transaction():
        await connection.execute(QUERIES["record_step"], step.number, step.checksum)
        # Before a step that says so, all may: there is no column for it yet.
        if oldest_served > FIRST_NUMBER:
            await connection.execute(QUERIES["record_served"], step.number, oldest_served)


async def _wait_turn(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise Unreachable(_TAKEN)
    await asyncio.sleep(_TURN_SECONDS)
