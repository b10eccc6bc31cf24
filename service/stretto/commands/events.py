"""`stretto events`: dead letters, and whether the webhook's endpoint is called."""

from __future__ import annotations

from typing import Annotated, Final
from uuid import UUID

import typer

from stretto.commands.console import stdout
from stretto.commands.options import DatabaseUrl, DataDir
from stretto.commands.running import connected, run
from stretto.environment import read_settings
from stretto.errors import NotFound
from stretto.postgres.deliveries import dead_letters, hasten_deliveries, retry_dead_letters
from stretto.webhook.sender import LEASE_SECONDS
from stretto.webhook.store import disabled_at, enable, paused_until

# As many as an operator can read.
DEAD_LETTERS_MAX: Final = 1000
# The driver's times are in UTC.
_TIME: Final = "%FT%TZ"


def events(
    retry: Annotated[
        list[UUID] | None, typer.Option(help="Retry this one; may be given several times.")
    ] = None,
    retry_all: Annotated[bool, typer.Option(help="Retry all of them.")] = False,
    retry_waiting: Annotated[
        bool, typer.Option(help="Try those now that wait for another try; none of them is dead.")
    ] = False,
    enable_webhook: Annotated[
        bool,
        typer.Option(help="Send events again to an endpoint that answered 410, or is paused."),
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List dead letters, or retry them.

    These are events that the bus or the webhook's endpoint has refused too often.
    """
    if retry and retry_all:
        raise typer.BadParameter("--retry-all retries every dead letter: leave out --retry")
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    writes = bool(retry) or retry_all or retry_waiting or enable_webhook
    lease_seconds = max(LEASE_SECONDS, settings.component.relay.relay_lease_seconds)

    async def work() -> None:
        async with connected(settings, writes=writes) as connection:
            if enable_webhook:
                is_changed = await enable(connection)
                stdout.print(
                    f"the webhook {'is enabled' if is_changed else 'was not disabled or paused'}"
                )
            if retry_waiting:
                count = await hasten_deliveries(connection, lease_seconds)
                stdout.print(f"{count} waiting events will be tried now")
            if retry or retry_all:
                count = await retry_dead_letters(connection, None if retry_all else retry)
                stdout.print(f"{count} events will be tried again")
                if retry and count < len({*retry}):
                    message = f"{len({*retry}) - count} of these ids are no dead letters"
                    raise NotFound(message)
                return
            # One more than is shown says whether there are more.
            letters = await dead_letters(connection, DEAD_LETTERS_MAX + 1)
            since = await disabled_at(connection)
            pause_end = await paused_until(connection)
        for letter in letters[:DEAD_LETTERS_MAX]:
            stdout.print(
                f"{letter['event_id']} {letter['event_type']} of {letter['created_at']:{_TIME}},"
                f" {letter['tries']} tries: {letter['dead_reason']}"
            )
        if len(letters) > DEAD_LETTERS_MAX:
            stdout.print(f"the oldest {DEAD_LETTERS_MAX} dead letters; there are more")
        else:
            stdout.print(f"{len(letters) or 'no'} dead letters")
        if since is not None:
            stdout.print(f"the webhook is disabled: its endpoint answered 410 at {since:{_TIME}}")
        if pause_end is not None:
            stdout.print(
                f"the webhook is paused until {pause_end:{_TIME}}, as its endpoint has asked:"
                " --enable-webhook ends the pause"
            )

    run(work(), settings)
