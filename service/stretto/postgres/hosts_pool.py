"""Connections of a host's pool, whose callbacks are the host's own code.

`connect`, `init` and `setup` run when a connection is acquired, and raise what they like. For us that is
a database that cannot be reached, whatever it was: nothing has been sent.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stretto.errors import Unreachable
from stretto.postgres.driver_errors import DRIVER_ERRORS, in_words
from stretto.runtime.cancelling import is_cancelled

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection, Pool


async def acquire(pool: Pool, seconds: float) -> Connection:
    """Return a connection to be given back; raises `Unreachable`."""
    try:
        return await pool.acquire(timeout=seconds)
    except DRIVER_ERRORS as error:
        raise Unreachable(in_words(error)) from error
    except (Exception, asyncio.CancelledError) as error:
        if is_cancelled():
            raise
        message = f"connect, init or setup of the host's pool raised {type(error).__name__}"
        raise Unreachable(message) from error
