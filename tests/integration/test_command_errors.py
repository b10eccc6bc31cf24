"""What every command says where the database does not let it work: what happened, and what to do."""

from __future__ import annotations

import asyncio
import re
import sys
from typing import TYPE_CHECKING

import asyncpg
import pytest

from stretto.commands.failures import failure_of
from stretto.commands.reports import database_failure
from stretto.postgres.migrate import KEYS, grant
from support.api_client import SECRET
from support.command_process import ended, stretto
from support.database import first_row
from support.environment import QUIET, environment

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
        # Behind the log, in which a service says that it waits for an older schema.
        assert re.match(r'({"event":"schema.awaited".*}\n)?stretto: ', errors), command
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
            (2, "; correct it in STRETTO_DATABASE_URL"),
            "postgresql://u:secret@127.0.0.1/x?sslmode=none",
        ),
        (
            (2, "only programs with libpq take (connect_timeout): leave them out"),
            "postgresql://u:secret@127.0.0.1/x?connect_timeout=5",
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
    expected = "lacks the right USAGE on the schema stretto; run this as its owner, "
    await assert_said((2, expected), role_url, (MIGRATE,))
    await assert_said((2, "; run `stretto migrate --grant-to app_"), role_url, OTHERS)
    await connection.execute("DROP SCHEMA stretto CASCADE")
    await assert_said((2, "; run the command as the owner of the tables"), role_url, (MIGRATE,))


async def test_a_schema_that_is_not_there(database_url: str, connection: Connection) -> None:
    """What would help is the one command that does not need it."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    await assert_said((2, RUN_MIGRATE), database_url, OTHERS)


async def test_a_schema_that_is_another_programs(database_url: str, connection: Connection) -> None:
    """A table of ours is there, and no version; no try again helps."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    await connection.execute("CREATE SCHEMA stretto CREATE TABLE attempt (id integer)")
    expected = "have STRETTO_DB_SCHEMA name an empty schema or a new one"
    await assert_said((2, expected), database_url, (MIGRATE,))


async def test_a_schema_of_another_version(database_url: str, connection: Connection) -> None:
    """The older one is migrated; a newer one is served, and not migrated."""
    await connection.execute("UPDATE schema_version SET number = 1")
    await assert_said((2, RUN_MIGRATE), database_url, OTHERS)
    await connection.execute("UPDATE schema_version SET number = 99")
    await assert_said((2, "; use the stretto that made it, or a newer"), database_url, (MIGRATE,))


async def stretto_with_files(files: int, *arguments: str, url: str) -> tuple[int, str, str]:
    """Run a command that may have so many files open at once."""
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"),
        *(sys.executable, "-m", "stretto", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**QUIET, STRETTO_DATABASE_URL=url, STRETTO_JWT_SECRET=SECRET),
    )
    return await ended(process)


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize("files", [10, 14])
async def test_too_few_files_for_a_loop_are_what_the_system_refuses(
    files: int, command: str, database_url: str
) -> None:
    """And no fault of the loop, which could not be closed; the twin has enough for a check."""
    refused = (3, "", "stretto: the system refused: Too many open files\n")
    assert refused == await stretto_with_files(files, command, url=database_url)
    assert 0 == (await stretto_with_files(40, "check", url=database_url))[0]


async def test_a_time_out_of_the_roles_ends_no_command(
    role: str, role_url: str, connection: Connection
) -> None:
    """A check of a large database takes longer; the twin shows that the time-out is in force."""
    await grant(connection, "stretto", [role])
    await connection.execute(f"ALTER ROLE {role} SET statement_timeout = '1ms'")
    other = await asyncpg.connect(role_url)
    with pytest.raises(asyncpg.QueryCanceledError):
        await other.execute("SELECT pg_sleep(60)")
    await other.close()
    commands = (("check",), ("sweep", "--dry-run"), ("sweep",), ("events",), ("migrate", "--plan"))
    for command in commands:
        code, _, errors = await stretto(*command, DATABASE_URL=role_url)
        assert 0 == code, (command, errors)


async def test_a_table_that_is_not_there(database_url: str, connection: Connection) -> None:
    """It was dropped by hand: no migration brings it back."""
    await connection.execute("DROP TABLE chat_group, outbox_reader CASCADE")
    expected = "the schema lacks the tables chat_group, outbox_reader; restore them from a backup"
    await assert_said((2, expected), database_url, OTHERS)


async def test_a_key_that_is_not_there(database_url: str, connection: Connection) -> None:
    """Of a table that is: rows could come twice. Once made again, by any name, it is as before."""
    await connection.execute("ALTER TABLE chat_group DROP CONSTRAINT chat_group_pkey CASCADE")
    expected = (
        "lacks unique indexes; run, in the schema: CREATE UNIQUE INDEX ON chat_group (group_id)"
    )
    await assert_said((2, expected), database_url, OTHERS)
    await connection.execute("CREATE UNIQUE INDEX again ON chat_group (group_id)")
    assert 0 == (await stretto("check", DATABASE_URL=database_url))[0]


@pytest.mark.parametrize(
    ("expected", "index"),
    [
        (0, "(group_id)"),
        (2, "(group_id, lower(name))"),
        (2, "(lower(name))"),
        (0, "(group_id) INCLUDE (name)"),
    ],
)
async def test_a_key_is_found_whatever_a_roles_settings_have_the_server_print(
    expected: int, index: str, database_url: str, connection: Connection
) -> None:
    """Names in quotation marks are the same names; an expression is no column, and none beside one."""
    role, database = await first_row(
        connection, "SELECT quote_ident(current_user), quote_ident(current_database())"
    )
    await connection.execute(
        "ALTER TABLE chat_group DROP CONSTRAINT chat_group_pkey CASCADE;"
        f"CREATE UNIQUE INDEX again ON chat_group {index};"
        f"ALTER ROLE {role} IN DATABASE {database} SET quote_all_identifiers = on"
    )
    code, _, errors = await stretto("check", DATABASE_URL=database_url)
    assert expected == code, errors
    assert expected == 0 or errors.count("CREATE UNIQUE INDEX") == 1


async def test_every_key_of_the_schema_is_asked_for(connection: Connection) -> None:
    """A later migration that adds one is noticed here."""
    rows = await connection.fetch(
        """SELECT relname, (SELECT string_agg(attname, ', ' ORDER BY place)
                            FROM unnest(indkey::int2[]) WITH ORDINALITY AS key (number, place)
                            JOIN pg_attribute ON attrelid = indrelid AND attnum = key.number)
           FROM pg_index JOIN pg_class ON pg_class.oid = indrelid
           WHERE indisunique AND relnamespace = 'stretto'::regnamespace"""
    )
    assert set(KEYS) == {tuple(row) for row in rows}


@pytest.mark.parametrize(
    ("code", "expected", "state"),
    [
        (2, "as the owner of the tables", "42501"),
        (2, "as the owner of the tables", "3F000"),
        (2, "restore what is missing, then run `stretto migrate`", "42P01"),
        (2, "name an empty schema or a new one", "42P07"),
        (3, "run ALTER ROLE … RESET statement_timeout", "57014"),
        (3, "have this database take writes again", "25006"),
        (3, "raise max_connections", "53300"),
        (3, "run the command again when the database works", "57P01"),
        (3, "run the command again when the database works", "55P03"),
    ],
)
def test_a_database_that_fails_under_a_command(code: int, expected: str, state: str) -> None:
    """By what the server says, never by its words; what no try mends has a code of its own."""
    error = asyncpg.PostgresError.new({"S": "ERROR", "V": "ERROR", "C": state, "M": "no"})
    said = database_failure(error)
    assert (said, code) == failure_of(error)
    assert f"failed: no (SQLSTATE {state}); " in said
    assert expected in said


async def test_what_is_no_key_is_a_usage_error() -> None:
    """Also bytes that are no text; nothing is asked of a database."""
    expected = 'stretto: an idempotency key has 1 to 255 visible ASCII characters ("!" to "~").\n'
    for key in ("k\udcff", "two words"):
        assert (2, "", expected) == await stretto("attempt", "alice", key)
