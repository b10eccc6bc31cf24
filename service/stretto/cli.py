"""The command `stretto`: runs the service and looks after its database.

Every expected error ends in one message and one of `cli_help.EXIT_CODES`, never in a traceback.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import threading
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import UUID  # noqa: TC003 typer reads it when the program runs

import asyncpg
import typer
import uvloop
from rich.console import Console
from rich.progress import Progress

from stretto.cli_help import (
    EXIT_DATABASE,
    EXIT_DONE,
    EXIT_EMBEDDED,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_PORT,
    EXIT_USAGE,
    EXIT_VIOLATION,
    EXIT_WORKERS,
    SETTINGS_HELP,
    epilog,
    flag,
)
from stretto.cli_reports import attempt_text, database_failure, group_line, unknown_attempt
from stretto.config import Settings, read_settings
from stretto.creation.lookup import AttemptLookup
from stretto.domain import IdempotencyKey, UserId
from stretto.errors import (
    ConfigurationError,
    EmbeddedError,
    KeyInvalid,
    ListenError,
    NotFound,
    Unreachable,
    WorkersError,
)
from stretto.http.openapi import DOCUMENT
from stretto.http.tokens.authenticator import make_token
from stretto.nats.opening import describe_streams
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.check import check_database
from stretto.postgres.connections import Database
from stretto.postgres.driver_errors import in_words
from stretto.postgres.groups import PostgresGroupStore
from stretto.postgres.history import PostgresHistoryStore
from stretto.postgres.migrate import grant, require_roles
from stretto.postgres.migrate import migrate as migrate_database
from stretto.postgres.outbox import dead_letters, retry_dead_letters
from stretto.postgres.pooler import split_pooler
from stretto.postgres.retention import Retention, sweepable
from stretto.postgres.retention import sweep as sweep_database
from stretto.provision import bus_place, database_connection, database_place, token_settings
from stretto.server import serve as serve_until_stopped
from stretto.standard_streams import open_missing
from stretto.telemetry.log_writer import STOP_SECONDS
from stretto.telemetry.logs import configured_logging
from stretto.webhook.store import disabled_at, paused_until
from stretto.webhook.store import enable as enable_webhook_again

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

Result = TypeVar("Result")


_EXAMPLES: Final = (
    "stretto serve",
    "stretto token alice",
    "STRETTO_DATABASE_URL=postgresql://… stretto check",
)
# As many as an operator can read.
DEAD_LETTERS_MAX: Final = 1000
GROUPS_MAX: Final = 1000
# Ten years: for trying things out that is for ever, and every date after it can be written.
TOKEN_HOURS_MAX: Final = 10 * 365 * 24
# What a command may end in that works on the database.
_DATABASE_CODES: Final = (EXIT_DONE, EXIT_USAGE, EXIT_DATABASE, EXIT_EMBEDDED, EXIT_INTERRUPTED)

app = typer.Typer(
    help="stretto creates chat groups exactly once per idempotency key.",
    epilog=f"{SETTINGS_HELP}\n\n{epilog(*_EXAMPLES)}",
    context_settings={"max_content_width": 100},
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
# What comes from the database or the user is no markup.
stdout = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
stderr = Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)

DatabaseUrl = Annotated[str | None, flag("database_url")]
DataDir = Annotated[Path | None, flag("data_dir")]


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


@app.command(
    epilog=epilog(
        "stretto serve --port 9000 --workers 2",
        codes=sorted({*_DATABASE_CODES, EXIT_PORT, EXIT_WORKERS}),
    )
)
def serve(
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, flag("host")] = None,
    port: Annotated[int | None, flag("port")] = None,
    workers: Annotated[int | None, flag("workers")] = None,
    share_port: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Run the service until SIGTERM or Ctrl-C."""
    settings = read_settings(
        database_url=database_url, data_dir=data_dir, host=host, port=port, workers=workers
    )
    _run(serve_until_stopped(settings, _say, share_port=share_port), settings)


@app.command(
    epilog=epilog(
        "STRETTO_DATABASE_URL=postgresql://… stretto migrate",
        "stretto migrate --grant-to app",
        codes=_DATABASE_CODES,
    )
)
def migrate(
    grant_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE",
            help="Give this role the rights that the service needs; may be given often.",
        ),
    ] = None,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Bring the database's schema up to date."""
    settings = read_settings(database_url=database_url, data_dir=data_dir)

    async def run() -> None:
        async with (
            database_place(settings, _say) as place,
            database_connection(place.dsn, settings.db_schema, needs_tables=False) as connection,
        ):
            await require_roles(connection, grant_to or ())
            numbers = await migrate_database(connection, settings.db_schema)
            if grant_to:
                await grant(connection, settings.db_schema, grant_to)
        stdout.print(f"applied: {', '.join(map(str, numbers))}" if numbers else "up to date")

    _run(run(), settings)


@app.command(epilog=epilog("stretto token alice --hours 8", codes=(EXIT_DONE, EXIT_USAGE)))
def token(
    user: Annotated[str, typer.Argument(help="The user's id: becomes the token's `sub`.")],
    hours: Annotated[
        float, typer.Option(min=0.01, max=TOKEN_HOURS_MAX, help="How long it is good for.")
    ] = 24,
    data_dir: DataDir = None,
) -> None:
    """Print a bearer token (HS256) for a user, for trying things out."""
    settings = read_settings(data_dir=data_dir)
    tokens = token_settings(settings)
    if not tokens.secret:
        message = "only a service with STRETTO_JWT_SECRET can make tokens; ask your token issuer"
        raise ConfigurationError(message)
    stdout.print(
        make_token(
            tokens.secret,
            _user_id(user),
            lifetime_seconds=round(hours * 3600),
            audience=tokens.audience,
            issuer=tokens.issuer,
        )
    )


@app.command(
    epilog=epilog("stretto attempt alice 6f1c…", codes=sorted({*_DATABASE_CODES, EXIT_NOT_FOUND}))
)
def attempt(
    owner: Annotated[str, typer.Argument(help="The user who made the attempt.")],
    key: Annotated[str, typer.Argument(help="The idempotency key.")],
    heal: Annotated[
        bool, typer.Option(help="Settle the attempt if it is pending although its group exists.")
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show what became of an attempt, as JSON; changes nothing.

    `record` says whether the attempt's own row is kept, was swept, or was deleted too early.
    """
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    owner_id, parsed_key = _user_id(owner), _key(key)

    async def run() -> None:
        async with (
            database_place(settings, _say) as place,
            database_connection(place.dsn, settings.db_schema),
            Database(place.dsn, schema=settings.db_schema) as database,
        ):
            lookup = AttemptLookup(PostgresAttemptStore(database), settings.lease_seconds)
            try:
                report = await (
                    lookup.look_up(owner_id, parsed_key, wait_seconds=0)
                    if heal
                    else lookup.look(owner_id, parsed_key)
                )
            except NotFound as error:
                detail = unknown_attempt(owner_id, parsed_key, settings.retention_days)
                raise NotFound(detail) from error
        stdout.print(attempt_text(report, settings.retention_days))

    _run(run(), settings)


@app.command(epilog=epilog("stretto groups alice --limit 10", codes=_DATABASE_CODES))
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
    owner_id = _user_id(owner)

    async def run() -> None:
        async with (
            database_place(settings, _say) as place,
            database_connection(place.dsn, settings.db_schema),
            Database(place.dsn, schema=settings.db_schema) as database,
        ):
            # One more than is shown says whether there are more.
            store = PostgresGroupStore(database)
            found = await store.groups_of_owner(owner_id, before, limit + 1)
        for group in found[:limit]:
            stdout.print(group_line(group))
        if len(found) > limit:
            _say(f"there are more: --before {found[limit - 1].conversation_id}")

    _run(run(), settings)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog=epilog("stretto psql -c 'table schema_version'", codes=(EXIT_USAGE, EXIT_EMBEDDED))
    + "\n  else psql's own",
)
def psql(context: typer.Context) -> None:
    """Open the database with psql; all arguments are psql's."""
    settings = read_settings()

    async def run() -> int:
        async with database_place(settings, _say) as place:
            program = place.programs / "psql" if place.programs else shutil.which("psql")
            if program is None:
                message = "there is no psql here; install PostgreSQL's client programs"
                raise ConfigurationError(message)
            arguments, environment = _psql_call(place.dsn, settings.db_schema)
            # Ctrl-C cancels a query in psql; it must not take the database away from under it.
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
            process = await asyncio.create_subprocess_exec(
                program, *arguments, *context.args, env=environment
            )
            code = await process.wait()
        return code if code >= 0 else 128 - code

    raise typer.Exit(_run(run(), settings))


@app.command(epilog=epilog("stretto sweep --dry-run", codes=_DATABASE_CODES))
def sweep(
    dry_run: Annotated[bool, typer.Option(help="Only count.")] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete what is past its retention.

    Settled attempts, delivered events, the inbox. The attempts' keys still find their groups.
    """
    settings = read_settings(database_url=database_url, data_dir=data_dir)
    retention = Retention(settings.retention_days, settings.event_retention_days)

    async def run() -> None:
        async with (
            database_place(settings, _say) as place,
            database_connection(place.dsn, settings.db_schema) as connection,
        ):
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

    _run(run(), settings)


@app.command(epilog=epilog("stretto events", "stretto events --replay-all", codes=_DATABASE_CODES))
def events(
    replay: Annotated[
        list[UUID] | None, typer.Option(help="Have this one tried again; may be given often.")
    ] = None,
    replay_all: Annotated[bool, typer.Option(help="Have all of them tried again.")] = False,
    enable_webhook: Annotated[
        bool,
        typer.Option(help="Have events sent again to an endpoint that answered 410, or is paused."),
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List dead letters, or have them tried again.

    These are events that the bus or the webhook's endpoint has refused too often.
    """
    settings = read_settings(database_url=database_url, data_dir=data_dir)

    async def run() -> None:
        async with (
            database_place(settings, _say) as place,
            database_connection(place.dsn, settings.db_schema) as connection,
        ):
            if enable_webhook:
                is_news = await enable_webhook_again(connection)
                stdout.print(
                    f"the webhook {'is enabled' if is_news else 'was not disabled or paused'}"
                )
            if replay or replay_all:
                count = await retry_dead_letters(connection, None if replay_all else replay)
                stdout.print(f"{count} events will be tried again")
                return
            letters = await dead_letters(connection, DEAD_LETTERS_MAX)
            since = await disabled_at(connection)
            pause_end = await paused_until(connection)
        for letter in letters:
            stdout.print(
                f"{letter['event_id']} {letter['event_type']} of {letter['created_at']:%F %T},"
                f" {letter['tries']} tries: {letter['dead_reason']}"
            )
        stdout.print(f"{len(letters) or 'no'} dead letters")
        if since is not None:
            stdout.print(f"the webhook is disabled: its endpoint answered 410 at {since:%F %T}")
        if pause_end is not None:
            stdout.print(
                f"the webhook is paused until {pause_end:%F %T}, as its endpoint has asked:"
                " --enable-webhook ends the pause"
            )

    _run(run(), settings)


@app.command(epilog=epilog("stretto bus", "stretto bus --adopt", codes=_DATABASE_CODES))
def bus(
    adopt: Annotated[
        bool, typer.Option(help="Mark the streams of these names as ours, whosever they were.")
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show the streams on NATS, and whose they are.

    Their names and subjects are what consumers read. After a restore or an upgrade the database is
    another one to them: adopt them while all instances are stopped.
    """
    settings = read_settings(database_url=database_url, data_dir=data_dir)

    async def run() -> None:
        async with (
            database_place(settings, _say) as place,
            database_connection(place.dsn, settings.db_schema),
            Database(place.dsn, schema=settings.db_schema) as database,
            bus_place(settings) as nats_url,
        ):
            origin = await PostgresHistoryStore(database).origin()
            for line in await describe_streams(
                nats_url, settings.nats_prefix, origin, is_adopting=adopt
            ):
                stdout.print(line)

    _run(run(), settings)


@app.command(
    epilog=epilog("stretto check && echo sound", codes=sorted({*_DATABASE_CODES, EXIT_VIOLATION}))
)
def check(database_url: DatabaseUrl = None, data_dir: DataDir = None) -> None:
    """Verify the guarantees G1 to G5 over the whole database."""
    settings = read_settings(database_url=database_url, data_dir=data_dir)

    async def run() -> bool:
        async with (
            database_place(settings, _say) as place,
            database_connection(place.dsn, settings.db_schema) as connection,
        ):
            report = await check_database(connection, settings.event_retention_days)
        for violation in report.violations:
            stdout.print(f"{violation.group_id}: {violation.what}")
        stdout.print(
            f"{report.attempts} attempts, {report.groups} groups, {report.events} events:"
            f" {len(report.violations) or 'no'} violations"
        )
        return not report.violations

    if not _run(run(), settings):
        raise typer.Exit(EXIT_VIOLATION)


@app.command(epilog=epilog("stretto openapi > openapi.json", codes=(EXIT_DONE,)))
def openapi() -> None:
    """Print the HTTP contract as OpenAPI 3.1."""
    sys.stdout.write(DOCUMENT.decode())


def main() -> None:
    """Run the command; every expected error ends in one clear message and its exit code."""
    open_missing()
    try:
        app()
    except ConfigurationError as error:
        _fail(str(error), EXIT_USAGE)
    except EmbeddedError as error:
        _fail(str(error), EXIT_EMBEDDED)
    except Unreachable as error:
        _fail(str(error), EXIT_DATABASE)
    except NotFound as error:
        _fail(error.detail, EXIT_NOT_FOUND)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        _fail(database_failure(error), EXIT_DATABASE)
    except OSError as error:
        _fail(f"the system refused: {in_words(error)}", EXIT_DATABASE)
    except ListenError as error:
        _fail(str(error), EXIT_PORT)
    except WorkersError as error:
        _fail(str(error), EXIT_WORKERS)
    except (asyncio.CancelledError, KeyboardInterrupt):
        _fail("interrupted", EXIT_INTERRUPTED)


def _run(work: Coroutine[Any, Any, Result], settings: Settings) -> Result:
    as_json = None if settings.log_format == "auto" else settings.log_format == "json"
    with (
        configured_logging(level=settings.log_level, as_json=as_json),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        return runner.run(work)


def _rows(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{rows} of {table}" for table, rows in counts.items())


def _say(line: str) -> None:
    stderr.print(line)


def _fail(message: str, exit_code: int) -> None:
    speaking = threading.Thread(target=stderr.print, args=(f"stretto: {message}",), daemon=True)
    speaking.start()
    speaking.join(STOP_SECONDS)
    if speaking.is_alive():
        # A pipe that nobody reads: the usual end would wait for it, and for its lock.
        os._exit(exit_code)
    raise SystemExit(exit_code)


def _user_id(text: str) -> UserId:
    try:
        return UserId(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _key(text: str) -> IdempotencyKey:
    try:
        return IdempotencyKey.parse(text)
    except KeyInvalid as error:
        raise ConfigurationError(error.detail) from error


def _psql_call(dsn: str, schema: str) -> tuple[list[str], dict[str, str]]:
    """Return psql's arguments and environment: a password is never shown in the process list."""
    url, is_pooled = split_pooler(dsn)
    parts = urlsplit(url)
    # PgBouncer takes no options; there the role leads to the schema.
    options = os.environ.get("PGOPTIONS", "")
    if not is_pooled:
        options = f"{options} -c search_path={schema}".strip()
    account, at, place = parts.netloc.rpartition("@")
    user, _, password = account.partition(":")
    environment = {**os.environ, "PGOPTIONS": options} if options else {**os.environ}
    if password:
        environment["PGPASSWORD"] = unquote(password)
    kept = []
    for parameter in filter(None, parts.query.split("&")):
        name, _, value = map(unquote, parameter.partition("="))
        if name == "password":
            environment["PGPASSWORD"] = value
        elif name == "sslpassword":
            # libpq takes it from no variable.
            message = "psql would show the sslpassword to every user; use a key without one"
            raise ConfigurationError(message)
        else:
            kept.append(parameter)
    # Not `urlunsplit`: it drops the slashes before an empty host, which libpq wants.
    query = f"?{'&'.join(kept)}" if kept else ""
    return [f"{parts.scheme}://{user}{at}{place}{parts.path}{query}"], environment
