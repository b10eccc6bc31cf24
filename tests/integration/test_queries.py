"""The statements and the schema fit each other, and none is left over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stretto
from stretto.postgres.queries import QUERIES, at_home, parse_queries

if TYPE_CHECKING:
    from support.database import Connection

PACKAGE = Path(stretto.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
FILES = sorted(PACKAGE.glob("*/*.sql"))
# What a host hands in is checked above the stores, as connections of ours are. A rehearsal sends what
# a writer sends.
ALSO_SENT_BY = {
    "connections.sql": [PACKAGE / "assembly/host_pool.py"],
    "writes.sql": [PACKAGE / "postgres/rehearsal.py"],
}
# Each is tested with `track_activities` off: test_stalled_writes.py, test_service_without_standby.py.
UNTRACKED = {
    ("end_stalled", "state"),
    ("end_stalled", "query_start"),
    ("commits_waiting", "query_start"),
}


@pytest.mark.parametrize("name", QUERIES)
async def test_every_statement_can_be_prepared(name: str, connection: Connection) -> None:
    """The server knows every table, column and type that a statement names."""
    assert await connection.prepare(QUERIES[name]) is not None


def test_every_statement_is_used_and_every_used_one_exists() -> None:
    """No dead SQL, no missing name."""
    text = "\n".join(source.read_text() for source in SOURCES)
    assert set(QUERIES) == set(re.findall(r'QUERIES\["(\w+)"\]', text))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_statement_stands_beside_the_module_that_sends_it(file: Path) -> None:
    """What a store sends is read in one place."""
    text = file.with_suffix(".py").read_text() + "".join(
        map(Path.read_text, ALSO_SENT_BY.get(file.name, ()))
    )
    assert set(parse_queries(file.read_text())) == set(re.findall(r'QUERIES\["(\w+)"\]', text))


def test_no_statement_is_built_in_python() -> None:
    """They stand in files of SQL; the few administrative ones stand where they are used."""
    administrative = {"postgres.py", "migrate.py", "pooler.py"}
    pattern = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM) ", re.MULTILINE)
    found = {s.name for s in SOURCES if pattern.search(s.read_text())}
    assert found <= administrative


def test_two_statements_of_one_name_are_an_error() -> None:
    """A copy with a forgotten rename is not silently dropped."""
    with pytest.raises(ValueError, match="two statements are named x"):
        parse_queries("-- name: x\nSELECT 1;\n-- name: x\nSELECT 2;\n")


async def test_statements_that_need_what_the_server_may_not_track_are_known(
    connection: Connection,
) -> None:
    """With `track_activities` off these columns of pg_stat_activity are empty, or always the same."""
    look = "SELECT to_jsonb(a) FROM pg_stat_activity AS a WHERE pid = pg_backend_pid()"
    tracked = json.loads(await connection.fetchval(look))
    await connection.execute("SET track_activities = off")
    untracked = json.loads(await connection.fetchval(look))
    empty = {name for name, value in tracked.items() if value != untracked[name]}
    assert {"state", "query_start"} <= empty
    named = {
        (name, column)
        for name, statement in QUERIES.items()
        if "pg_stat_activity" in statement
        for column in re.findall(r"\w+", statement)
        if column in empty
    }
    assert named == UNTRACKED


@pytest.mark.parametrize("is_standard", ["on", "off"])
async def test_a_schema_of_any_name_is_called_by_it(
    is_standard: str, connection: Connection
) -> None:
    """Also in a session that reads a backslash otherwise (`standard_conforming_strings`)."""
    home = '"a\\b\'c"'
    await connection.execute(
        f"SET standard_conforming_strings = {is_standard}; CREATE SCHEMA {home}"
    )
    await connection.execute(
        f"CREATE FUNCTION {home}.require_home_1(text, text) RETURNS text LANGUAGE sql RETURN $1"
    )
    assert home == await connection.fetchval(at_home("SELECT require_home_1(NULL, '')", home))
