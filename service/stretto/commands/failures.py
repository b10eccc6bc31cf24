"""What a command that has failed says, and its exit code."""

from __future__ import annotations

import asyncio

import asyncpg

from stretto.commands.help import (
    EXIT_DATABASE,
    EXIT_EMBEDDED,
    EXIT_INTERRUPTED,
    EXIT_NOT_FOUND,
    EXIT_OUTPUT,
    EXIT_PORT,
    EXIT_USAGE,
    EXIT_WORKERS,
)
from stretto.commands.reports import database_failure, is_lasting_failure
from stretto.errors import NotFound
from stretto.postgres.driver_errors import in_words
from stretto.standard_streams import OutputLost
from stretto.start_errors import (
    BusError,
    ConfigurationError,
    EmbeddedError,
    ListenError,
    WorkersError,
)
from stretto.store_errors import StoreError

_CODES = {
    ConfigurationError: EXIT_USAGE,
    EmbeddedError: EXIT_EMBEDDED,
    StoreError: EXIT_DATABASE,
    BusError: EXIT_DATABASE,
    ListenError: EXIT_PORT,
    WorkersError: EXIT_WORKERS,
}


def failure_of(error: BaseException) -> tuple[str, int] | None:
    """Return the message and the exit code of an expected error; None for any other."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return str(error), code
    match error:
        case NotFound():
            return error.detail, EXIT_NOT_FOUND
        case asyncpg.PostgresError() | asyncpg.InterfaceError() | asyncpg.InternalClientError():
            code = EXIT_USAGE if is_lasting_failure(error) else EXIT_DATABASE
            return database_failure(error), code
        case OutputLost():
            return f"the output cannot be written: {in_words(error)}", EXIT_OUTPUT
        case OSError():
            return f"the system refused: {in_words(error)}", EXIT_DATABASE
        case asyncio.CancelledError() | KeyboardInterrupt():
            return "interrupted", EXIT_INTERRUPTED
        case _:
            return None
