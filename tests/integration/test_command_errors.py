"""What every command says where the database does not let it work: what happened, and what to do."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import asyncpg
import pytest

from stretto.commands.reports import database_failure
from support.api_client import SECRET
from support.command_process import stretto

if TYPE_CHECKING:
    from support.database import Connection

MIGRATE = ("migrate",)
OTHERS = (
    *(("serve",), ("attempt", "alice", "k"), ("groups", "alice"), ("sweep",), ("events",)),
    *(("bus",), ("check",)),
)
RUN_MIGRATE = "run `stretto migrate`"


async def assert_said(
    expected: tuple[int, str], url: str, commands: tuple[tuple[str, ...], ...]
) -> None:
    """Run the commands; each ends with that code and those words in one message."""
    runs = (stretto(*each, DATABASE_URL=url, JWT_SECRET=SECRET, PORT="0") for each in commands)
    for command, (code, output, errors) in zip(commands, await asyncio.gather(*runs), strict=True):
        assert (expected[0], "") == (code, output), command
        assert errors.startswith("stretto: "), command
        assert expected[1] in errors, command
        # A name of a class is no word for people, and a password none for logs.
        assert not re.search(r"\w(Error|Exception)\b|secret", errors), command


@pytest.mark.parametrize(
    ("expected", "url"),
    [
        (
            (2, "'a b' is neither the name of a host nor an address"),
            "postgresql://u:secret@a%20b/x",
        ),
        ((2, "must look like postgresql://user:password@host:5432"), "postgresql://u:secret#@a/x"),
        (
            (3, "; correct it in STRETTO_DATABASE_URL"),
            "postgresql://u:secret@127.0.0.1/x?sslmode=none",
        ),
        # Waited for a while: it may be about to start.
        (
            (3, "127.0.0.1:1 within 10 s: Connection refused; is it started, and"),
            "postgresql://u:secret@127.0.0.1:1/x",
        ),
    ],
)
async def test_a_database_that_cannot_be_reached(expected: tuple[int, str], url: str) -> None:
    """Whatever the command: the setting is named."""
    await assert_said(expected, url, (MIGRATE, *OTHERS))


async def test_a_role_that_may_not_log_in(role_url: str) -> None:
    """Whatever the command."""
    wrong = role_url.replace(":secret@", ":wrong@")
    await assert_said((3, "give STRETTO_DATABASE_URL a user"), wrong, (MIGRATE, *OTHERS))


async def test_a_role_without_rights(role_url: str, connection: Connection) -> None:
    """On an empty database as well."""
    await assert_said((3, "; run the command as the owner of the tables"), role_url, (MIGRATE,))
    await assert_said((3, "; run `stretto migrate --grant-to app_"), role_url, OTHERS)
    await connection.execute("DROP SCHEMA stretto CASCADE")
    await assert_said((3, "; run the command as the owner of the tables"), role_url, (MIGRATE,))


async def test_a_schema_that_is_not_there(database_url: str, connection: Connection) -> None:
    """What would help is the one command that does not need it."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    await assert_said((3, RUN_MIGRATE), database_url, OTHERS)


async def test_a_schema_of_another_version(database_url: str, connection: Connection) -> None:
    """The older one is migrated; a newer one is served, and not migrated."""
    await connection.execute("UPDATE schema_version SET number = 1")
    await assert_said((3, RUN_MIGRATE), database_url, OTHERS)
    await connection.execute("UPDATE schema_version SET number = 99")
    await assert_said((2, "; use the stretto that made it, or a newer"), database_url, (MIGRATE,))


async def test_a_table_that_is_not_there(database_url: str, connection: Connection) -> None:
    """It was dropped by hand: no migration brings it back."""
    await connection.execute("DROP TABLE chat_group, outbox_reader CASCADE")
    expected = "the schema lacks the tables chat_group, outbox_reader; restore them from a backup"
    await assert_said((3, expected), database_url, OTHERS)


@pytest.mark.parametrize(
    ("expected", "state"),
    [
        ("as the owner of the tables", "42501"),
        ("as the owner of the tables", "3F000"),
        ("restore what is missing, then run `stretto migrate`", "42P01"),
        ("run the command again when the database works", "57P01"),
        ("run the command again when the database works", "55P03"),
    ],
)
def test_a_database_that_fails_under_a_command(expected: str, state: str) -> None:
    """By what the server says, never by its words."""
    error = asyncpg.PostgresError.new({"S": "ERROR", "V": "ERROR", "C": state, "M": "no"})
    said = database_failure(error)
    assert f"failed: no (SQLSTATE {state}); " in said
    assert expected in said
