"""`stretto groups`: the groups that a user owns."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

import typer

from stretto.commands.console import say, stdout
from stretto.commands.options import DatabaseUrl, DataDir, user_id
from stretto.commands.reports import group_line
from stretto.commands.running import opened, run
from stretto.environment import read_settings
from stretto.postgres.groups import PostgresGroupStore

# As many as an operator can read.
GROUPS_MAX: Final = 1000


def groups(
    owner: Annotated[str, typer.Argument(help="The user who owns the groups.")],
    limit: Annotated[int, typer.Option(min=1, max=GROUPS_MAX, help="How many at most.")] = 100,
    before: Annotated[
        UUID | None, typer.Option(help="The conversation id of the last group of the list before.")
    ] = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List a user's own groups, newest first, as lines of JSON."""
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    owner_id = user_id(owner)

    async def work() -> None:
        async with opened(settings) as database:
            # One more than is shown says whether there are more.
            store = PostgresGroupStore(database)
            found = await store.groups_of_owner(owner_id, before, limit + 1)
        for group in found[:limit]:
            stdout.print(group_line(group))
        if len(found) > limit:
            say(f"there are more: --before {found[limit - 1].conversation_id}")

    run(work(), settings)
