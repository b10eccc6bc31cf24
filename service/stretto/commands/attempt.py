"""`stretto attempt`: the state of one attempt."""

from __future__ import annotations

from typing import Annotated

import typer

from stretto.commands.console import stdout
from stretto.commands.options import DatabaseUrl, DataDir, idempotency_key, user_id
from stretto.commands.reports import (
    attempt_text,
    deleted_text,
    gone_text,
    unknown_attempt,
    with_history,
)
from stretto.commands.running import opened, run
from stretto.creation.lookup import AttemptLookup
from stretto.domain import group_id
from stretto.environment import read_settings
from stretto.errors import GroupDeleted, NotFound
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.trail import PostgresTrailStore


def attempt(
    owner: Annotated[str, typer.Argument(help="The user who made the attempt.")],
    key: Annotated[str, typer.Argument(help="The idempotency key.")],
    heal: Annotated[
        bool, typer.Option(help="Settle the attempt if it is pending although its group exists.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option(help="Show its trail as well: what was not the normal way, oldest first."),
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
        async with opened(settings, reads_outcomes=True) as database:
            lease_seconds = settings.component.creator.lease_seconds
            store = PostgresAttemptStore(database)
            lookup = AttemptLookup(store, lease_seconds)
            text = None
            try:
                report = await (
                    lookup.look_up(owner_id, parsed_key, wait_seconds=0)
                    if heal
                    else lookup.look(owner_id, parsed_key)
                )
                text = attempt_text(report, retention_days)
            except GroupDeleted:
                id_ = group_id(owner_id, parsed_key)
                tombstone = (await store.look(id_, lease_seconds, owner_id)).tombstone
                text = deleted_text(id_, tombstone.deleted_at if tombstone else None)
            except NotFound:
                pass
            trail = None
            if history:
                trail = await PostgresTrailStore(database).read(group_id(owner_id, parsed_key))
        if text is None and not trail:
            raise NotFound(unknown_attempt(owner_id, parsed_key, retention_days))
        text = text or gone_text(owner_id, parsed_key)
        stdout.print(text if trail is None else with_history(text, trail))

    run(work(), settings)
