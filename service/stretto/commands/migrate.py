"""`stretto migrate`: the schema of this version, and the rights of the service's role."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.progress import Progress, TaskID

from stretto.commands.console import stderr, stdout
from stretto.commands.options import DatabaseUrl, DataDir
from stretto.commands.running import connected, run
from stretto.environment import read_settings
from stretto.postgres.migrate import grant, require_roles
from stretto.postgres.migrate import migrate as migrate_database
from stretto.postgres.migration_plan import Plan
from stretto.postgres.migration_plan import plan as plan_migration
from stretto.postgres.migration_steps import Step, Way


def migrate(
    grant_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            help="Give this role the rights that the service needs; may be given several times.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show what would run, and what would wait for it.")
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Bring the database's schema up to date."""
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    schema = settings.component.db_schema

    async def work() -> None:
        async with connected(
            settings, writes=True, needs_tables=False, makes=not plan
        ) as connection:
            await require_roles(connection, grant_to or ())
            if plan:
                planned = await plan_migration(connection, schema)
                stdout.print("\n".join(_lines(planned, grant_to or [])))
                return
            with ExitStack() as stack:
                numbers = await migrate_database(connection, schema, progress=_progress(stack))
            if grant_to:
                await grant(connection, schema, grant_to)
        stdout.print(f"applied: {', '.join(map(str, numbers))}" if numbers else "up to date")
        if grant_to:
            stdout.print(f"granted to {', '.join(dict.fromkeys(grant_to))}")

    run(work(), settings)


def _progress(stack: ExitStack) -> Callable[[Step, int, int], None]:
    """Return what shows how far a step is, for as long as the stack is open; nothing until then."""
    tasks: dict[int, TaskID] = {}
    bars = Progress(console=stderr)

    def show(step: Step, done: int, total: int) -> None:
        if not tasks:
            stack.enter_context(bars)
        if step.number not in tasks:
            tasks[step.number] = bars.add_task(f"{step.number:04} {step.title}")
        # The progress of an index is not known: its bar only moves.
        bars.update(tasks[step.number], completed=done, total=total or None)

    return show


def _lines(planned: Plan, roles: list[str]) -> list[str]:
    """Return the plan: a line for each step, which instances it leaves, and the rights."""
    lines = [_line(step, planned) for step in planned.steps] or ["up to date"]
    if planned.steps:
        oldest = planned.oldest_served
        lines.append(f"afterwards, instances made for schema {oldest} or newer can run")
    return [*lines, *(f"rights for {role}" for role in roles)]


def _line(step: Step, planned: Plan) -> str:
    said = f"{step.number:04} {step.title}: {step.way}"
    match step.way:
        case Way.CONCURRENTLY:
            return (
                f"{said}, outside a transaction; delays no request, and waits for the end of every"
                " transaction that is open"
            )
        case Way.BATCHES:
            done = planned.filled_rows if step is planned.steps[0] else 0
            rows = planned.sizes[step.table]["rows"]
            return f"{said} of {step.table}, a transaction each: {done} of about {rows} rows done"
    locks = [
        f"{table} ({mode}, {decimal(planned.sizes[table]['bytes'])})"
        for table, mode in step.locks.items()
    ]
    return f"{said}; locks {', '.join(locks) or 'no table that requests wait for'}"
