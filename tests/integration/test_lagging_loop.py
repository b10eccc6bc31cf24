"""A loop that lags, as on a machine whose processors others have taken: reads wait, and are answered.

Each turn of the loop is held up for as long as was seen under load. Nothing here measures time: every
question is answered, or some are not.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.events.scan import Ask
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.connections import Database
from stretto.postgres.lanes import Lane
from stretto.postgres.log import PostgresLogStore
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.assembly.component import Component

LAG_SECONDS = 0.08
LOOKS = 150
ALICE = UserId("alice")
TEAM = NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})


@asynccontextmanager
async def lagging_loop() -> AsyncIterator[None]:
    """Hold up every turn of the loop while the block runs."""
    loop = asyncio.get_running_loop()
    is_over = False

    def hold_up() -> None:
        if not is_over:
            time.sleep(LAG_SECONDS)
            loop.call_soon(hold_up)

    loop.call_soon(hold_up)
    try:
        yield
    finally:
        is_over = True


async def read_everything(component: Component, key: IdempotencyKey) -> list[object]:
    """Have many ask at once, as when many clients come back; return what each is answered."""
    created = group_id(ALICE, key)
    reads = component.reads
    present = await PostgresLogStore(component.database.upkeep).present()
    return await asyncio.gather(
        *(component.lookup.look_up(ALICE, key, 0) for _ in range(LOOKS)),
        *(reads.groups.group_of_member(created, ALICE) for _ in range(LOOKS)),
        *(reads.groups.groups_of_member(ALICE, None, 10) for _ in range(30)),
        *(reads.groups.members_of_group(created, ALICE, None, 10) for _ in range(30)),
        *(reads.ping() for _ in range(30)),
        *(component.history.ask(Ask(ALICE, present)) for _ in range(LOOKS)),
        return_exceptions=True,
    )


async def test_reads_of_a_loop_that_lags_are_all_answered(component: Component) -> None:
    """Hundreds of each kind, and a creation beside them: a read fails no earlier than a write."""
    key = IdempotencyKey("k")
    await component.creator.create(key, TEAM)
    async with lagging_loop():
        answers, created = await asyncio.gather(
            read_everything(component, key),
            component.creator.create(IdempotencyKey("other"), TEAM),
        )
    assert [] == [answer for answer in answers if isinstance(answer, Exception)]
    assert created.status == "created"


async def test_one_connection_each_and_a_time_out_would_fail_them(server_url: str) -> None:
    """The twin: as it was, the database idle and the loop no slower."""
    settings = {"search_path": "stretto"}
    async with asyncpg.create_pool(
        server_url, min_size=4, max_size=4, server_settings=settings
    ) as pool:
        database = Database(pool=pool)
        database._places[Lane.LOOKS] = asyncio.Semaphore(LOOKS)
        store = PostgresAttemptStore(database)
        async with lagging_loop():
            answers = await asyncio.gather(
                *(store.look(group_id(ALICE, str(n)), 5.0, ALICE) for n in range(LOOKS)),
                return_exceptions=True,
            )
    assert any(isinstance(answer, Unreachable) for answer in answers)
