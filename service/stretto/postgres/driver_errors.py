"""What a driver's error says about a write: not committed, or unknown.

The one place where errors of asyncpg and the socket become the store's own. SQLSTATE and whether
the connection lives decide what became of a write, never an error's text.
"""

from __future__ import annotations

import os
import ssl
from typing import Final

import asyncpg

from stretto.errors import Failure
from stretto.store_errors import (
    Exhausted,
    InDoubt,
    Locked,
    Misconfigured,
    OutcomeUnknown,
    Refused,
    StoreError,
    Transient,
    Unreachable,
)

# Everything that asyncpg and the socket raise.
DRIVER_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

# What the driver also raises for a URL that it cannot read: a port that is no number, an empty
# host.
URL_ERRORS: Final = (ValueError, LookupError, OverflowError)

# The connection broke, or a program between us and the server reports that (PgBouncer: 08P01); the
# server is going down; its disk or its memory is damaged. The write may have been committed.
# 40003 says so itself: servers that speak PostgreSQL's protocol use it.
_UNKNOWN_CLASSES: Final = ("08", "40003", "57P", "58", "XX")
# The server closes the connection after these, perhaps a moment after the driver has raised them.
_UNKNOWN_SEVERITIES: Final = ("FATAL", "PANIC")
# The server goes on after this one. An error that the driver raises by itself has no severity.
_ANSWERED: Final = "ERROR"
# Rolled back for reasons that pass: deadlock, serialization, cancelled, a plan that a schema change
# made stale.
_TRANSIENT_CLASSES: Final = ("40", "57014", "0A000")
# Rolled back since the server has no resources left: disk, memory, connections.
_EXHAUSTED_CLASS: Final = "53"
# Rolled back because another transaction held what the statement needed: lock time-out.
_LOCKED: Final = "55P03"
# A demoted primary: another connection may reach the new one.
READ_ONLY_STATE: Final = "25006"
# A missing right: to connect, on an object, or to set a parameter.
NO_RIGHT_STATE: Final = "42501"
# Rolled back because of what the statement says: bad data, a constraint, a trigger's veto. Only
# these the request itself has caused; a missing table or permission is the operator's.
_REFUSED_CLASSES: Final = ("22", "23", "44", "P0")
# Exceptions among them, which an operator can correct: text that a database or session of another
# encoding than UTF-8 does not take, a sequence of a trigger's that has come to its end, an ASSERT in a
# trigger, which PostgreSQL has for bugs alone, and a column that has become NOT NULL without a default.
# Any other that stands for a bug may also be raised for what a row holds.
_ENCODING_STATES: Final = ("22021", "22P05")
_SEQUENCE_ENDED: Final = "2200H"
_OPERATORS_STATES: Final = (*_ENCODING_STATES, _SEQUENCE_ENDED, "P0004")
_NOT_NULL: Final = "23502"
# Rules of ours that no request's rows break, unless policies hide rows from a lead, or a trigger adds some:
# it writes the conversation of its members itself, and no group that is there.
_OPERATORS_CONSTRAINTS: Final = (
    *("chat_group_pkey", "conversation_pkey", "conversation_member_pkey"),
    "conversation_member_has_conversation",
)
# The driver's prepared statement is gone.
_LOST_STATEMENT: Final = "26"
# A statement does not fit what it finds: the schema, our rights, or a session without its prepared
# statements.
_MISFIT_CLASSES: Final = (_LOST_STATEMENT, "3F", "42")
_CONSTRAINT_CLASS: Final = "23"
# The server's detail adds to the message here, and quotes no row: why it takes no connections, what
# became of the database, which limit was met.
_DETAILED_CLASSES: Final = ("3D", "53", "55", "57P")
# Connecting with the same URL can never succeed: no such user, password or database, a missing
# right, a parameter that the server does not take.
_LASTING_CLASSES: Final = ("22", "28", "3D", "42")
# Of these, what the server answers to a parameter: a value, a text or a name that it does not take.
_PARAMETER_CLASSES: Final = ("22", "42601", "42704")
# What a server that goes on may answer to a connection's first statements, and another try may not
# meet: a pooler's broken link, a server that takes no writes yet or goes down, a conflict, a lock.
# Every other answer is one that an operator has to act on, such as 53400, a limit of the role's.
_PASSING_CLASSES: Final = ("08", "25006", "40", "53300", "55", "57", "58", "XX")
# What a server that lives refuses a connection with: a password or a role, a missing database, no connection
# left, a database that takes none, no right to connect. Not what a pooler reports of its way to the server.
_REFUSAL_CLASSES: Final = ("28", "3D", "42501", "53", "55")
# A handshake that broke off: the server is going down, or coming up.
_BROKEN_HANDSHAKES: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
# How the driver's text ends where the server has answered that it has no TLS.
_NO_TLS: Final = "rejected SSL upgrade"
# How it ends where an operation begins before the driver has read the end of another one, as when the
# server goes on after it was frozen. It chooses words for the log, and decides nothing.
_BUSY: Final = ") is in progress"


def store_error(error: BaseException, *, connection_lives: bool) -> StoreError:
    """Return what a driver's error means for a write that was being sent."""
    cause = in_words(error)
    if not connection_lives or not isinstance(error, asyncpg.PostgresError):
        return OutcomeUnknown(cause)
    state = sqlstate_of(error)
    is_answer = error.severity_en == _ANSWERED
    if state.startswith(_UNKNOWN_CLASSES) or error.severity_en in _UNKNOWN_SEVERITIES:
        return InDoubt(cause) if is_answer else OutcomeUnknown(cause)
    if state == _LOCKED:
        return Locked(cause)
    if state.startswith(_EXHAUSTED_CLASS) or state == READ_ONLY_STATE:
        return Exhausted(cause)
    if state.startswith(_TRANSIENT_CLASSES):
        return Transient(cause)
    # What the driver cannot encode was not judged by the server.
    if is_answer and _is_refusal(error, state):
        where = f" ({error.constraint_name})" if error.constraint_name else ""
        failure = Failure("refused_by_database", f"The database refused the group{where}.")
        return Refused(failure, cause)
    return Misconfigured(cause)


def upkeep_error(error: BaseException) -> StoreError:
    """Return what a driver's error means for a statement of upkeep, which the next turn repeats.

    No outcome is kept, so it is `Unreachable`, unless the server has answered what an operator can act
    on: a lock, a deadlock, a full disk, a missing right or table.
    """
    meaning = store_error(error, connection_lives=True)
    is_read_only = isinstance(error, asyncpg.ReadOnlySQLTransactionError)
    if isinstance(meaning, Transient | Misconfigured) and not is_read_only:
        return meaning
    return Unreachable(in_words(error))


def sqlstate_of(error: asyncpg.PostgresError) -> str:
    """Return the SQLSTATE; "" where there is none, as in an error that a host's hook has made."""
    state: object = error.sqlstate
    return state if isinstance(state, str) else ""


def is_misfit(error: asyncpg.PostgresError) -> bool:
    """Whether a statement missed a table, a column, a right or itself, which no waiting brings.

    The session may be why, which others' code has changed.
    """
    return sqlstate_of(error).startswith(_MISFIT_CLASSES)


def has_lost_statements(error: asyncpg.PostgresError) -> bool:
    """Whether a session has lost the driver's prepared statements, by a DEALLOCATE of others."""
    return sqlstate_of(error).startswith(_LOST_STATEMENT)


def is_of_one_statement(error: asyncpg.PostgresError) -> bool:
    """Whether the server has refused a statement and goes on: another owner's may go through.

    Whatever the reason is: a trigger may raise any SQLSTATE. Not where its resources are exhausted, or
    where it takes no writes.
    """
    of_all = (*_UNKNOWN_CLASSES, _EXHAUSTED_CLASS, READ_ONLY_STATE)
    return error.severity_en == _ANSWERED and not sqlstate_of(error).startswith(of_all)


def _is_refusal(error: asyncpg.PostgresError, state: str) -> bool:
    """Whether the server has rejected the row itself, by a rule that was made for rows.

    Such a rule is a constraint with a name, a view's check or a trigger's code. A row that no
    partition takes breaks a constraint too, but one without a name.
    """
    if state.startswith(_CONSTRAINT_CLASS):
        if error.constraint_name in _OPERATORS_CONSTRAINTS:
            return False
        return state != _NOT_NULL and bool(error.constraint_name)
    return state.startswith(_REFUSED_CLASSES) and state not in _OPERATORS_STATES


def is_lasting(error: BaseException | None) -> bool:
    """Whether connecting again cannot succeed until the URL or the server is changed.

    An error without which the server goes on (it ends no connection) is an answer: the server has
    started, and is the right one.
    """
    if isinstance(error, asyncpg.PostgresError):
        state = sqlstate_of(error)
        is_answer = error.severity_en == _ANSWERED and bool(state)
        return state.startswith(_LASTING_CLASSES) or (
            is_answer and not state.startswith(_PASSING_CLASSES)
        )
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, _BROKEN_HANDSHAKES)
    if isinstance(error, PermissionError) and error.filename is not None:
        # A certificate or a key that this account may not read; a socket has no name here.
        return True
    # Also what the driver itself rejects, such as an unknown sslmode.
    return isinstance(error, URL_ERRORS) or is_without_tls(error)


def is_missing_right(error: BaseException | None) -> bool:
    """Whether a statement lacked a right, and the server goes on; without the right to connect it does not.

    An error during the handshake ends the connection (FATAL), whatever its SQLSTATE is.
    """
    if not isinstance(error, asyncpg.PostgresError):
        return False
    return error.severity_en == _ANSWERED and sqlstate_of(error) == NO_RIGHT_STATE


def is_refusal(error: BaseException | None) -> bool:
    """Whether a server that lives has refused a connection: none that starts, stops, or takes no writes."""
    return isinstance(error, asyncpg.PostgresError) and sqlstate_of(error).startswith(
        _REFUSAL_CLASSES
    )


def is_of_url(error: BaseException | None) -> bool:
    """Whether the URL itself is why: the driver cannot read it, or the server takes no such parameter."""
    if isinstance(error, asyncpg.PostgresError):
        return sqlstate_of(error).startswith(_PARAMETER_CLASSES)
    # A certificate that does not verify is a `ValueError` too, and may be the server's fault.
    return isinstance(error, URL_ERRORS) and not isinstance(error, ssl.SSLError)


def is_without_tls(error: BaseException | None) -> bool:
    """Whether the server has declined TLS, which the URL requires.

    The driver has no class of its own for that: a server that breaks the handshake off at a restart
    gives the same class. So this is the one error that is recognised by its text; with another text
    it is waited for, as any broken connection.
    """
    return type(error) is ConnectionError and str(error).endswith(_NO_TLS)


def in_words(error: BaseException) -> str:
    """Return in one line what an operator needs to know of a driver's error, never its class alone.

    What the server says about the rows themselves is left out: it may quote them.
    """
    if isinstance(error, asyncpg.PostgresError) and (state := sqlstate_of(error)):
        return f"{_server_words(error, state)} (SQLSTATE {state})"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {getattr(error, 'verify_message', '') or error.reason or 'no reason'}"
    if isinstance(error, OSError):
        # The driver's and the socket's own texts repeat the number, and some the address.
        errno = error.errno or 0
        text = os.strerror(errno) if errno > 0 else error.strerror or str(error)
        return f"{text or 'the connection broke'}{f': {error.filename}' if error.filename else ''}"
    if isinstance(error, URL_ERRORS) and not isinstance(error, asyncpg.InterfaceError):
        # Its text may quote a password that has an @ or a / in it.
        return "the driver cannot read the database's URL"
    if isinstance(error, asyncpg.InternalClientError) and str(error).endswith(_BUSY):
        return "the connection was still busy with a statement that was given up"
    # The driver's own errors name hosts and ports, but no password; its hints are for programmers.
    return str(error.args[0] if error.args else "") or "the connection broke"


def _server_words(error: asyncpg.PostgresError, sqlstate: str) -> str:
    # An error that ends a connection at its start came before any row was sent.
    is_of_rows = error.severity_en not in _UNKNOWN_SEVERITIES
    # That one names a sequence, and no row.
    if sqlstate.startswith(_REFUSED_CLASSES) and is_of_rows and sqlstate != _SEQUENCE_ENDED:
        return f"the database refused a row ({_named(error, sqlstate)})"
    # A host's hook may raise one that no server has sent, without a text.
    text = str(error.args[0]) if error.args else "an error without a text"
    if error.detail and sqlstate.startswith(_DETAILED_CLASSES):
        return f"{text}: {error.detail}"
    return text


def _named(error: asyncpg.PostgresError, sqlstate: str) -> str:
    """Return what the row has met, by names alone."""
    if error.constraint_name:
        return error.constraint_name
    if sqlstate in _ENCODING_STATES:
        return "encodings must be UTF8: server_encoding and client_encoding"
    if error.column_name:
        return f"column {error.column_name} of {error.table_name}"
    return f"table {error.table_name}" if error.table_name else "its values"
