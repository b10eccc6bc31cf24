"""What an error says about a write, by its SQLSTATE and by whether the connection lives."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import asyncpg
import pytest

from stretto.postgres.driver_errors import (
    in_words,
    is_lasting,
    is_missing_right,
    is_of_url,
    store_error,
    upkeep_error,
)
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


def server_error(state: str) -> asyncpg.PostgresError:
    """Return the error that the driver makes of a server's message."""
    fields = {
        "S": "ERROR",
        "V": "ERROR",
        "C": state,
        "M": "the row (alice, secret plans) is wrong",
        "D": "Failing row contains (alice, secret plans).",
        "n": "some_check",
    }
    error: asyncpg.PostgresError = asyncpg.PostgresError.new(fields)
    return error


@pytest.mark.parametrize(
    ("expected", "states"),
    [
        (Transient, ["40001", "40P01", "57014", "0A000"]),
        (Exhausted, ["53100", "53200", "53300"]),
        (Locked, ["55P03"]),
        (Exhausted, ["25006"]),
        (Refused, ["22001", "23503", "23505", "23514", "44000", "P0001"]),
        # PgBouncer calls a dead server 08P01, with the connection to itself alive.
        (
            InDoubt,
            ["40003", "08P01", "08006", "57P01", "57P02", "57P03", "58030", "XX000", "XX001"],
        ),
        (Misconfigured, ["42P01", "42501", "3F000", "28000", "55000", "22021", "22P05", "23502"]),
        # What a trigger of the operator's meets, whatever the row is.
        (Misconfigured, ["2200H", "P0004", "38000", "39000", "54000", "54001", "55006", "21000"]),
        # What one may raise for what a row holds.
        (
            Refused,
            ["22003", "22012", "22023", "2201B", "22P02", "23P01", "P0000", "P0002", "P0003"],
        ),
    ],
)
def test_a_state_says_what_became_of_the_write(
    expected: type[StoreError], states: list[str]
) -> None:
    """Committed is only what has returned; failed is only what the request itself has caused."""
    for state in states:
        assert type(store_error(server_error(state), connection_lives=True)) is expected, state


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (Locked, server_error("55P03")),
        (Transient, server_error("40P01")),
        (Exhausted, server_error("53100")),
        (Misconfigured, server_error("42501")),
        # The server is none that takes writes, goes down, or says nothing.
        (Unreachable, server_error("25006")),
        (Unreachable, server_error("57P01")),
        (Unreachable, ConnectionResetError()),
        (Unreachable, TimeoutError()),
        # A rule for rows says nothing to a turn that nobody has asked for.
        (Unreachable, server_error("P0001")),
    ],
)
def test_an_error_of_upkeep_names_what_an_operator_can_act_on(
    expected: type[StoreError], error: Exception
) -> None:
    """What was committed matters to no turn: the next one looks again."""
    assert expected is type(upkeep_error(error))


@pytest.mark.parametrize("severity", ["FATAL", "PANIC"])
@pytest.mark.parametrize("state", ["25P04", "53200", "42501", "23514"])
def test_what_ends_the_connection_leaves_the_outcome_unknown(state: str, severity: str) -> None:
    """Even while the driver does not know yet that the connection is about to be closed."""
    fields = {"S": "Übersetzt", "V": severity, "C": state, "M": "…"}
    error = asyncpg.PostgresError.new(fields)
    assert type(store_error(error, connection_lives=True)) is OutcomeUnknown


@pytest.mark.parametrize("state", ["40001", "23505", "42P01", "57014", "XX000"])
def test_on_a_dead_connection_no_error_is_believed(state: str) -> None:
    """It may be about something else than our write."""
    error = store_error(server_error(state), connection_lives=False)
    assert type(error) is OutcomeUnknown


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(),
        TimeoutError(),
        asyncpg.InterfaceError("cannot perform operation"),
        asyncpg.InternalClientError("cannot switch to state 12"),
        # Raised after the server has already done the statement.
        asyncpg.exceptions.OutdatedSchemaCacheError("cache"),
        asyncpg.ConnectionDoesNotExistError("closed in the middle of operation"),
    ],
)
def test_an_error_of_the_driver_or_the_socket_leaves_the_outcome_unknown(error: Exception) -> None:
    """The statement may have been sent."""
    assert type(store_error(error, connection_lives=True)) is OutcomeUnknown


def test_a_refusal_names_the_constraint_and_no_data() -> None:
    """It is stored and sent to the client."""
    refused = store_error(server_error("23514"), connection_lives=True)
    assert isinstance(refused, Refused)
    assert refused.failure.code == "refused_by_database"
    assert "some_check" in refused.failure.detail
    assert "secret" not in refused.failure.detail
    assert "the database refused a row (some_check) (SQLSTATE 23514)" == str(refused)


def test_a_sequence_that_has_ended_is_named() -> None:
    """It is no row's; the twin is an assertion, whose text may quote one."""
    ended = 'nextval: reached maximum value of sequence "audit_id_seq" (9)'
    for state, expected in (("2200H", ended), ("P0004", "the database refused a row (its values)")):
        fields = {"S": "ERROR", "V": "ERROR", "C": state, "M": ended}
        error = store_error(asyncpg.PostgresError.new(fields), connection_lives=True)
        assert f"{expected} (SQLSTATE {state})" == str(error)


@pytest.mark.parametrize("state", ["23000", "23502", "23514"])
def test_a_constraint_without_a_name_is_the_operators(state: str) -> None:
    """A row that no partition takes breaks one, until the partition is attached again."""
    fields = {"S": "ERROR", "V": "ERROR", "C": state, "M": "…", "t": "chat_group", "c": "tenant"}
    error = store_error(asyncpg.PostgresError.new(fields), connection_lives=True)
    assert type(error) is Misconfigured
    expected = f"the database refused a row (column tenant of chat_group) (SQLSTATE {state})"
    assert expected == str(error)


def test_a_check_of_ours_that_policies_make_fail_is_the_operators() -> None:
    """No request's rows do; the twin is a constraint of any other name."""
    fields = {"S": "ERROR", "V": "ERROR", "C": "23503", "M": "…"}
    for name, expected in (
        ("conversation_member_has_conversation", Misconfigured),
        ("chat_group_pkey", Misconfigured),
        ("conversation_pkey", Misconfigured),
        ("conversation_member_pkey", Misconfigured),
        ("another", Refused),
    ):
        error = asyncpg.PostgresError.new(fields | {"n": name})
        assert expected is type(store_error(error, connection_lives=True))


def test_what_the_driver_cannot_send_is_not_refused() -> None:
    """No server has seen it: a codec or an encoding of the host's pool is wrong."""
    error = store_error(asyncpg.DataError("invalid input"), connection_lives=True)
    assert type(error) is Misconfigured


@pytest.mark.parametrize(
    ("expected", "states"),
    [
        (True, ["28000", "28P01", "3D000", "42501", "42704", "22023"]),
        # An answer of a server that goes on: a limit, a full disk, a trigger of the host's.
        (True, ["53400", "53200", "53100", "54000", "0A000", "P0001"]),
        # A server that starts, or goes down; no connection left; no primary yet.
        (False, ["57P01", "57P03", "53300", "55000", "25006", "08006", "08P01", "XX000"]),
        # What another transaction has caused.
        (False, ["40001", "40P01", "55P03", "57014"]),
    ],
)
def test_what_waiting_heals_is_distinguished_from_what_lasts(
    expected: bool, states: list[str]
) -> None:
    """A wrong password stays wrong; a server that starts will have started."""
    for state in states:
        assert expected is is_lasting(server_error(state)), state


@pytest.mark.parametrize("state", ["28000", "28P01", "3D000", "42501", "22023"])
def test_a_connection_that_a_server_never_takes_is_not_waited_for(state: str) -> None:
    """No such user or database, a wrong password, no right to connect; this ends the connection."""
    fields = {"S": "FATAL", "V": "FATAL", "C": state, "M": "permission denied"}
    assert is_lasting(asyncpg.PostgresError.new(fields))


def test_a_right_that_a_statement_lacks_is_distinguished_from_the_right_to_connect() -> None:
    """The latter ends the connection, as a parameter does that only a superuser may set."""
    assert is_missing_right(server_error("42501"))
    for severity, state in (("FATAL", "42501"), ("ERROR", "28000"), ("ERROR", "42P01")):
        fields = {"S": severity, "V": severity, "C": state, "M": "permission denied"}
        assert not is_missing_right(asyncpg.PostgresError.new(fields))
    assert not is_missing_right(PermissionError(13, "Permission denied"))


def test_a_key_that_may_not_be_read_is_not_waited_for() -> None:
    """Such as that of the home of another account; a socket may come up with other rights."""
    assert is_lasting(PermissionError(13, "Permission denied", "/root/.postgresql/postgresql.key"))
    assert not is_lasting(PermissionError(13, "Permission denied"))


def test_a_connection_that_a_server_refuses_for_lack_of_resources_is_waited_for() -> None:
    """It ends the connection, and may have enough for the next one."""
    for state in ("53200", "53100"):
        fields = {"S": "FATAL", "V": "FATAL", "C": state, "M": "out of memory"}
        assert not is_lasting(asyncpg.PostgresError.new(fields)), state


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (True, asyncpg.ClientConfigurationError("`sslmode` parameter must be one of: …")),
        (True, ValueError("invalid literal for int() with base 10: 'abc'")),
        (True, IndexError("string index out of range")),
        (True, OverflowError("connect(): port must be 0-65535.")),
        (True, UnicodeError("label empty or too long")),
        (True, ssl.SSLError(1, "[X509: NO_CERTIFICATE_OR_CRL_FOUND]")),
        (True, ssl.SSLCertVerificationError(1, "certificate verify failed")),
        (False, ssl.SSLEOFError(8, "EOF occurred in violation of protocol")),
        (False, ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed")),
        (False, ConnectionRefusedError(111, "Connect call failed")),
        (False, ConnectionError("unexpected connection_lost() call")),
        (True, ConnectionError('PostgreSQL server at "a:5432" rejected SSL upgrade')),
        # A socket that its server has not made yet; files of the URL are looked at before.
        (False, FileNotFoundError(2, "No such file or directory")),
        (False, socket.gaierror(-2, "Name or service not known")),
        (False, TimeoutError()),
        (False, asyncpg.ConnectionDoesNotExistError("closed in the middle of operation")),
        (False, None),
    ],
)
def test_a_url_that_the_driver_cannot_use_lasts_and_a_network_does_not(
    expected: bool, error: Exception | None
) -> None:
    """Addresses appear, sockets are made, and handshakes break off at a restart."""
    assert expected is is_lasting(error)


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (True, server_error("42704")),
        (True, server_error("22023")),
        (True, asyncpg.ClientConfigurationError("`sslmode` parameter must be one of: …")),
        (True, ValueError("invalid literal for int() with base 10: 'abc'")),
        # What others may change: a password, a right, a database, a certificate.
        (False, server_error("28P01")),
        (False, server_error("42501")),
        (False, server_error("3D000")),
        (False, ssl.SSLCertVerificationError(1, "certificate verify failed")),
        (False, None),
    ],
)
def test_a_url_that_is_itself_wrong_is_distinguished_from_a_server_that_refuses(
    expected: bool, error: Exception | None
) -> None:
    """The first is a wrong setting: only another URL helps."""
    assert expected is is_of_url(error)


@pytest.mark.parametrize("error", [asyncpg.SerializationError(), asyncpg.AdminShutdownError()])
def test_an_error_without_a_text_is_named_by_its_state(error: asyncpg.PostgresError) -> None:
    """A host's hook may raise the driver's errors itself, without any argument."""
    meaning = store_error(error, connection_lives=True)
    assert f"an error without a text (SQLSTATE {error.sqlstate})" == str(meaning)


def test_a_connection_that_is_still_busy_is_named_so() -> None:
    """As after a server was frozen: by the driver's own text, which names its inner states."""
    busy = asyncpg.InternalClientError(
        "cannot switch to state 12; another operation (2) is in progress"
    )
    assert "the connection was still busy with a statement that was given up" == in_words(busy)
    for other in ('cannot switch to state 12; protocol is in the "failed" state', "not connected"):
        assert other == in_words(asyncpg.InternalClientError(other))


def test_an_error_whose_state_is_no_text_has_none() -> None:
    """A host's hook may have made it; a lost connection still leaves the outcome unknown."""
    error: Any = asyncpg.PostgresError("odd")
    error.sqlstate = 12345
    assert "odd" == in_words(error)
    assert not is_lasting(error)
    assert isinstance(store_error(error, connection_lives=False), OutcomeUnknown)
    assert not isinstance(store_error(error, connection_lives=True), Transient)
