"""What a hook has left running meets when it uses the connection after the hook has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import asyncpg
import pytest
import pytest_asyncio

from stretto.store_errors import Misconfigured, Transient
from support.both_stores import write
from support.database import groups
from support.hooked_stores import led_by, open_stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from stretto.postgres.driver_connection import Connection as InnerConnection
    from support.database import Connection
    from support.hooked_stores import Created, Stores


@pytest_asyncio.fixture(params=["own", "pool"])
async def stores(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Stores]:
    """Stores on connections of the component's own, and on those of a host's pool."""
    async with open_stores(database_url, is_hosts_pool=request.param == "pool") as stores:
        yield stores


class _Keeper:
    """A hook that keeps its connection, and what it has made of it."""

    def __init__(self) -> None:
        self._calls = 0

    async def __call__(self, connection: InnerConnection, _: Created) -> None:
        self._calls += 1
        if self._calls == 1:
            self.connection = connection
            self.transaction = connection.transaction()
            self.savepoint = connection.transaction()
            await self.savepoint.start()
            self.prepared = await connection.prepare("SELECT 1")
            self.rows = connection.cursor("SELECT 1").__aiter__()
            self.cursor = await connection.cursor("SELECT 1")


class _Dawdler:
    """A hook that makes a coroutine of its connection's, to be awaited later."""

    def __init__(self, statement: str) -> None:
        self._statement = statement
        self._is_first = True

    async def __call__(self, connection: InnerConnection, _: Created) -> None:
        if self._is_first:
            self.late = connection.execute(self._statement)
        self._is_first = False


LATE: Final[dict[str, Callable[[InnerConnection], Awaitable[object]]]] = {
    "execute": lambda connection: connection.execute("SET search_path = public"),
    "executemany": lambda connection: connection.executemany("SELECT $1::int", [(1,)]),
    "fetch": lambda connection: connection.fetch("SET ROLE pg_monitor"),
    "copy": lambda connection: connection.copy_records_to_table("outbox", records=[]),
    "prepare": lambda connection: connection.prepare("SELECT 1"),
    "close": lambda connection: connection.close(),
    "transaction": lambda connection: connection.transaction().start(),
    "cursor": lambda connection: connection.cursor("SELECT 1").__aiter__().__anext__(),
}


@pytest.mark.parametrize("use", LATE.values(), ids=LATE.keys())
async def test_a_hooks_connection_ends_with_the_hook(
    use: Callable[[InnerConnection], Awaitable[object]], stores: Stores, connection: Connection
) -> None:
    """Late uses fail, and the next group is created as if there had been none."""
    keeper = _Keeper()
    store = stores(keeper)
    await led_by(store, "a")
    with pytest.raises(asyncpg.InterfaceError, match="released"):
        await use(keeper.connection)
    assert len(await led_by(store, "b")) == 1
    assert await groups(connection) == 2


MADE: Final[dict[str, Callable[[_Keeper], Awaitable[object]]]] = {
    "transaction": lambda keeper: keeper.transaction.start(),
    "commit": lambda keeper: keeper.savepoint.commit(),
    "rollback": lambda keeper: keeper.savepoint.rollback(),
    "statement": lambda keeper: keeper.prepared.fetch(),
    "rows": lambda keeper: keeper.rows.__anext__(),
    "cursor": lambda keeper: keeper.cursor.fetch(1),
}


@pytest.mark.parametrize("use", MADE.values(), ids=MADE.keys())
@pytest.mark.parametrize("is_in_a_hook", [False, True], ids=["between", "in the next hook"])
async def test_what_a_hook_has_made_of_its_connection_ends_with_it(
    use: Callable[[_Keeper], Awaitable[object]],
    *,
    is_in_a_hook: bool,
    stores: Stores,
    connection: Connection,
) -> None:
    """No savepoint of one hook can take back what a later one has written; one session serves all."""
    keeper = _Keeper()
    pids: list[int] = []

    async def late() -> None:
        with pytest.raises(asyncpg.InterfaceError, match="released back"):
            await use(keeper)

    async def hook(inner: InnerConnection, created: Created) -> None:
        await keeper(inner, created)
        if is_in_a_hook and pids:
            await late()
        pids.append(await inner.fetchval("SELECT pg_backend_pid()"))

    store = stores(hook)
    await led_by(store, "a")
    if not is_in_a_hook:
        await late()
    assert len(await led_by(store, "b")) == 1
    assert await groups(connection) == 2
    assert 1 == len(set(pids))
    assert [] == stores.lost


async def test_a_hooks_connection_passes_for_a_connection(stores: Stores) -> None:
    """Everything that a host does with one works, libraries that ask for its class included."""
    seen: list[object] = []

    async def hook(inner: InnerConnection, _: Created) -> None:
        seen.append(isinstance(inner, asyncpg.Connection))
        await inner.execute("CREATE TEMP TABLE mine (x int) ON COMMIT DROP")
        async with inner.transaction():
            await inner.executemany("INSERT INTO mine VALUES ($1)", [(1,), (2,)])
        await inner.copy_records_to_table("mine", records=[(3,)])
        seen.append([row["x"] async for row in inner.cursor("SELECT x FROM mine ORDER BY x")])
        seen.append(await (await inner.prepare("SELECT sum(x) FROM mine")).fetchval())
        seen.append(inner.is_in_transaction())

    assert len(await led_by(stores(hook))) == 1
    assert [True, [1, 2, 3], 6, True] == seen


async def test_no_group_is_written_inside_a_transaction_that_a_hook_left(
    stores: Stores, connection: Connection
) -> None:
    """It would be a savepoint that is never committed: the group gone, and its client happy."""
    dawdler = _Dawdler("BEGIN")
    store = stores(dawdler)
    await led_by(store, "a")
    await dawdler.late
    assert len(await led_by(store, "b")) == 1
    assert await groups(connection) == 2
    assert [] == stores.lost


@pytest.mark.parametrize("left", ["SET work_mem = '7MB'", "SET ROLE pg_monitor"])
async def test_a_session_that_was_changed_between_two_hooks_is_not_written_in(
    left: str, stores: Stores, connection: Connection
) -> None:
    """Nothing of it is committed, and the writer's second try has a session of its own."""
    dawdler = _Dawdler(left)
    store = stores(dawdler)
    await led_by(store, "a")
    ours = write("b")
    await store.claim([ours])
    await dawdler.late
    with pytest.raises((Transient, Misconfigured)):
        await store.lead([ours])
    assert await groups(connection) == 1
    assert {ours.claim_token} == await store.lead([ours])
    assert [] == stores.lost
