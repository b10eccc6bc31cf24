"""The command `stretto`: runs the service and looks after its database.

Every expected error ends in one message and one of `help.EXIT_CODES`, never in a traceback. A command
is a module, which is loaded once the command is chosen: operators and scripts run short commands, and
the service's libraries alone take half a second to load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from stretto.commands.help import (
    EXIT_DATABASE,
    EXIT_DONE,
    EXIT_EMBEDDED,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_OUTPUT,
    EXIT_PORT,
    EXIT_USAGE,
    EXIT_VIOLATION,
    EXIT_WORKERS,
    SETTINGS_HELP,
    epilog,
)
from stretto.interrupts import ended_by_interrupt
from stretto.standard_streams import (
    OutputLost,
    drop_output,
    escape_what_cannot_be_written,
    ignore_lost_messages,
    open_missing,
    report_lost_output,
)

_EXAMPLES: Final = (
    "stretto serve",
    "stretto token alice",
    "STRETTO_DATABASE_URL=postgresql://stretto@db/chat stretto check",
)
# The exit codes of a command that works on the database.
_DATABASE: Final = (
    *(EXIT_DONE, EXIT_USAGE, EXIT_DATABASE, EXIT_EMBEDDED, EXIT_OUTPUT, EXIT_INTERRUPTED),
)


@dataclass(frozen=True, slots=True)
class _Command:
    """A command: the function of its name, in the module of its name."""

    name: str
    summary: str
    """The first sentence of the function's docstring."""
    examples: tuple[str, ...]
    codes: tuple[int, ...]
    more_codes: str = ""
    context: dict[str, Any] = field(default_factory=dict)


# In the order of `--help`.
_COMMANDS: Final = (
    _Command(
        "serve",
        "Run the service until SIGTERM or Ctrl-C.",
        ("stretto serve --port 9000 --workers 2",),
        (*_DATABASE, EXIT_PORT, EXIT_WORKERS),
    ),
    _Command(
        "migrate",
        "Bring the database's schema up to date.",
        (
            "STRETTO_DATABASE_URL=postgresql://stretto@db/chat stretto migrate",
            "stretto migrate --grant-to app",
            "stretto migrate --plan",
        ),
        _DATABASE,
    ),
    _Command(
        "token",
        "Print a bearer token (HS256) for a user, for trying things out.",
        ("stretto token alice --hours 8",),
        (EXIT_DONE, EXIT_USAGE, EXIT_OUTPUT),
    ),
    _Command(
        "attempt",
        "Show the state of an attempt, as JSON; changes nothing.",
        ("stretto attempt alice 6f1c2e90", "stretto attempt alice 6f1c2e90 --history"),
        (*_DATABASE, EXIT_NOT_FOUND),
    ),
    _Command(
        "groups",
        "List a user's own groups, newest first, as lines of JSON.",
        ("stretto groups alice --limit 10",),
        _DATABASE,
    ),
    _Command(
        "url",
        "Print the URL of the database or NATS, with its password.",
        ("stretto url", "stretto url nats"),
        (EXIT_DONE, EXIT_USAGE, EXIT_EMBEDDED, EXIT_OUTPUT, EXIT_INTERRUPTED),
    ),
    _Command(
        "psql",
        "Open the database with psql; all arguments are psql's.",
        ("stretto psql -c 'table schema_version'",),
        (EXIT_USAGE, EXIT_EMBEDDED),
        "else psql's own",
        {"allow_extra_args": True, "ignore_unknown_options": True},
    ),
    _Command(
        "sweep", "Delete what is past its retention.", ("stretto sweep --dry-run",), _DATABASE
    ),
    _Command(
        "events",
        "List dead letters, or retry them.",
        ("stretto events", "stretto events --retry-all"),
        (*_DATABASE, EXIT_NOT_FOUND),
    ),
    _Command(
        "bus",
        "Show the streams on NATS: whose they are, and their servers.",
        ("stretto bus", "stretto bus --resize"),
        _DATABASE,
    ),
    _Command(
        "check",
        "Verify the guarantees G1 to G5 over the whole database.",
        ("stretto check && echo sound",),
        (*_DATABASE, EXIT_VIOLATION),
    ),
    _Command(
        "size",
        "Estimate rows, bytes, WAL, connections and memory.",
        ("stretto size --rate 200 --members 5 --retention 30d",),
        (EXIT_DONE, EXIT_USAGE, EXIT_OUTPUT),
    ),
    _Command(
        "openapi",
        "Print the HTTP contract as OpenAPI 3.1.",
        ("stretto openapi > openapi.json",),
        (EXIT_DONE, EXIT_OUTPUT),
    ),
)


class _Group(TyperGroup):
    """Loads a command once it is chosen; until then its summary stands for it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command's name, the command, and its own arguments."""
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and _load(next(each for each in _COMMANDS if each.name == name)), rest


def _load(command: _Command) -> Any:
    with ended_by_interrupt():
        module = import_module(f"stretto.commands.{command.name}")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(
        context_settings=command.context,
        epilog=epilog(*command.examples, codes=command.codes, more=command.more_codes),
    )(getattr(module, command.name))
    return get_command(alone)


app = typer.Typer(
    cls=_Group,
    help="stretto creates chat groups exactly once per idempotency key.",
    epilog=f"{SETTINGS_HELP}\n\n{epilog(*_EXAMPLES)}",
    context_settings={"max_content_width": 100},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _each in _COMMANDS:
    app.command(_each.name, help=_each.summary)(lambda: None)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        # Packages' metadata take longer to read than all else here.
        from importlib.metadata import version  # noqa: PLC0415

        typer.echo(f"stretto {version('stretto')}")
        raise typer.Exit


@app.callback()
def command(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that belong to no command."""


def main() -> None:
    """Run the command; every expected error ends in one clear message and its exit code."""
    escape_what_cannot_be_written()
    open_missing()
    report_lost_output()
    ignore_lost_messages()
    try:
        app()
    except SystemExit:
        raise
    except BaseException as error:
        # They know the driver's errors: a command that works on the database has loaded them.
        from stretto.commands.console import fail  # noqa: PLC0415
        from stretto.commands.failures import failure_of  # noqa: PLC0415

        failure = failure_of(error)
        if failure is None:
            raise
        if isinstance(error, OutputLost):
            drop_output()
        fail(*failure)
