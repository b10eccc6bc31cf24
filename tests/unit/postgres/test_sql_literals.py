"""Literals of our SQL mean the same whatever `standard_conforming_strings` is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stretto
from stretto.postgres.queries import schema_file

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(stretto.__file__).parent
# Statements, migrations, and the schema with its views and routines.
FILES = [*sorted(PACKAGE.rglob("*.sql")), Path(str(schema_file()))]
# What may hold an apostrophe that begins no literal comes first; the body of a routine holds literals.
PARTS = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | "[^"]*" | \b[eE]'(?:[^'\\]|\\.|'')*' | (?P<plain>'[^']*')""",
    re.VERBOSE | re.DOTALL,
)


def ambiguous(text: str) -> Iterator[str]:
    """Return the plain literals with a backslash: with the setting off it is an escape."""
    for part in PARTS.finditer(text):
        if "\\" in (part["plain"] or ""):
            yield part["plain"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_plain_literal_has_a_backslash(file: Path) -> None:
    """A server, a database or a role may have it off. There is no exception so far."""
    assert [] == [*ambiguous(file.read_text())]


@pytest.mark.parametrize(
    ("expected", "text"),
    [
        ([r"'^\d$'"], r"SELECT substring(a FROM '^\d$')"),
        ([r"'\'"], "-- It's one.\nSELECT 'it''s', '\\'"),
        ([r"'\d'"], r"AS $$ BEGIN RETURN 'a' ~ '\d'; END $$"),
        ([r"'\d'"], r"""SELECT "it's", '\d'"""),
        ([r"'\d'"], r"SELECT /* it's */ name'\d'"),
        ([], r"SELECT E'\'\d', e'\\', '[0-9]' -- '\d'"),
    ],
)
def test_a_backslash_in_a_plain_literal_is_noticed(expected: list[str], text: str) -> None:
    """The twin. In a comment, a name or an E'' it means one thing."""
    assert expected == [*ambiguous(text)]
