"""stretto as a component of another program, without HTTP.

Give it the URL of a PostgreSQL database, as an argument or in STRETTO_DATABASE_URL:

    python examples/embedded.py postgresql://chat:secret@localhost/chat
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid

import asyncpg

import stretto


async def main(dsn: str) -> None:
    """Create one group with two calls; print both answers."""
    await make_tables(dsn)
    new_group = stretto.NewGroup.parse(
        stretto.UserId("alice"), {"name": "Team", "members": ["bob", "carol"]}
    )
    # The key names one attempt. Keep it until the outcome is known, so that a call that was cut off
    # can be repeated.
    key = str(uuid.uuid4())
    # One component for the program's whole life: it keeps connections and remembers outcomes.
    async with stretto.open_component(dsn) as component:
        for _ in range(2):
            answer = await component.create(key, new_group)
            print(f"{answer.status.value}: group {answer.group.group_id}")


async def make_tables(dsn: str) -> None:
    """Do what `stretto migrate` does; a production system does it once, before a release."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "stretto"})
    try:
        await stretto.migrate(connection, "stretto")
    finally:
        await connection.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else os.environ["STRETTO_DATABASE_URL"]))
