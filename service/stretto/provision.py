"""Provides what the settings name: a database that answers, NATS, and a way to verify tokens.

Without a database URL the service runs a PostgreSQL of its own and makes its own secret, both in
the data dir. It runs a NATS of its own where the settings ask for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import ssl
import stat
import tempfile
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.embedded.lock_file import sole_service
from stretto.embedded.nats import embedded_nats
from stretto.embedded.postgres import embedded_postgres
from stretto.embedded.watch import watched_server
from stretto.http.tokens.keys import secret_key
from stretto.postgres.connections import Database
from stretto.postgres.database_url import place_of
from stretto.postgres.driver_errors import is_lasting, is_without_tls
from stretto.postgres.migrate import migrate
from stretto.postgres.migration_steps import newest_number
from stretto.setting_texts import EMBEDDED
from stretto.start_errors import ConfigurationError
from stretto.store_errors import Unreachable
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from stretto.config import Settings
    from stretto.http.tokens.authenticator import TokenSettings
    from stretto.postgres.driver_connection import Connection

# A database that is being started or failed over needs some seconds; a wrong address never works.
START_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Place:
    """Where the data are, and the folder of the embedded server's programs if it is embedded."""

    dsn: str
    programs: Path | None


@asynccontextmanager
async def database_place(
    settings: Settings,
    notify: Callable[[str], None],
    *,
    is_service: bool = False,
    migrates: bool = True,
    on_lost: Callable[[str], object] | None = None,
) -> AsyncIterator[Place]:
    """Provide the database as long as the context lasts.

    An embedded one is migrated too, unless the caller does that itself (`migrates` is false). It
    belongs to one service at a time; commands share it. `notify` gets each message for the
    operator as one line; `on_lost` gets the one about a server that has ended by itself. Raises `EmbeddedError` or `ConfigurationError`.
    """
    if not settings.is_embedded:
        yield Place(settings.database_url, None)
        return
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            embedded_postgres(settings.data_dir, notify=notify)
        )
        if is_service:
            stack.enter_context(sole_service(server.data_dir))
        if on_lost is not None:
            log = server.data_dir / "postgres/log"
            await stack.enter_async_context(watched_server("PostgreSQL", server.pid, log, on_lost))
        if server.is_new and not is_service:
            # The operator may have meant another database: this one has nothing to show.
            notify(
                f"STRETTO_DATABASE_URL is not set: this is a new, empty database in"
                f" {server.data_dir}"
            )
        schema = settings.component.db_schema
        if migrates:
            async with database_connection(server.dsn, schema, needs_tables=False) as connection:
                await migrate(connection, schema)
        yield Place(server.dsn, server.bin_dir)


@asynccontextmanager
async def bus_place(
    settings: Settings, on_lost: Callable[[str], object] | None = None
) -> AsyncIterator[str]:
    """Provide the URL of NATS as long as the context lasts; empty where none is set.

    `on_lost` is called as in `database_place`. Raises `EmbeddedError`, or `ConfigurationError` where the client is not installed.
    """
    url = settings.component.nats_url
    if url and find_spec("nats") is None:
        message = "STRETTO_NATS_URL needs the client of NATS: install stretto[nats]"
        raise ConfigurationError(message)
    if url != EMBEDDED:
        yield url
        return
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(embedded_nats(settings.data_dir))
        if on_lost is not None:
            log = settings.data_dir / "nats/nats.log"
            await stack.enter_async_context(watched_server("NATS", server.pid, log, on_lost))
        yield server.url


@asynccontextmanager
async def database_connection(
    dsn: str, schema: str, *, needs_tables: bool = True
) -> AsyncIterator[Connection]:
    """Provide one connection; wait up to `START_SECONDS` for a database that does not answer yet.

    Raises `Unreachable`, also where the tables are needed and cannot be used as they are.
    """
    async with Database(dsn, schema=schema) as database:
        connection = await _acquire_patiently(database, place_of(dsn))
        try:
            if needs_tables and await database.require_schema(connection):
                logger.warning("schema.newer", known=newest_number())
            yield connection
        finally:
            await database.release(connection)


async def _acquire_patiently(
    database: Database, place: str, pause: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> Connection:
    """Return a connection; the pause between two tries is for tests."""
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while True:
        try:
            return await database.acquire(may_take_long=True)
        except Unreachable as error:
            cause = error.__cause__
            # PgBouncer answers so for its own server; for our settings only where we send some.
            is_pooler = isinstance(cause, asyncpg.ProtocolViolationError) and not database.is_pooled
            if is_pooler or is_lasting(cause):
                message = f"no connection to the database at {place}: {error}"
                if not is_pooler:
                    message = f"{message}; {_remedy(cause)}"
                raise Unreachable(message) from error
            if asyncio.get_running_loop().time() >= deadline:
                message = (
                    f"no connection to the database at {place} within {START_SECONDS:.0f} s:"
                    f" {error}; is it started, and is STRETTO_DATABASE_URL right?"
                )
                raise Unreachable(message) from error
        await pause(RETRY_SECONDS)


def _remedy(cause: BaseException | None) -> str:
    """Return what an operator can do about a connection that no waiting will bring."""
    state = (isinstance(cause, asyncpg.PostgresError) and cause.sqlstate) or ""
    if state.startswith("28"):
        return "give STRETTO_DATABASE_URL a user and a password that the server takes"
    if state.startswith("3D"):
        return "create the database, or name another one in STRETTO_DATABASE_URL"
    if state == "42501":
        return (
            "have the database's owner GRANT CONNECT to this user, and leave parameters that only a"
            " superuser may set out of STRETTO_DATABASE_URL"
        )
    if state.startswith(("22", "42")):
        return (
            "correct the parameters of STRETTO_DATABASE_URL: the server takes them as its settings"
        )
    if isinstance(cause, ssl.SSLError):
        return "correct sslmode, sslrootcert, sslcert or sslkey of STRETTO_DATABASE_URL"
    if is_without_tls(cause):
        return (
            "turn TLS on at the server (PostgreSQL's setting ssl), or correct sslmode of"
            " STRETTO_DATABASE_URL: the server takes connections without TLS alone"
        )
    if isinstance(cause, asyncpg.InterfaceError):
        # The driver's own message names the part.
        return "correct it in STRETTO_DATABASE_URL"
    return _address_remedy()


def _address_remedy() -> str:
    """Return what an operator can do about an address that the driver cannot use."""
    # The driver reads it whatever the URL says, except where it is empty.
    ports = os.environ.get("PGPORT") or "0"
    if not all(port.strip().isdecimal() for port in ports.split(",")):
        return "correct or unset the environment's PGPORT: it is no port"
    return (
        "correct STRETTO_DATABASE_URL: postgresql://user:password@host:5432/database, with %40 for"
        " an @ and %2F for a / of the password"
    )


def token_settings(settings: Settings) -> TokenSettings:
    """Return how tokens are verified; raises `ConfigurationError` where they cannot be.

    The settings have refused keys that cannot be used; the own secret is refused here. Each worker
    would find that out, and be replaced by another one.
    """
    tokens = settings.tokens
    if not tokens.ways and not settings.is_embedded:
        message = (
            "tokens cannot be verified: with STRETTO_DATABASE_URL set, set one of"
            " STRETTO_JWT_SECRET, STRETTO_JWT_PUBLIC_KEY or STRETTO_JWKS_URL too"
        )
        raise ConfigurationError(message)
    if not tokens.ways:
        tokens = replace(tokens, jwt_secret=_own_secret(settings.data_dir / "jwt-secret"))
    return tokens


def _own_secret(path: Path) -> str:
    """Return the data dir's secret, made on first use and readable by its owner alone.

    A file that others can write or read is refused: they could make tokens with it.
    """
    try:
        if not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _make_secret(path)
        # A link that was planted may lead to a file whose content its planter knows.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, encoding="utf-8", errors="surrogateescape") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                message = (
                    f"{path} belongs to another user, or others may read it: with this secret they"
                    " can make tokens. Remove it, and the next start makes another one (tokens made"
                    " with the old one end); or `chmod 600` and `chown` it if it was not read"
                )
                raise ConfigurationError(message)
            secret = file.read()
    except OSError as error:
        message = (
            f"{path} cannot be used ({error.strerror}): it must be a file of ours and no link. Set"
            " STRETTO_DATABASE_URL for a database of your own, or STRETTO_DATA_DIR to a folder that"
            " may be written"
        )
        raise ConfigurationError(message) from error
    try:
        secret_key(secret)
    except ConfigurationError as error:
        message = (
            f"{path} holds no secret that can be used. Remove it, and the next start makes another"
            " one (tokens made with the old one end)"
        )
        raise ConfigurationError(message) from error
    return secret


def _make_secret(path: Path) -> None:
    """Write a secret where there is none; of several processes the first one's counts."""
    # An unpredictable name and a new file: a file or link that was planted is not written to.
    descriptor, draft = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
        # Linking fails where another process was first, and never shows half a secret.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        Path(draft).unlink()
