"""What is different behind PgBouncer in transaction mode; `?pgbouncer=true` in the URL says so.

There each transaction may run on another server connection. So nothing may be kept in a session:
no prepared statements, and settings come from the role, because PgBouncer takes none from us.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from stretto.errors import Unreachable
from stretto.postgres.queries import QUERIES
from stretto.postgres.server_settings import ISOLATION

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection

NO_TABLES: Final = "the database has no stretto tables; run `stretto migrate`"
_PARAMETER: Final = ("pgbouncer", "true")
ADD_PARAMETER: Final = (
    "if this is PgBouncer, STRETTO_DATABASE_URL needs the parameter pgbouncer=true"
    " (postgresql://…/database?pgbouncer=true)"
)
# Takes back what a host's hook has set in a session that others use next; in the same transaction,
# because the next statement may be run by another server connection.
RESET_SESSION: Final = (
    "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP"
)
# Takes back a transaction, and session locks, which outlive it. In one message: PgBouncer passes the
# server's session on when the transaction ends, but not within a message. The new one is to be ended.
ROLL_BACK_SESSION: Final = "ROLLBACK; SELECT pg_advisory_unlock_all(); BEGIN"


def split_pooler(url: str) -> tuple[str, bool]:
    """Return the URL without our parameter, and whether it leads to PgBouncer.

    Any other value stays in the URL, for the server to refuse as a setting that it does not know.
    """
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    if _PARAMETER not in given:
        return url, False
    query = urlencode([pair for pair in given if pair != _PARAMETER])
    return parts._replace(query=query).geturl(), True


async def require_role_settings(connection: Connection, schema: str) -> None:
    """Raise `Unreachable`, with the statements that help, unless the role brings what we need."""
    role = await connection.fetchrow(QUERIES["ping_pooled"], schema)
    assert role is not None
    if not role["is_migrated"]:
        raise Unreachable(NO_TABLES)
    if role["is_set"]:
        return
    alter = f"  ALTER ROLE {role['role']} IN DATABASE {role['database']} SET "
    settings = (
        f"search_path = {schema}",
        "lock_timeout = '1s'",
        "statement_timeout = 0",
        f"default_transaction_isolation = '{ISOLATION}'",
    )
    statements = ";\n".join(alter + setting for setting in settings)
    message = (
        "behind PgBouncer the role itself must bring its settings; run\n"
        f"{statements};\nand then RECONNECT on PgBouncer's console"
    )
    raise Unreachable(message)
