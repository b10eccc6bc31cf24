"""The named statements, and the schema that they run against.

Each .sql file lies beside the module that sends its statements, and has its name. A parameter that
a comment there calls "now" is the clock: null means the database's own.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.resources.abc import Traversable

# The folders of the package that contain .sql files.
_ROOMS: Final = ("postgres", "webhook")
# How a statement asks where the session leads; without a schema, it asks nothing.
_ANY_HOME: Final = "require_home_1(NULL, "


def parse_queries(text: str) -> Mapping[str, str]:
    """Split a file of statements, each headed by `-- name: x`; raises `ValueError` on a twin."""
    queries: dict[str, str] = {}
    for block in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        name, _, statement = block.partition("\n")
        if name in queries:
            message = f"two statements are named {name}"
            raise ValueError(message)
        queries[name] = statement.strip().rstrip(";")
    return MappingProxyType(queries)


@cache
def at_home(statement: str, home: str | None) -> str:
    """Have a statement fail in a session that leads to another schema than `home`, if that is given.

    Its routine is called by its full name, wherever the session leads.
    """
    if home is None:
        return statement
    # As an E'' it means the same whatever standard_conforming_strings is.
    literal = home.replace("\\", "\\\\").replace("'", "''")
    return statement.replace(_ANY_HOME, f"{home}.require_home_1(E'{literal}', ")


def schema_file() -> Traversable | Path:
    """Return `schema.sql`: inside the installed package, or at the top of a checkout."""
    packaged = files("stretto") / "schema.sql"
    return packaged if packaged.is_file() else Path(__file__).parents[3] / "schema.sql"


def _statements() -> str:
    """Return all .sql files as one: a statement's name is unique in the whole package."""
    folders = [files("stretto") / room for room in _ROOMS]
    found = [file for folder in folders for file in folder.iterdir() if file.name.endswith(".sql")]
    return "\n".join(file.read_text("utf-8") for file in sorted(found, key=lambda file: file.name))


QUERIES: Final = parse_queries(_statements())
