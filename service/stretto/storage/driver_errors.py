"""What a driver's error says about a write: committed, not committed, or nobody knows.

The one place where errors of asyncpg and the socket become the store's own. They are told apart by
SQLSTATE and by whether the connection lives, never by their text.
"""

from __future__ import annotations

from typing import Final

import asyncpg

from stretto.errors import Failure
from stretto.protocol.ports import (
    InDoubt,
    Locked,
    Misconfigured,
    OutcomeUnknown,
    Refused,
    StoreError,
    Transient,
)

# Everything that asyncpg and the socket raise.
DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

# The connection broke, or somebody between us and the server says so (PgBouncer: 08P01); the server
# is going down; its disk or its memory is damaged. The write may have been committed.
# 40003 says so itself: servers that speak PostgreSQL's protocol use it.
_UNKNOWN_CLASSES: Final = ("08", "40003", "57P", "58", "XX")
# The server closes the connection after these, perhaps a moment after the driver has told us.
_UNKNOWN_SEVERITIES: Final = ("FATAL", "PANIC")
# The server goes on after this one. What the driver says by itself has no severity.
_ANSWERED: Final = "ERROR"
# Rolled back for reasons that pass: deadlock, serialization, no resources, cancelled, a plan that a
# schema change made stale.
_TRANSIENT_CLASSES: Final = ("40", "53", "57014", "0A000")
# Rolled back because another transaction held what the statement needed: lock time-out.
_LOCKED: Final = "55P03"
# A demoted primary: another connection may reach the new one.
READ_ONLY_STATE: Final = "25006"
# Rolled back because of what the statement says: bad data, a constraint, a trigger's veto. Only
# these are the request's own fault; a missing table or permission is the operator's.
_REFUSED_CLASSES: Final = ("22", "23", "44", "P0")


def store_error(error: BaseException, *, connection_lives: bool) -> StoreError:
    """Return what a driver's error means for a write that was being sent."""
    cause = in_words(error)
    if not connection_lives or not isinstance(error, asyncpg.PostgresError):
        return OutcomeUnknown(cause)
    state = error.sqlstate or ""
    severity = getattr(error, "severity_en", None)
    if state.startswith(_UNKNOWN_CLASSES) and severity == _ANSWERED:
        return InDoubt(cause)
    if state.startswith(_UNKNOWN_CLASSES) or severity in _UNKNOWN_SEVERITIES:
        return OutcomeUnknown(cause)
    if state == _LOCKED:
        return Locked(cause)
    if state.startswith(_TRANSIENT_CLASSES) or state == READ_ONLY_STATE:
        return Transient(cause)
    if state.startswith(_REFUSED_CLASSES):
        return Refused(_failure(error))
    return Misconfigured(cause)


def in_words(error: BaseException) -> str:
    """Return what an operator needs to know of a driver's error, never its class alone.

    What the server says about the rows themselves is left out: it may repeat them.
    """
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate:
        constraint = getattr(error, "constraint_name", None)
        said = str(error)
        if error.sqlstate.startswith(_REFUSED_CLASSES):
            said = f"the database refused a row ({constraint or 'its values'})"
        return f"{said} (SQLSTATE {error.sqlstate})"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    # The driver's own errors and the socket's name hosts and ports, but no password.
    return str(error) or "the connection broke"


def _failure(error: asyncpg.PostgresError) -> Failure:
    constraint = getattr(error, "constraint_name", None)
    where = f" ({constraint})" if constraint else ""
    return Failure("refused_by_database", f"The database refused the group{where}.")
