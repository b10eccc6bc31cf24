"""`stretto migrate`: the schema of this version, and the rights of the service's role."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.commands.console import stdout
from stretto.commands.options import DatabaseUrl, DataDir
from stretto.commands.running import connected, run
from stretto.config import read_settings
from stretto.postgres.migrate import grant, require_roles
from stretto.postgres.migrate import migrate as migrate_database


def migrate(
    grant_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            help="Give this role the rights that the service needs; may be given several times.",
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Bring the database's schema up to date."""
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    schema = settings.component.db_schema

    async def work() -> None:
        async with connected(settings, writes=True, needs_tables=False) as connection:
            await require_roles(connection, grant_to or ())
            numbers = await migrate_database(connection, schema)
            if grant_to:
                await grant(connection, schema, grant_to)
        stdout.print(f"applied: {', '.join(map(str, numbers))}" if numbers else "up to date")

    run(work(), settings)
