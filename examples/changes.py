"""A group's life after its creation: changes that commit with the host's own rows.

Give it the URL of a PostgreSQL database, as an argument or in STRETTO_DATABASE_URL:

    python examples/changes.py postgresql://chat:secret@localhost/chat
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from typing import Final

import asyncpg

import stretto

# A host's own table.
TABLE: Final = "CREATE TABLE IF NOT EXISTS public.audit (group_id uuid, what text)"
AUDIT: Final = "INSERT INTO public.audit VALUES ($1, $2)"


async def main(dsn: str) -> None:
    """Create a group and change it; print what has become of each change."""
    async with asyncpg.create_pool(dsn, server_settings={"search_path": "stretto,public"}) as pool:
        async with pool.acquire() as connection:
            await stretto.migrate(connection, "stretto")
            await connection.execute(TABLE)
        async with stretto.open_component(pool=pool) as component:
            new_group = stretto.NewGroup.parse(stretto.UserId("alice"), {"name": "Team"})
            answer = await component.create(str(uuid.uuid4()), new_group)
            group_id = answer.group.group_id
            async with pool.acquire() as connection:
                for _ in range(2):
                    # Both or none; the second time dave is a member already.
                    async with connection.transaction():
                        change = await stretto.add_members(connection, group_id, {"dave": "admin"})
                        if change is not None:
                            await connection.execute(AUDIT, group_id, "dave was added")
                    print(f"added: {'nobody' if change is None else ', '.join(change.users)}")
                try:
                    async with connection.transaction():
                        await stretto.remove_members(connection, group_id, ["alice"])
                except stretto.ChangeRefused as error:
                    print(f"refused: {error.failure.code}")
            # The readers of the log look at once, in all processes.
            component.announce()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ["STRETTO_DATABASE_URL"]))
