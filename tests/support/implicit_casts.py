"""Casts that another owner of a database has made implicit: with them some of our operators could be two."""

from __future__ import annotations

from typing import Final

# What is known as the compatibility with PostgreSQL 8.3.
INTEGERS_AS_TEXT: Final = "".join(
    f"CREATE CAST ({kind} AS text) WITH INOUT AS IMPLICIT;" for kind in ("int2", "int4", "int8")
)
# And every cast that an assignment makes.
ASSIGNMENTS: Final = (
    f"{INTEGERS_AS_TEXT} UPDATE pg_cast SET castcontext = 'i' WHERE castcontext = 'a';"
)
SETS: Final = {"integers as text": INTEGERS_AS_TEXT, "assignments": ASSIGNMENTS}
