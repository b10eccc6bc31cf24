"""A host's pool: its connections, and whether the host closes it.

`connect`, `init`, `setup` and `reset` of a pool are the host's own code and may raise anything.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.kinds import name_of
from stretto.postgres.driver_connection import is_lost, is_recoded, terminate, watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS, in_words, is_of_one_statement
from stretto.postgres.migrate import PRIVILEGES, ROUTINES
from stretto.postgres.queries import QUERIES
from stretto.postgres.server_settings import hidden_rows, require_all_rows
from stretto.runtime.actor import Actor, Pace
from stretto.runtime.cancelling import cancellations, is_cancelled, retrieve
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.postgres.driver_connection import Connection, Pool

# Changed connections that are cut for one request: what `init` changes, all of them have.
CHANGED_MAX: Final = 4
# For the look at a session, beyond the wait for it: a busy pool would be made smaller otherwise.
SESSION_SECONDS: Final = 1.0
# Beyond the driver's own time-out, which waits for the end of a host's code that it has cancelled.
STUCK_SECONDS: Final = 1.0
# The longest extra wait of a host that closes first, besides a write that is under way. A look
# reads one attribute.
LOOK_SECONDS: Final = 0.25


class Changed(Unreachable):
    """The host has changed what its pool's connections read."""


async def acquire(
    pool: Pool, seconds: float, schema: str | None = None, *, sees_all: bool = False
) -> Connection:
    """Return a connection to be released; raises `Unreachable`: nothing has been sent.

    It leads to the tables in `schema`, if that is given. With `sees_all`, its statements fail from
    which row-level security would hide rows.

    The host's code runs in a task of its own (`runtime/cancelling.py`).
    """
    since = cancellations()
    look = partial(_violation, schema=schema, sees_all=sees_all)
    acquiring = asyncio.create_task(
        _acquired(pool, seconds, look), name="connection of a host's pool"
    )
    try:
        limit = seconds + SESSION_SECONDS + STUCK_SECONDS
        await asyncio.wait({acquiring}, timeout=limit)
        return _result_of(acquiring, pool)
    except TimeoutError as error:
        message = (
            f"the host's pool gave no connection within {seconds:g} s: all of its max_size are in use,"
            " or the database does not answer"
        )
        raise Unreachable(message) from error
    except DRIVER_ERRORS as error:
        raise Unreachable(in_words(error)) from error
    except Unreachable:
        raise
    except (Exception, asyncio.CancelledError) as error:
        if is_cancelled(since):
            acquiring.cancel()
            # It may have come to its end in the same turn of the loop.
            acquiring.add_done_callback(partial(_give_back, pool))
            raise
        message = f"connect, init or setup of the host's pool raised {name_of(error)}"
        raise Unreachable(message) from error
    finally:
        # The traceback of its error refers to this frame, which must not refer back.
        del acquiring


def _result_of(acquiring: asyncio.Task[Connection], pool: Pool) -> Connection:
    """Return the connection; raises `Unreachable` where the host's code does not end.

    It may swallow the cancellation with which the driver bounds it.
    """
    if acquiring.done():
        return acquiring.result()
    acquiring.cancel()
    acquiring.add_done_callback(partial(_give_back, pool))
    message = "connect, init or setup of the host's pool does not end"
    raise Unreachable(message)


async def _acquired(
    pool: Pool, seconds: float, look: Callable[[Connection], Awaitable[str | None]]
) -> Connection:
    """Return a connection that reads all of our tables, with the driver's own codecs for their types.

    One that a handler of the host's has changed is replaced by the pool.
    """
    clock_seconds = asyncio.get_running_loop().time
    ends = clock_seconds() + seconds
    violation: str | None = None
    for _ in range(CHANGED_MAX):
        connection: Connection = await pool.acquire(timeout=ends - clock_seconds())
        if is_lost(connection):
            return connection
        try:
            with watchdog(connection, SESSION_SECONDS):
                violation = await look(connection)
        except Unreachable:
            await pool.release(connection, timeout=seconds)  # type: ignore[arg-type]
            raise
        except BaseException:
            terminate(connection)
            _begin_release(pool, connection, seconds)
            raise
        if violation is None:
            return connection
        terminate(connection)
        await pool.release(connection, timeout=seconds)  # type: ignore[arg-type]
    raise Changed(f"the host's pool gives connections with {violation}")


async def _violation(connection: Connection, *, schema: str | None, sees_all: bool) -> str | None:
    """Return what is wrong with the session; raises `Unreachable` where another one has it too."""
    if is_recoded(connection):
        return (
            "codecs of its own for PostgreSQL's own types: leave those as they are, or give stretto a"
            " pool of its own"
        )
    process = connection.get_server_pid() if sees_all else None
    try:
        session = await connection.fetchrow(
            QUERIES["look_at_session"], [*PRIVILEGES], process, ROUTINES, schema
        )
    except asyncpg.PostgresError as error:
        if not is_of_one_statement(error):
            raise
        return f"a session that cannot be asked: {in_words(error)}"
    if session is None:
        return None
    if session["hidden"] is not None:
        return (
            f"temporary relations in the place of our tables ({session['hidden']}): give them other"
            " names, or end the pool's search_path with pg_temp"
        )
    if session["elsewhere"] is not None:
        return (
            f"a session that leads to tables in {session['elsewhere']}, and stretto was started with those"
            f" in {schema}: have its role, {session['role']}, find {schema} first (its search_path, and its"
            " right USAGE on that schema), or start stretto anew if it is to serve the others"
        )
    if session["is_other_role"]:
        violation = hidden_rows(session) or f"it does not find the tables in {schema}"
        return f"a role that was set in them (SET ROLE, SET SESSION AUTHORIZATION), and {violation}"
    require_all_rows(session)
    # Where the pool's own role finds no tables, neither do the next sessions: the statement says what is missing.
    return None


def _give_back(pool: Pool, acquiring: asyncio.Task[Connection]) -> None:
    """Release a connection whose caller was cancelled."""
    if not acquiring.cancelled() and acquiring.exception() is None:
        _begin_release(pool, acquiring.result(), None)


async def release(pool: Pool, connection: Connection, seconds: float) -> None:
    """Release a connection; raises what the host's `reset` raises.

    If this is cancelled, the driver goes on to release it in a task that nothing looks at any more,
    and asyncio would print what that meets once we have cut the connection. So a task of ours
    awaits it.
    """
    releasing = _begin_release(pool, connection, seconds)
    try:
        await asyncio.wait({releasing}, timeout=seconds + STUCK_SECONDS)
        if not releasing.done():
            raise TimeoutError("reset of the host's pool does not end")
        releasing.result()
    finally:
        # The traceback of its error refers to this frame, which must not refer back.
        del releasing


def _begin_release(pool: Pool, connection: Connection, seconds: float | None) -> asyncio.Task[None]:
    releasing = asyncio.create_task(
        pool.release(connection, timeout=seconds),  # type: ignore[arg-type]
        name="release of a connection",
    )
    releasing.add_done_callback(retrieve)
    return releasing


class PoolWatch(Actor):
    """Calls each of `releases` repeatedly while the pool `is_closing`.

    A pool's `close` waits until every connection is released, and writers keep theirs. The
    component stops only after its host, so a host that closes the pool first would wait for ever.
    The driver does not report that a pool is closing: the watch looks, and has the writers release
    their connections. From then on requests are answered with an error, and may be sent again with
    the same key.

    One call is not enough: a writer with a write under way releases its connection after it.
    """

    pace = Pace(seconds=LOOK_SECONDS)

    def __init__(
        self, is_closing: Callable[[], bool], releases: Sequence[Callable[[], Awaitable[None]]]
    ) -> None:
        super().__init__("pool watch")
        self._is_closing = is_closing
        self._releases = releases

    async def run_once(self) -> int:
        """Look once; return how many writers were asked. Raises what the host's `reset` raises."""
        if not self._is_closing():
            return 0
        # Each one is called, whatever those before it raise.
        async with AsyncExitStack() as stack:
            for release in reversed(self._releases):
                stack.push_async_callback(release)
        return len(self._releases)
