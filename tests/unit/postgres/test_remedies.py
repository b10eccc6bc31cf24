"""What an operator is told of a database that takes no connection, or no write."""

from __future__ import annotations

import asyncpg
import pytest
from asyncpg.exceptions import TargetServerAttributeNotMatched

from stretto.postgres.remedies import remedy, remedy_of_waiting


@pytest.mark.parametrize(
    ("expected", "cause"),
    [
        ("have this database take writes again", TargetServerAttributeNotMatched("no")),
        ("raise max_connections", asyncpg.TooManyConnectionsError("no")),
        ("free space on the disk", asyncpg.DiskFullError("no")),
        ("more memory", asyncpg.OutOfMemoryError("no")),
        ("has answered this", asyncpg.ObjectNotInPrerequisiteStateError("no")),
        ("is it started, and is STRETTO_DATABASE_URL right?", asyncpg.ProtocolViolationError("no")),
        ("is it started, and is STRETTO_DATABASE_URL right?", asyncpg.CannotConnectNowError("no")),
        ("is it started, and is STRETTO_DATABASE_URL right?", ConnectionRefusedError()),
        ("is it started, and is STRETTO_DATABASE_URL right?", None),
        (
            "where that is over, set server_login_retry = 1 in pgbouncer.ini",
            asyncpg.ConnectionDoesNotExistError(
                "server login has been failing, try again later (server_login_retry)"
            ),
        ),
    ],
)
def test_what_was_waited_for_in_vain_has_its_remedy(
    expected: str, cause: BaseException | None
) -> None:
    """By the kind of the failure: a database that runs need not be started."""
    assert expected in remedy_of_waiting(cause)


@pytest.mark.parametrize(
    ("expected", "cause"),
    [
        ("temp_file_limit", asyncpg.ConfigurationLimitExceededError("no")),
        ("free space on the disk", asyncpg.DiskFullError("no")),
        ("has answered this", asyncpg.StatementTooComplexError("no")),
    ],
)
def test_what_a_server_has_answered_is_no_fault_of_the_url(
    expected: str, cause: BaseException
) -> None:
    """The server was reached: the address is right."""
    assert expected in remedy(cause)
    assert "STRETTO_DATABASE_URL" not in remedy(cause)
