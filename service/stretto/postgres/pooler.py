"""What is different behind PgBouncer in transaction mode; `?pgbouncer=true` in the URL says so.

Each transaction may run on another server connection. So a session keeps nothing of ours: no
prepared statements, and its settings come from the role (`server_settings.require_role_settings`),
because PgBouncer passes none on.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

_NAME: Final = "pgbouncer"
_PARAMETER: Final = (_NAME, "true")
ADD_PARAMETER: Final = (
    "if this is PgBouncer, STRETTO_DATABASE_URL needs the parameter pgbouncer=true"
    " (postgresql://…/database?pgbouncer=true)"
)
# Undoes what a host's hook has set in a session that others use next. It runs in the hook's
# transaction: the next statement may run on another server connection. Behind a host's handler PgBouncer
# itself has to send it (`assembly/host_pool.py`).
RESET_SESSION: Final = (
    "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP"
)
# Undoes a transaction, and session locks, which outlive it. It is one message: PgBouncer may hand
# the server's session on when the transaction ends, but not within a message. The caller ends the
# new transaction.
ROLL_BACK_SESSION: Final = "ROLLBACK; SELECT pg_advisory_unlock_all(); BEGIN"


def require_pooler(url: str) -> None:
    """Raise `ValueError` for another value: the server would call ours an unknown setting."""
    given = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    if any(name == _NAME and (name, value) != _PARAMETER for name, value in given):
        raise ValueError(
            "its parameter pgbouncer takes the value true alone; leave it out otherwise"
        )


def split_pooler(url: str) -> tuple[str, bool]:
    """Return the URL without our parameter, and whether it leads to PgBouncer.

    Any other value stays in the URL; settings with one are refused (`require_pooler`).
    """
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    if _PARAMETER not in given:
        return url, False
    query = urlencode([pair for pair in given if pair != _PARAMETER])
    return parts._replace(query=query).geturl(), True
