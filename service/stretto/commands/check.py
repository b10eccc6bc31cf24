"""`stretto check`: whether the guarantees hold."""

from __future__ import annotations

import typer

from stretto.commands.console import stdout, write_lines
from stretto.commands.help import EXIT_VIOLATION
from stretto.commands.options import DatabaseUrl, DataDir
from stretto.commands.running import connected, run
from stretto.environment import read_settings
from stretto.postgres.check import VIOLATIONS_MAX, check_database


def check(database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Verify the guarantees G1 to G5 over the whole database.

    It lists every violation; of each kind 100,000 at most, and says of which there are more.
    """
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    event_days = settings.component.retention.event_retention_days

    async def work() -> bool:
        async with connected(settings, writes=False) as connection:
            report = await check_database(connection, event_days)
        write_lines(f"{violation.group_id}: {violation.what}" for violation in report.violations)
        found = f"{len(report.violations) or 'no'} violations"
        if report.cut_kinds:
            kinds = ", ".join(report.cut_kinds)
            found = f"more than {found}; of {kinds} only the first {VIOLATIONS_MAX} are listed"
        stdout.print(
            f"{report.attempts} attempts, {report.groups} groups, {report.events} events: {found}"
        )
        return not report.violations

    if not run(work(), settings):
        raise typer.Exit(EXIT_VIOLATION)
