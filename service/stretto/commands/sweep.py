"""`stretto sweep`: deletes what is past its retention."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from stretto.commands.console import stderr, stdout
from stretto.commands.options import DatabaseUrl, DataDir
from stretto.commands.running import connected, run
from stretto.environment import read_settings
from stretto.postgres.retention import PARTITIONS, sweepable
from stretto.postgres.retention import sweep as sweep_database

if TYPE_CHECKING:
    from collections.abc import Mapping


def sweep(
    dry_run: Annotated[bool, typer.Option(help="Only count.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete what is past its retention.

    Old attempts, whole partitions of the log of events, dead letters, the inbox. The attempts' keys
    still find their groups.
    """
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    retention = settings.component.retention

    async def work() -> None:
        async with connected(settings, writes=not dry_run) as connection:
            # A shell without the service's settings would delete by other ones.
            stderr.print(
                f"events are kept for {retention.event_retention_days} days"
                f" (STRETTO_EVENT_RETENTION_DAYS), the rest for {retention.retention_days}"
                " (STRETTO_RETENTION_DAYS)"
            )
            totals = await sweepable(connection, retention, now=None)
            if dry_run:
                stdout.print(f"would delete {_rows(totals)}")
                return
            with Progress(console=stderr) as progress:
                tasks = {name: progress.add_task(name, total=totals[name]) for name in totals}
                deleted = await sweep_database(
                    lambda: nullcontext(connection),
                    retention,
                    None,
                    lambda table, rows: progress.update(tasks[table], advance=rows),
                    is_patient=True,
                )
        stdout.print(f"deleted {_rows(deleted)}")

    run(work(), settings)


def _rows(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count} {'partitions ' if table == PARTITIONS else ''}of {table}"
        for table, count in counts.items()
    )
