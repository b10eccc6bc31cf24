"""Says why none of a database's hosts gives a connection: each host's own cause.

After a failover one of them is usually dead, which says nothing of the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import asyncpg

from stretto.postgres.driver_errors import in_words, is_lasting
from stretto.postgres.pooler import ADD_PARAMETER
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

Host: TypeAlias = tuple[str | None, int | None]


def unreachable(failures: Mapping[Host, Exception], *, is_pooled: bool) -> Unreachable:
    """Return the error of a connection that every host has failed to give.

    Its cause decides whether the connection is waited for: a failure that may pass, if there is one.
    Of these, an answer of a server's, which an operator can act on, comes before none.
    """
    hosts: dict[str, list[str]] = {}
    for host, failure in failures.items():
        hosts.setdefault(_words(failure, is_pooled=is_pooled), []).append(_place(host))
    if len(hosts) == 1:
        (message,) = hosts
    else:
        # By name, as hosts are tried in another order each time.
        by_name = sorted((", ".join(sorted(places)), words) for words, places in hosts.items())
        message = "; ".join(f"{places}: {words}" for places, words in by_name)
    error = Unreachable(message)
    reason = max(failures.values(), key=lambda failure: _weight(failure, is_pooled=is_pooled))
    error.__cause__ = reason.__cause__ if isinstance(reason, Unreachable) else reason
    return error


def _weight(failure: Exception, *, is_pooled: bool) -> tuple[bool, bool, bool]:
    may_pass = not is_lasting(failure) and not _is_of_settings(failure, is_pooled=is_pooled)
    is_answer = isinstance(failure, asyncpg.PostgresError)
    # Such as a standby, which takes no writes: the primary's own answer says more.
    return may_pass, is_answer, isinstance(failure, Unreachable)


def _words(failure: Exception, *, is_pooled: bool) -> str:
    if isinstance(failure, Unreachable):
        return str(failure)
    advice = f"; {ADD_PARAMETER}" if _is_of_settings(failure, is_pooled=is_pooled) else ""
    return f"{in_words(failure)}{advice}"


def _is_of_settings(failure: Exception, *, is_pooled: bool) -> bool:
    """Whether our settings were refused: PostgreSQL takes them, another program may not."""
    return isinstance(failure, asyncpg.ProtocolViolationError) and not is_pooled


def _place(host: Host) -> str:
    name, port = host
    return f"[{name}]:{port}" if name and ":" in name and name[0] != "/" else f"{name}:{port}"
