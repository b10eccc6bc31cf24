"""A host's own rows in the transaction that creates a group, and a veto.

Every owner may have two groups. The host counts them in its own table: no group is created without
being counted, and none is counted without being created.

    python examples/hook.py postgresql://chat:secret@localhost/chat
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from typing import TYPE_CHECKING, Final

import asyncpg

import stretto

if TYPE_CHECKING:
    from collections.abc import Sequence

GROUPS_PER_OWNER_MAX: Final = 2

# The component's search_path has stretto's schema only: name the host's schema.
TABLE: Final = """CREATE TABLE IF NOT EXISTS public.team_quota (
    owner_id text   PRIMARY KEY,
    groups   bigint NOT NULL
)"""

# Sorted: batches that lock the same owners' rows in the same order cannot deadlock.
COUNT: Final = """INSERT INTO public.team_quota AS quota (owner_id, groups)
SELECT owner_id, count(*) FROM unnest($1::text[]) AS owner_id GROUP BY owner_id ORDER BY owner_id
ON CONFLICT (owner_id) DO UPDATE SET groups = quota.groups + excluded.groups
RETURNING owner_id, groups"""


async def count_groups(
    connection: stretto.Connection,
    created: Sequence[tuple[stretto.CreatedGroup, stretto.NewGroup]],
) -> None:
    """Count the groups of one batch; raises `GroupRejected` where an owner has too many.

    It runs inside the transaction: a rejection rolls the count back together with the groups. One
    rejection does not fail the other groups of its batch: they are tried again without it. Do nothing
    here that cannot be rolled back (a mail, a call to another service). Any other exception leaves the
    attempt pending (503 `hook_failed`); `async with connection.transaction()` is a savepoint.
    """
    rows = await connection.fetch(COUNT, [new_group.owner for _, new_group in created])
    for row in rows:
        if row["groups"] > GROUPS_PER_OWNER_MAX:
            raise stretto.GroupRejected(
                "quota_exceeded", f"An owner may have {GROUPS_PER_OWNER_MAX} groups."
            )


async def main(dsn: str) -> None:
    """Request one group too many; print each answer."""
    await make_tables(dsn)
    owner = stretto.UserId(f"owner-{uuid.uuid4()}")
    async with stretto.open_component(dsn, on_create=count_groups) as component:
        for number in range(1, GROUPS_PER_OWNER_MAX + 2):
            new_group = stretto.NewGroup.parse(owner, {"name": f"Team {number}"})
            try:
                answer = await component.create(str(uuid.uuid4()), new_group)
            except stretto.AttemptFailed as error:
                # Final for this key, also for every retry; nothing was written.
                print(f"Team {number}: {error.failure.code}")
            else:
                print(f"Team {number}: {answer.status.value}")
    connection = await asyncpg.connect(dsn)
    counted = await connection.fetchval(
        "SELECT groups FROM public.team_quota WHERE owner_id = $1", owner
    )
    await connection.close()
    print(f"counted: {counted}")


async def make_tables(dsn: str) -> None:
    """Create stretto's tables and the host's."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "stretto"})
    try:
        await stretto.migrate(connection, "stretto")
        await connection.execute(TABLE)
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ["STRETTO_DATABASE_URL"]))
