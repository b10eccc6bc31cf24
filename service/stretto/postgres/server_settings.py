"""What a session must bring, whoever has opened it: text in UTF-8, and statements that see what commits.

In another encoding some names are refused that the contract allows. Above READ COMMITTED a statement does
not see what another transaction has committed while it waited: most claims would fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.postgres.queries import QUERIES

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection

ENCODING: Final = "UTF8"
ISOLATION: Final = "read committed"


async def session_violation(connection: Connection) -> str | None:
    """Return in words what is wrong with the session or its database, and what to do about it."""
    row = await connection.fetchrow(QUERIES["ping_session"])
    assert row is not None
    if row["server_encoding"] != ENCODING:
        return (
            f"the database {row['database']} has the encoding {row['server_encoding']} and needs"
            f" {ENCODING}, which cannot be changed: make another one with CREATE DATABASE … ENCODING"
            f" '{ENCODING}' TEMPLATE template0"
        )
    if row["client_encoding"] != ENCODING:
        return (
            f"the session's client_encoding is {row['client_encoding']} and must be {ENCODING}: leave it"
            " out of the database's URL and of the pool's settings, and run"
            f" ALTER ROLE {row['role']} RESET client_encoding"
        )
    if row["isolation"] != ISOLATION:
        return (
            f"default_transaction_isolation is {row['isolation']} and must be {ISOLATION}: leave it out"
            f" of the pool's settings, and run ALTER ROLE {row['role']} IN DATABASE {row['database']}"
            f" SET default_transaction_isolation = '{ISOLATION}'"
        )
    return None
