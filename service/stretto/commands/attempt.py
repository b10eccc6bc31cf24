"""`stretto attempt`: the state of one attempt."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.commands.console import stdout
from stretto.commands.options import DatabaseUrl, DataDir, idempotency_key, user_id
from stretto.commands.reports import attempt_text, unknown_attempt
from stretto.commands.running import opened, run
from stretto.config import read_settings
from stretto.creation.lookup import AttemptLookup
from stretto.errors import NotFound
from stretto.postgres.attempts import PostgresAttemptStore


def attempt(
    owner: Annotated[str, typer.Argument(help="The user who made the attempt.")],
    key: Annotated[str, typer.Argument(help="The idempotency key.")],
    heal: Annotated[
        bool, typer.Option(help="Settle the attempt if it is pending although its group exists.")
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show the state of an attempt, as JSON; changes nothing.

    `record` says whether the attempt's own row is kept, was swept, or was deleted too early.
    """
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    retention_days = settings.component.retention.retention_days
    owner_id, parsed_key = user_id(owner), idempotency_key(key)

    async def work() -> None:
        async with opened(settings) as database:
            lease_seconds = settings.component.creator.lease_seconds
            lookup = AttemptLookup(PostgresAttemptStore(database), lease_seconds)
            try:
                report = await (
                    lookup.look_up(owner_id, parsed_key, wait_seconds=0)
                    if heal
                    else lookup.look(owner_id, parsed_key)
                )
            except NotFound as error:
                detail = unknown_attempt(owner_id, parsed_key, retention_days)
                raise NotFound(detail) from error
        stdout.print(attempt_text(report, retention_days))

    run(work(), settings)
