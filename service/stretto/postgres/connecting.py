"""Opens connections of our own: to a primary that takes writes, with settings for the session."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

import asyncpg
from asyncpg.connect_utils import SessionAttribute
from asyncpg.exceptions import TargetServerAttributeNotMatched

from stretto.postgres.comparing import Comparisons, ask_all
from stretto.postgres.database_url import split_hosts
from stretto.postgres.driver_connection import DriverConnection, terminate, watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS, URL_ERRORS
from stretto.postgres.first_answer import drivers_loop
from stretto.postgres.host_failures import unreachable
from stretto.postgres.pooler import split_pooler
from stretto.postgres.primaries import UNKNOWN, OpenConnections, Primary, replaced_last
from stretto.postgres.queries import QUERIES
from stretto.postgres.race import SILENT_SECONDS, race
from stretto.postgres.searching import PrimarySearch
from stretto.postgres.server_settings import ISOLATION
from stretto.store_errors import Unreachable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from stretto.postgres.driver_connection import Connection
    from stretto.postgres.host_failures import Host

    _Opened: TypeAlias = tuple[DriverConnection, Primary]

# One host of several may be dead; the others must still be reached while a client waits.
CONNECT_SECONDS: Final = 2.0
LOCK_SECONDS: Final = 1.0
# Every transaction of ours has ended by then, or its connection was cut. This bound is for a client
# that looks to the server like a slow one: between the packets of a statement a session is
# neither idle nor cancelled, and keeps its locks.
TRANSACTION_SECONDS: Final = 30.0
DEFAULT_PORT: Final = 5432
SILENT: Final = "the database has not answered the last connection, and another one is being tried"
READ_ONLY: Final = "the database is read-only: a standby, or default_transaction_read_only is on"
# asyncpg's own default. Behind a pooler it is 0: the next transaction may run on a server
# connection that lacks the prepared statement.
PREPARED_MAX: Final = 100

# PgBouncer passes only this setting on.
_NAME: Final = {"application_name": "stretto"}
_SERVER_SETTINGS: Final = _NAME | {
    "lock_timeout": f"{LOCK_SECONDS:.0f}s",
    # A role's own would end a command, or a write that waits for a synchronous standby.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "30s",
    # A role's own would end every connection that waits for work.
    "idle_session_timeout": "0",
    # A role may set another one.
    "default_transaction_isolation": ISOLATION,
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    # Statements touch few rows by primary key; compiling them costs more than running them.
    "jit": "off",
    # Statements find their rows by index. Otherwise a plan that was made while a table was small
    # keeps scanning the whole table after it has grown, until an ANALYZE.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
# What a trigger of the operator's may set for the session, and what would lead our statements astray.
_RESTORED: Final = (
    "RESET SESSION AUTHORIZATION; RESET ROLE; RESET search_path; RESET statement_timeout;"
    " RESET lock_timeout; RESET synchronous_commit; RESET default_transaction_isolation;"
    " RESET default_transaction_read_only; SET client_min_messages TO notice; DISCARD TEMP"
)


class Connector:
    """Opens connections; tries the host that served last first, and compares all after a loss."""

    def __init__(self, dsn: str, schema: str) -> None:
        self._dsn, self.is_pooled = split_pooler(dsn)
        self.prepared_max = 0 if self.is_pooled else PREPARED_MAX
        self._server_settings = (
            _NAME if self.is_pooled else _SERVER_SETTINGS | {"search_path": schema}
        )
        self.hosts = _hosts(dsn)
        self._opened = OpenConnections()
        self._comparisons = Comparisons()
        ordinary = partial(_set_up, seconds=TRANSACTION_SECONDS, sees_all=False)
        open_at = partial(self._open, settings={}, set_up=ordinary)
        self._search = PrimarySearch(self.hosts, self._opened, open_at, self._accepted)
        self._is_silent = False
        """Whether the last connection was given up for want of an answer."""
        self._tries: set[asyncio.Future[None]] = set()
        """Those under way."""

    async def connect(
        self, *, may_take_long: bool = False, sees_all: bool = False, **settings: str
    ) -> DriverConnection:
        """Try the hosts for a primary that takes writes; raises `Unreachable`.

        The server ends transactions after `TRANSACTION_SECONDS`, unless they may take longer,
        whatever the role's settings say. With `sees_all`, a statement fails from which row-level
        security would hide rows. `settings` are more settings of the server; a pooler gets none of it.
        """
        set_up = partial(
            _set_up, seconds=0 if may_take_long else TRANSACTION_SECONDS, sees_all=sees_all
        )
        outcome = await self._race(partial(self._open, settings=settings, set_up=set_up))
        if isinstance(outcome, dict):
            raise unreachable(outcome, is_pooled=self.is_pooled)
        host, connection = outcome
        self.hosts.remove(host)
        self.hosts.insert(0, host)
        self._search.release()
        return connection

    async def close(self) -> None:
        """End what goes on without a caller; connections are closed by their users."""
        await self._search.close()

    async def restore(self, connection: Connection) -> None:
        """Undo what a trigger's SET has left in a session of ours, or cut it; raises nothing.

        A pooler's session is not ours.
        """
        if self.is_pooled:
            return
        try:
            with watchdog(connection, CONNECT_SECONDS):
                await connection.execute(_RESTORED)
        except DRIVER_ERRORS:
            terminate(connection)

    def cut(self) -> None:
        """Cut every connection that was opened here, idle or in use."""
        self._opened.cut()

    def doubt(self, connection: Connection | None = None) -> None:
        """Have the next connection try the other hosts first; cut this one, so that there is a next.

        While commits wait, a standby may have replaced a primary that still runs. Only a new connection
        shows it. Behind a pooler it shows nothing.
        """
        if self.is_pooled:
            return
        self.hosts.append(self.hosts.pop(0))
        if connection is not None:
            terminate(connection)

    async def _race(
        self, open_at: Callable[[Host], Coroutine[None, None, _Opened | Exception]]
    ) -> tuple[Host, DriverConnection] | dict[Host, Exception]:
        """Race the hosts; raises `Unreachable` while none of them answers, and another task is trying.

        So where nothing answers, one waits for that. The others are refused at once, while their
        clients or proxies have time left to reach another instance.
        """
        if self._is_silent and self._tries:
            # A database that lives answers the other one by then.
            first = asyncio.FIRST_COMPLETED
            await asyncio.wait(self._tries, timeout=SILENT_SECONDS, return_when=first)
            if self._is_silent:
                raise Unreachable(SILENT)

        async def tried(host: Host) -> DriverConnection | Exception:
            return self._accepted(host, await open_at(host))

        under_way = asyncio.get_running_loop().create_future()
        self._tries.add(under_way)
        try:
            outcome = await self._compare(open_at)
            if outcome is None:
                # A copy: other tasks connect meanwhile and change the order.
                outcome = await race(tuple(self.hosts), tried, terminate)
            self._is_silent = isinstance(outcome, dict) and any(
                isinstance(failure, TimeoutError) for failure in outcome.values()
            )
        finally:
            self._tries.remove(under_way)
            under_way.set_result(None)
        return outcome

    async def _compare(
        self, open_at: Callable[[Host], Coroutine[None, None, _Opened | Exception]]
    ) -> tuple[Host, DriverConnection] | dict[Host, Exception] | None:
        """Return the newest primary's host and connection; None where no comparison is due, or shows one."""
        losses = self._opened.losses
        due = () if self.is_pooled else self._comparisons.due(self.hosts, losses)
        if not due:
            return None
        opened, failures = await ask_all(due, open_at, lambda each: terminate(each[0]))
        if not self._comparisons.note(due, (*opened, *failures), losses):
            self._search.begin()
        won: tuple[Host, DriverConnection] | None = None
        for host in replaced_last({host: primary for host, (_, primary) in opened.items()}):
            if won is not None:
                terminate(opened[host][0])
            elif isinstance(outcome := self._accepted(host, opened[host]), Exception):
                failures[host] = outcome
            else:
                won = host, outcome
        return won or (failures if failures.keys() >= {*self.hosts} else None)

    def _accepted(self, host: Host, opened: _Opened | Exception) -> DriverConnection | Exception:
        """Return the connection, unless it leads to a primary that a living one has replaced."""
        if isinstance(opened, Exception):
            return opened
        connection, primary = opened
        try:
            self._opened.add(connection, primary, host)
        except Unreachable as error:
            terminate(connection)
            return error
        self._search.note_added()
        return connection

    async def _open(
        self,
        host: Host,
        *,
        settings: dict[str, str],
        set_up: Callable[[Connection], Awaitable[Primary]],
    ) -> _Opened | Exception:
        """Return a connection to a host with its primary, or why there is none."""
        try:
            connection = await self._connect_to(host, settings)
            try:
                primary = UNKNOWN
                if self.is_pooled:
                    # What a pooler reports of its server may be out of date.
                    await _require_read_write(connection)
                else:
                    primary = await set_up(connection)
            except BaseException:
                terminate(connection)
                raise
        except TargetServerAttributeNotMatched as error:
            failure = Unreachable(READ_ONLY)
            failure.__cause__ = error
            self._opened.note_failure(host, failure)
            return failure
        except (*DRIVER_ERRORS, *URL_ERRORS, Unreachable) as error:
            self._opened.note_failure(host, error)
            return error
        return connection, primary

    async def _connect_to(self, host: Host, settings: dict[str, str]) -> DriverConnection:
        name, port = host
        return await asyncpg.connect(
            self._dsn,
            loop=drivers_loop(),
            host=name,
            port=port,
            timeout=CONNECT_SECONDS,
            target_session_attrs=SessionAttribute.any
            if self.is_pooled
            else SessionAttribute.read_write,
            server_settings=self._server_settings | ({} if self.is_pooled else settings),
            statement_cache_size=self.prepared_max,
            connection_class=DriverConnection,
        )


async def refuses_writes(connection: Connection) -> bool:
    """Whether the server refuses writes of this session."""
    with watchdog(connection, CONNECT_SECONDS):
        return bool(await connection.fetchval(QUERIES["is_read_only"]))


async def _require_read_write(connection: Connection) -> None:
    if await refuses_writes(connection):
        raise Unreachable(READ_ONLY)


async def _set_up(connection: Connection, *, seconds: float, sees_all: bool) -> Primary:
    """Have the server end longer transactions, if it can: from PostgreSQL 17 on; 0 is no bound.

    Not as settings of the start, which a pooler in session mode must know of. Return which primary it is.
    """
    with watchdog(connection, CONNECT_SECONDS):
        await connection.fetch(QUERIES["set_up_session"], f"{seconds:g}s", sees_all)
        try:
            row = await connection.fetchrow(QUERIES["primary"])
        except asyncpg.PostgresError:
            # A right that is missing is named at the start, by what cannot do without it.
            return UNKNOWN
    assert row is not None
    return Primary(*row)


def _hosts(dsn: str) -> list[Host]:
    """Return the hosts of a DSN, to be tried one by one; a single one is left to the driver."""
    places = urlsplit(dsn).netloc.rpartition("@")[2]
    if "," not in places:
        return [(None, None)]
    return [(name, port or DEFAULT_PORT) for name, port in split_hosts(places)]
