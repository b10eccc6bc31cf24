"""The command `stretto`: runs the service and looks after its database.

Every expected error ends in one message and one of `help.EXIT_CODES`, never in a traceback.
"""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING, Annotated, Any, Final

import asyncpg
import typer

from stretto.commands.attempt import attempt
from stretto.commands.bus import bus
from stretto.commands.check import check
from stretto.commands.console import fail, stdout
from stretto.commands.events import events
from stretto.commands.groups import groups
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
from stretto.commands.migrate import migrate
from stretto.commands.openapi import openapi
from stretto.commands.psql import psql
from stretto.commands.reports import database_failure
from stretto.commands.serve import serve
from stretto.commands.size import size
from stretto.commands.sweep import sweep
from stretto.commands.token import token
from stretto.errors import NotFound
from stretto.postgres.driver_errors import in_words
from stretto.standard_streams import (
    OutputLost,
    drop_output,
    escape_what_cannot_be_written,
    open_missing,
    report_lost_output,
)
from stretto.start_errors import ConfigurationError, EmbeddedError, ListenError, WorkersError
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

_EXAMPLES: Final = (
    "stretto serve",
    "stretto token alice",
    "STRETTO_DATABASE_URL=postgresql://stretto@db/chat stretto check",
)
# The exit codes of a command that works on the database.
_DATABASE: Final = (
    *(EXIT_DONE, EXIT_USAGE, EXIT_DATABASE, EXIT_EMBEDDED, EXIT_OUTPUT, EXIT_INTERRUPTED),
)
# Every command, in the order of `--help`: examples of it, and its exit codes.
_COMMANDS: Final[tuple[tuple[Callable[..., None], tuple[str, ...], tuple[int, ...]], ...]] = (
    (serve, ("stretto serve --port 9000 --workers 2",), (*_DATABASE, EXIT_PORT, EXIT_WORKERS)),
    (
        migrate,
        (
            "STRETTO_DATABASE_URL=postgresql://stretto@db/chat stretto migrate",
            "stretto migrate --grant-to app",
            "stretto migrate --plan",
        ),
        _DATABASE,
    ),
    (token, ("stretto token alice --hours 8",), (EXIT_DONE, EXIT_USAGE, EXIT_OUTPUT)),
    (
        attempt,
        ("stretto attempt alice 6f1c2e90", "stretto attempt alice 6f1c2e90 --history"),
        (*_DATABASE, EXIT_NOT_FOUND),
    ),
    (groups, ("stretto groups alice --limit 10",), _DATABASE),
    (psql, ("stretto psql -c 'table schema_version'",), (EXIT_USAGE, EXIT_EMBEDDED)),
    (sweep, ("stretto sweep --dry-run",), _DATABASE),
    (events, ("stretto events", "stretto events --retry-all"), (*_DATABASE, EXIT_NOT_FOUND)),
    (bus, ("stretto bus", "stretto bus --resize"), _DATABASE),
    (check, ("stretto check && echo sound",), (*_DATABASE, EXIT_VIOLATION)),
    (
        size,
        ("stretto size --rate 200 --members 5 --retention 30d",),
        (EXIT_DONE, EXIT_USAGE, EXIT_OUTPUT),
    ),
    (openapi, ("stretto openapi > openapi.json",), (EXIT_DONE, EXIT_OUTPUT)),
)
# All arguments of psql are its own, and so are its exit codes.
_PASSED_ON: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True}

app = typer.Typer(
    help="stretto creates chat groups exactly once per idempotency key.",
    epilog=f"{SETTINGS_HELP}\n\n{epilog(*_EXAMPLES)}",
    context_settings={"max_content_width": 100},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _function, _examples, _codes in _COMMANDS:
    app.command(
        context_settings=_PASSED_ON if _function is psql else None,
        epilog=epilog(
            *_examples, codes=_codes, more="else psql's own" if _function is psql else ""
        ),
    )(_function)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        stdout.print(f"stretto {version('stretto')}")
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
    try:
        app()
    except ConfigurationError as error:
        fail(str(error), EXIT_USAGE)
    except EmbeddedError as error:
        fail(str(error), EXIT_EMBEDDED)
    except Unreachable as error:
        fail(str(error), EXIT_DATABASE)
    except NotFound as error:
        fail(error.detail, EXIT_NOT_FOUND)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        fail(database_failure(error), EXIT_DATABASE)
    except OutputLost as error:
        drop_output()
        fail(f"the output cannot be written: {in_words(error)}", EXIT_OUTPUT)
    except OSError as error:
        fail(f"the system refused: {in_words(error)}", EXIT_DATABASE)
    except ListenError as error:
        fail(str(error), EXIT_PORT)
    except WorkersError as error:
        fail(str(error), EXIT_WORKERS)
    except (asyncio.CancelledError, KeyboardInterrupt):
        fail("interrupted", EXIT_INTERRUPTED)
