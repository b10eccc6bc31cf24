"""What an operator can do about a database that takes no connection, or no write."""

from __future__ import annotations

import os
import ssl

import asyncpg
from asyncpg.exceptions import TargetServerAttributeNotMatched

from stretto.postgres.driver_errors import (
    NO_RIGHT_STATE,
    READ_ONLY_STATE,
    is_missing_right,
    is_without_tls,
    sqlstate_of,
)

TAKE_WRITES = (
    "name the primary in STRETTO_DATABASE_URL, or have this database take writes again"
    " (default_transaction_read_only)"
)
FREE_CONNECTIONS = (
    "end sessions that are not needed (pg_stat_activity), or raise max_connections or the limit of"
    " the role or the database"
)
RAISE_LIMITS = (
    "raise the limit that the server names (temp_file_limit, or work_mem beside it) where it is set:"
    " for the server, the role or the database"
)
SHORTEN_LOGIN_RETRY = (
    "correct what it says, or where that is over, set server_login_retry = 1 in pgbouncer.ini: by default"
    " PgBouncer answers so for 15 s after one login that has failed"
)
# What PgBouncer says meanwhile, after the reason of the login that has failed.
_LOGIN_RETRY = "server_login_retry"
# Too many connections; of a role or a database with a limit of its own too.
_NO_CONNECTION_LEFT = "53300"
_OF_STATES = {
    READ_ONLY_STATE: TAKE_WRITES,
    _NO_CONNECTION_LEFT: FREE_CONNECTIONS,
    "53400": RAISE_LIMITS,
    "53100": "free space on the disk of PostgreSQL's server",
    "53200": "give PostgreSQL's server more memory, or lower its settings of memory",
}
# The server comes up or goes down, or a pooler has lost it: whether it is started is the question.
_AWAY_CLASSES = ("08", "57P")
ACT_ON_ANSWER = "the server is up and has answered this: its own log says more"


def remedy_of_waiting(cause: BaseException | None) -> str:
    """Return what to do about a connection that was waited for in vain."""
    if isinstance(cause, TargetServerAttributeNotMatched):
        return TAKE_WRITES
    state = sqlstate_of(cause) if isinstance(cause, asyncpg.PostgresError) else ""
    if state and _LOGIN_RETRY in str(cause):
        return SHORTEN_LOGIN_RETRY
    if state and not state.startswith(_AWAY_CLASSES):
        return remedy_of_state(state) or ACT_ON_ANSWER
    return "is it started, and is STRETTO_DATABASE_URL right?"


def remedy_of_state(state: str) -> str:
    """Return what to do about a database that takes no writes, or lacks resources; else nothing."""
    return _OF_STATES.get(state, "")


def remedy(cause: BaseException | None) -> str:
    """Return what to do about a connection that no waiting will bring."""
    state = sqlstate_of(cause) if isinstance(cause, asyncpg.PostgresError) else ""
    if is_missing_right(cause):
        return (
            "have a superuser grant this user what the server names, in this database, such as by"
            " GRANT EXECUTE ON FUNCTION"
        )
    if state:
        return _remedy_of_answer(state)
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


def _remedy_of_answer(state: str) -> str:
    """Return what to do about what the server has answered to a connection."""
    if state.startswith("28"):
        return "give STRETTO_DATABASE_URL a user and a password that the server takes"
    if state.startswith("3D"):
        return "create the database, or name another one in STRETTO_DATABASE_URL"
    if state == NO_RIGHT_STATE:
        return (
            "have the database's owner GRANT CONNECT to this user, and leave parameters that only a"
            " superuser may set out of STRETTO_DATABASE_URL"
        )
    if state.startswith(("22", "42")):
        return (
            "correct the parameters of STRETTO_DATABASE_URL: the server takes them as its settings"
        )
    return remedy_of_state(state) or ACT_ON_ANSWER


def _address_remedy() -> str:
    """Return what to do about an address that the driver cannot use."""
    # The driver reads it whatever the URL says, except where it is empty.
    ports = os.environ.get("PGPORT") or "0"
    if not all(port.strip().isdecimal() for port in ports.split(",")):
        return "correct or unset the environment's PGPORT: it is no port"
    return (
        "correct STRETTO_DATABASE_URL: postgresql://user:password@host:5432/database, with %40 for"
        " an @ and %2F for a / of the password"
    )
