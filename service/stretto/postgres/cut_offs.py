"""CutOffs: lanes that could not open their newest connection, and whether the server has refused it.

What the server refuses it refuses to every instance: while others hold all of its connections, or between
a role's new password and that of a file. If an instance counted as not ready then, all would, and
creations would end that need no new connection. What does not reach the server may be this machine's way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.postgres.driver_errors import is_refusal
from stretto.postgres.lanes import SERVING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.postgres.lanes import Lane
    from stretto.store_errors import Unreachable

# PgBouncer has the same code (08) for its limit as for its own way to the server, which counts for nothing.
_POOLER_IS_FULL: Final = "max_client_conn"


class CutOffs:
    """Lanes; each counts until it opens a connection, and while it has none."""

    def __init__(self, has_connection: Callable[[Lane], bool]) -> None:
        self._has_connection = has_connection
        self._are_refused: dict[Lane, bool] = {}

    def note(self, lane: Lane, error: Unreachable) -> None:
        """Note that the lane could not open a connection."""
        cause = error.__cause__
        self._are_refused[lane] = is_refusal(cause) or _POOLER_IS_FULL in str(cause)

    def discard(self, lane: Lane) -> None:
        """Note that it has opened one."""
        self._are_refused.pop(lane, None)

    def clear(self) -> None:
        """Forget them, until they fail again."""
        self._are_refused.clear()

    def is_refused(self, lane: Lane) -> bool:
        """Whether the server has refused the lane's newest connection."""
        return self._are_refused.get(lane, False)

    def is_any_serving(self, *, is_writing: bool) -> bool:
        """Whether a lane that requests wait for has no connection, and could not open one.

        A lane whose connections are all in use is only busy. While writers write, what the server has
        refused does not count.
        """
        return any(
            not (is_writing and is_refused) and not self._has_connection(lane)
            for lane, is_refused in self._are_refused.items()
            if lane in SERVING
        )
