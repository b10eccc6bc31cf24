"""The routines that claim and lead, as the schema defines them and with a guard taken out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stretto.postgres.queries import schema_file

if TYPE_CHECKING:
    from support.database import Connection


def definition_of(name: str) -> str:
    """Return what follows CREATE in the definition of a routine of the schema; empty if it has none."""
    schema = schema_file().read_text("utf-8")
    found = re.search(rf"^CREATE (\w+ {name}\(.*?^\$\$;)", schema, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


async def change_routine(connection: Connection, name: str, old: str, new: str = "") -> None:
    """Replace a routine of the database by one in which this text is another; none by default."""
    definition = definition_of(name)
    assert definition.count(old) == 1
    await connection.execute(f"CREATE OR REPLACE {definition.replace(old, new)}")
