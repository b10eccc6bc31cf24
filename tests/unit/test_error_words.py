"""Errors reach people in words: what has happened, never the bare name of a class."""

from __future__ import annotations

import re
import socket
import ssl
from pathlib import Path

import asyncpg
import pytest
from aiohttp import ClientConnectorDNSError, ClientConnectorError, ServerDisconnectedError
from aiohttp.client_reqrep import ConnectionKey

import stretto
from stretto.network import network_failure
from stretto.postgres.driver_errors import in_words, store_error

SOURCES = sorted(Path(stretto.__file__).parent.rglob("*.py"))
# As a label or a field beside words; as a part of a sentence.
ALLOWED = re.compile(
    r"kind ?= ?type|name = error if |WebhookTried\(|"
    r"(on_create|authorize|on_event|\{self\._name\}|pool) raised \{"
)
PLACE = ConnectionKey("secret.example", 1, False, False, None, None, None)


def server_error(state: str, message: str, detail: str = "", severity: str = "ERROR") -> Exception:
    """Return the driver's form of a server's error."""
    error: Exception = asyncpg.PostgresError.new(
        {
            "S": severity,
            "V": severity,
            "C": state,
            "M": message,
            "D": detail,
            "H": "Ask a colleague.",
            "n": "some_check",
        }
    )
    return error


def broken_tls(kind: type[ssl.SSLError], reason: str, verify_message: str = "") -> ssl.SSLError:
    """Return an error as the TLS library raises it."""
    error = kind(1, f"[SSL: {reason}] (_ssl.c:1)")
    error.reason = reason
    if isinstance(error, ssl.SSLCertVerificationError):
        error.verify_message = verify_message
    return error


def test_no_message_is_the_name_of_a_class() -> None:
    """A name is for programs: metrics and log fields."""
    found = [
        f"{source.name}: {line.strip()}"
        for source in SOURCES
        for line in source.read_text().splitlines()
        if re.search(r"type\(\w+\)\.__name__", line) and not ALLOWED.search(line)
    ]
    assert [] == found


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (
            "permission denied for table webhook (SQLSTATE 42501)",
            server_error("42501", "permission denied for table webhook"),
        ),
        # What the server says of the rows may repeat them.
        (
            "the database refused a row (some_check) (SQLSTATE 23514)",
            server_error("23514", "secret plans"),
        ),
        # Neither details nor hints: they quote statements and rows, and lines of a log are one line.
        (
            "deadlock detected (SQLSTATE 40P01)",
            server_error("40P01", "deadlock detected", "Process 1 waits for a lock of process 2."),
        ),
        (
            "not accepting connections: Hot standby mode is disabled. (SQLSTATE 57P03)",
            server_error("57P03", "not accepting connections", "Hot standby mode is disabled."),
        ),
        # At the start of a connection no row was sent.
        (
            'invalid value for parameter "jit" (SQLSTATE 22023)',
            server_error("22023", 'invalid value for parameter "jit"', severity="FATAL"),
        ),
        ("no answer in time", TimeoutError()),
        ("the connection broke", ConnectionResetError()),
        ("Connection refused", OSError(111, "Connect call failed ('10.0.0.1', 1)")),
        ("Name or service not known", socket.gaierror(-2, "Name or service not known")),
        ("No such file or directory: /there", FileNotFoundError(2, "No such file", "/there")),
        ("TLS failed: WRONG_VERSION", broken_tls(ssl.SSLError, "WRONG_VERSION")),
        (
            "TLS failed: self-signed certificate",
            broken_tls(ssl.SSLCertVerificationError, "VERIFY_FAILED", "self-signed certificate"),
        ),
        ("cannot perform operation", asyncpg.InterfaceError("cannot perform operation")),
        (
            "`sslmode` parameter must be one of",
            asyncpg.ClientConfigurationError("`sslmode` parameter must be one of", hint="Look."),
        ),
        # It may quote a password.
        ("the driver cannot read the database's URL", ValueError("invalid literal: 'secret'")),
    ],
)
def test_a_drivers_error_is_reported_in_words(expected: str, error: Exception) -> None:
    """With the SQLSTATE, by which an operator finds more; the store's errors say the same."""
    assert expected == in_words(error)
    if "row" not in expected:
        assert expected == str(store_error(error, connection_lives=False))


@pytest.mark.parametrize("kind", [OSError, TimeoutError, asyncpg.InternalClientError])
def test_an_error_without_a_text_still_has_words(kind: type[Exception]) -> None:
    """Several of the driver's and the socket's have none."""
    assert " " in in_words(kind())


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ("no answer in time", TimeoutError()),
        (
            "Connection refused",
            ClientConnectorError(PLACE, OSError(111, "Connect call failed ('10.0.0.1', 1)")),
        ),
        (
            "Name or service not known",
            ClientConnectorDNSError(PLACE, socket.gaierror(-2, "Name or service not known")),
        ),
        ("TLS failed (WRONG_VERSION)", ssl.SSLError(1, "[SSL: WRONG_VERSION] (_ssl.c:1)")),
        ("the connection ended before a complete answer", ServerDisconnectedError()),
        ("the connection broke", OSError()),
    ],
)
def test_a_failure_of_the_network_names_no_address(expected: str, error: Exception) -> None:
    """An address may hold a secret, and the reason is what helps."""
    if isinstance(error, ssl.SSLError):
        error.reason = "WRONG_VERSION"
    assert expected == network_failure(error)
