"""stretto inside a host: below a prefix, on the host's pool, starting and stopping with it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest
from aiohttp import web

import stretto
from stretto.assembly.opening import open_component
from stretto.http.service import SERVICE
from stretto.postgres.migrate import migrate
from stretto.store_errors import Unreachable
from support.api_client import SECRET, TEAM, connected_api, hosted_api, token_of
from support.database import first_row
from support.raw_client import creation, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from support.api_client import Api
    from support.database import Connection

    Pool = asyncpg.Pool[asyncpg.Record]

TOKENS: Final = stretto.TokenSettings(jwt_secret=SECRET)
POOL: Final = web.AppKey("POOL", asyncpg.Pool)
WRITERS: Final = 2
# Nothing here takes as long: a host that hangs must not hang the suite.
DEADLINE_SECONDS: Final = 60
PROBLEM: Final = "application/problem+json"
NEW_GROUP: Final = stretto.NewGroup.parse(stretto.UserId("alice"), TEAM)


@asynccontextmanager
async def pool_of(dsn: str, search_path: str = "stretto,public") -> AsyncIterator[Pool]:
    """Open a pool as a host has one; closing waits for every connection."""
    async with asyncpg.create_pool(
        dsn, min_size=0, max_size=WRITERS + 3, server_settings={"search_path": search_path}
    ) as pool:
        yield pool


def host_with_pool(
    dsn: str, journal: list[str], search_path: str = "stretto,public"
) -> web.Application:
    """Return a host that opens and closes its pool itself, and notes when."""
    app = web.Application()

    async def open_pool(app: web.Application) -> AsyncIterator[None]:
        async with pool_of(dsn, search_path) as pool:
            app[POOL] = pool
            journal.append("pool opened")
            yield
            journal.append(f"{acquired(pool)} connections are acquired")
        journal.append("pool closed")

    app.cleanup_ctx.append(open_pool)
    return app


def acquired(pool: Pool) -> int:
    """How many connections are out."""
    return pool.get_size() - pool.get_idle_size()


@asynccontextmanager
async def api_of(app: web.Application) -> AsyncIterator[Api]:
    """Serve the host; the end of it must come in time."""
    async with asyncio.timeout(DEADLINE_SECONDS), hosted_api(app) as api:
        yield api


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """A host with a route of its own, and the contract below a prefix of two parts."""
    app = web.Application()

    async def fail(_: web.Request) -> web.Response:
        raise web.HTTPConflict(text="the host's own words")

    app.add_routes([web.get("/own", fail)])
    stretto.setup(app, "/apps/chat", dsn=database_url, tokens=TOKENS)
    async with api_of(app) as api:
        yield api


async def created(api: Api, key: str, prefix: str) -> dict[str, str]:
    """Create a group below a prefix."""
    headers = {"Idempotency-Key": key}
    reply = await api.request("POST", f"{prefix}/v1/groups", headers=headers, json=TEAM)
    assert reply.status == 201
    return {**reply.json, "Location": reply.headers["Location"]}


async def test_the_location_of_a_group_leads_below_the_prefix(api: Api) -> None:
    """A client that follows it finds the group."""
    group = await created(api, "k", "/apps/chat")
    assert f"/apps/chat/v1/groups/{group['group_id']}" == group["Location"]
    reply = await api.get(group["Location"])
    assert (200, group["group_id"]) == (reply.status, reply.json["group_id"])


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/apps/chat", 404, "not_found"),
        ("GET", "/apps/chat/", 404, "not_found"),
        ("GET", "/apps/chat/nothing", 404, "not_found"),
        ("GET", "/apps/chat/v1/groups/", 404, "not_found"),
        ("PUT", "/apps/chat/v1/groups", 405, "method_not_allowed"),
        ("POST", "/apps/chat/livez", 405, "method_not_allowed"),
    ],
)
async def test_below_the_prefix_every_error_is_a_problem_document(
    method: str, path: str, status: int, code: str, api: Api
) -> None:
    """Those that the framework itself finds as well."""
    reply = await api.request(method, path)
    assert (status, PROBLEM, code) == (
        reply.status,
        reply.headers["Content-Type"],
        reply.json["code"],
    )
    assert ("Allow" in reply.headers) == (status == 405)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/own", 409, b"the host's own words"),
        ("/nothing", 404, b"404: Not Found"),
        ("/apps/chatter", 404, b"404: Not Found"),
        ("/v1/groups", 404, b"404: Not Found"),
    ],
)
async def test_the_hosts_own_errors_stay_the_hosts(
    path: str, status: int, text: bytes, api: Api
) -> None:
    """No problem document outside of the prefix."""
    reply = await api.get(path)
    assert (status, text) == (reply.status, reply.body)
    assert reply.headers["Content-Type"].startswith("text/plain")


async def test_a_body_that_the_host_has_read_already_is_still_there(database_url: str) -> None:
    """A host's middleware may look at bodies: to log them, or to verify a signature."""
    lengths: list[int] = []

    @web.middleware
    async def look(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        lengths.append(len(await request.read()))
        return await handler(request)

    app = web.Application(middlewares=[look])
    stretto.setup(app, "/chat", dsn=database_url, tokens=TOKENS)
    async with api_of(app) as api:
        await created(api, "k", "/chat")
    assert lengths[0] > 0


async def test_a_host_may_replace_a_token_that_was_refused_with_the_head(
    database_url: str,
) -> None:
    """By one of its own, as for a cookie: what was verified before the body was asked for is void."""

    @web.middleware
    async def replace(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        fields = request.headers.copy()
        fields["Authorization"] = f"Bearer {token_of('alice')}"
        return await handler(request.clone(headers=fields))

    app = web.Application(middlewares=[replace])
    stretto.setup(app, "/chat", dsn=database_url, tokens=TOKENS)
    request = creation("of another issuer", "k").replace(b" /v1/", b" /chat/v1/")
    async with api_of(app) as api, asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        for expectation in (b"", b"\r\nExpect: 100-continue"):
            client = await raw.connect(request.replace(b"Host: x", b"Host: x" + expectation))
            assert 201 == (await client.answer())[0]


async def test_the_documentation_works_below_the_prefix(api: Api) -> None:
    """Its page names its files relatively, so that they are found."""
    assert (await api.get("/apps/chat/docs")).status == 200
    assert (await api.get("/apps/chat/openapi.json")).json["openapi"].startswith("3.1")
    assert (await api.get("/apps/chat/readyz")).status == 200


async def test_a_pool_that_was_handed_in_is_used_and_left_to_its_host(database_url: str) -> None:
    """While running, the writers keep theirs; afterwards all came back and the pool still works."""
    settings = stretto.ComponentSettings(writers=WRITERS)
    async with pool_of(database_url) as pool:
        for key in ("k", "another"):
            async with open_component(pool=pool, settings=settings) as component:
                await component.creator.create(stretto.IdempotencyKey(key), NEW_GROUP)
                # The relay borrows one for a moment.
                assert 1 <= acquired(pool) <= WRITERS + 1
            assert acquired(pool) == 0
        assert await pool.fetchval("SELECT count(*) FROM chat_group") == 2


async def test_a_writer_whose_connection_dies_takes_another_from_the_pool(
    database_url: str, connection: Connection
) -> None:
    """However often: a dead connection does not keep its place in the pool."""
    async with pool_of(database_url) as pool, open_component(pool=pool) as component:
        for number in range(pool.get_max_size() + 1):
            key = stretto.IdempotencyKey(f"k{number}")
            answer = await component.creator.create(key, NEW_GROUP)
            assert stretto.group_id("alice", key) == answer.group.group_id
            await connection.execute(
                """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid()"""
            )
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == number + 1


async def test_a_start_that_is_cancelled_gives_every_connection_back(
    database_url: str, connection: Connection
) -> None:
    """Also the one with which a writer was about to begin."""
    async with asyncio.timeout(DEADLINE_SECONDS), pool_of(database_url) as pool:
        async with connection.transaction():
            await connection.execute("LOCK TABLE attempt IN ACCESS EXCLUSIVE MODE")
            start = asyncio.ensure_future(open_component(pool=pool).__aenter__())
            await first_row(
                connection,
                """SELECT 1 FROM pg_locks JOIN pg_database ON oid = database
                   WHERE datname = current_database() AND NOT granted""",
            )
            start.cancel()
            with pytest.raises(asyncio.CancelledError):
                await start
        assert acquired(pool) == 0


async def test_a_host_that_closes_its_pool_itself_shuts_down_in_order(database_url: str) -> None:
    """When the host cleans up, no connection is out; closing the pool waits for none."""
    journal: list[str] = []
    app = host_with_pool(database_url, journal)
    stretto.setup(app, "/chat", pool=lambda: app[POOL], tokens=TOKENS)
    async with api_of(app) as api:
        await created(api, "k", "/chat")
        assert acquired(app[POOL]) >= 1
    assert ["pool opened", "0 connections are acquired", "pool closed"] == journal


async def test_a_request_in_flight_lands_before_the_hosts_pool_closes(
    database_url: str, connection: Connection
) -> None:
    """The client gets its answer although the host is shutting down."""
    journal: list[str] = []
    in_hook, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: object, pairs: Sequence[object]) -> None:
        in_hook.set()
        await go_on.wait()
        journal.append(f"{len(pairs)} created")

    app = host_with_pool(database_url, journal)
    stretto.setup(app, "/chat", pool=lambda: app[POOL], tokens=TOKENS, on_create=wait)
    async with asyncio.timeout(DEADLINE_SECONDS), asyncio.TaskGroup() as tasks:
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with connected_api(f"http://127.0.0.1:{runner.addresses[0][1]}") as api:
            request = tasks.create_task(created(api, "k", "/chat"))
            await in_hook.wait()
            cleanup = tasks.create_task(runner.cleanup())
            await until(lambda: app._subapps[0][SERVICE].creator.is_stopping)
            go_on.set()
            group = await request
            await cleanup
    assert ["pool opened", "1 created", "0 connections are acquired", "pool closed"] == journal
    id_ = await connection.fetchval("SELECT group_id::text FROM chat_group")
    assert id_ == group["group_id"]


async def test_a_pool_that_is_closed_before_the_component_closes_in_time(
    database_url: str,
) -> None:
    """Its host need not wait for us, nor we for it; what is asked for in between comes again."""
    key = stretto.IdempotencyKey("k")
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        pool_of(database_url) as pool,
        open_component(pool=pool) as component,
    ):
        await component.creator.create(key, NEW_GROUP)
        await pool.close()
        assert acquired(pool) == 0
        with pytest.raises(stretto.DatabaseUnavailable):
            await component.creator.create(stretto.IdempotencyKey("late"), NEW_GROUP)
        # What is remembered needs no database.
        assert (await component.creator.create(key, NEW_GROUP)).status.is_replay


async def test_a_write_under_way_ends_well_though_the_pool_is_closing(
    database_url: str, connection: Connection
) -> None:
    """The pool waits for it, as for whatever else its host has under way."""
    in_hook, go_on = asyncio.Event(), asyncio.Event()

    async def wait(*_: object) -> None:
        in_hook.set()
        await go_on.wait()

    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        pool_of(database_url) as pool,
        open_component(pool=pool, on_create=wait) as component,
        asyncio.TaskGroup() as tasks,
    ):
        creating = tasks.create_task(
            component.creator.create(stretto.IdempotencyKey("k"), NEW_GROUP)
        )
        await in_hook.wait()
        closing = tasks.create_task(pool.close())
        # The idle writer has let go, so the watch has looked at both.
        await until(lambda: acquired(pool) == 1)
        go_on.set()
        assert stretto.group_id("alice", "k") == (await creating).group.group_id
        await closing
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 1


async def test_a_host_that_closes_its_pool_on_shutdown_shuts_down(database_url: str) -> None:
    """Registered before us, it still runs after us: our requests under way need the pool."""
    journal: list[str] = []
    app = host_with_pool(database_url, journal)

    async def close_pool(app: web.Application) -> None:
        journal.append(f"{acquired(app[POOL])} are acquired on shutdown")
        await app[POOL].close()
        journal.append("closed on shutdown")

    app.on_shutdown.append(close_pool)
    stretto.setup(app, "/chat", pool=lambda: app[POOL], tokens=TOKENS)
    async with api_of(app) as api:
        await created(api, "k", "/chat")
    closed = ["0 are acquired on shutdown", "closed on shutdown"]
    assert ["pool opened", *closed, "0 connections are acquired", "pool closed"] == journal


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("signal", ["on_shutdown", "on_cleanup"])
async def test_a_host_whose_handler_raises_leaves_nothing_of_ours_running(
    signal: str, is_first: bool, database_url: str
) -> None:
    """Wherever it is registered: aiohttp calls no handler behind one that raises."""

    async def fail(_: web.Application) -> None:
        message = "the host's own error"
        raise LookupError(message)

    before = asyncio.all_tasks()
    app = web.Application()
    if is_first:
        getattr(app, signal).append(fail)
    stretto.setup(app, "/chat", dsn=database_url, tokens=TOKENS)
    if not is_first:
        getattr(app, signal).append(fail)
    with pytest.raises(LookupError, match="the host's own error"):
        async with api_of(app) as api:
            await created(api, "k", "/chat")
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert [] == [name for name in left if name.startswith("stretto")]


def without_tables(app: web.Application, dsn: str) -> stretto.AppOptions:
    """Connections of the component's own, in a schema where nothing is."""
    settings = stretto.ComponentSettings(db_schema="elsewhere")
    return {"tokens": TOKENS, "dsn": dsn, "settings": settings}


def without_search_path(app: web.Application, dsn: str) -> stretto.AppOptions:
    """A host's pool that does not lead to the tables."""
    return {"tokens": TOKENS, "pool": lambda: app[POOL]}


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (without_tables, Unreachable, "no stretto tables; run `stretto migrate`"),
        (
            without_search_path,
            stretto.ConfigurationError,
            r"search_path \(public\) .* in the schema stretto: open the pool with",
        ),
    ],
)
async def test_a_database_without_tables_stops_the_start_with_a_clear_error(
    options: Callable[[web.Application, str], stretto.AppOptions],
    error: type[Exception],
    words: str,
    database_url: str,
) -> None:
    """It says what helps; what had been started is gone, the host's pool is closed."""
    before = asyncio.all_tasks()
    journal: list[str] = []
    app = host_with_pool(database_url, journal, search_path="public")
    stretto.setup(app, "/chat", **options(app, database_url))
    with pytest.raises(error, match=words):
        async with api_of(app):
            pass
    assert before == asyncio.all_tasks()
    assert ["pool opened", "pool closed"] == [line for line in journal if line.startswith("pool")]


async def test_a_host_that_fails_to_start_after_us_leaves_nothing_running(
    database_url: str,
) -> None:
    """The writers are gone, and the error is the host's own."""
    before = asyncio.all_tasks()
    journal: list[str] = []
    app = host_with_pool(database_url, journal)
    stretto.setup(app, "/chat", pool=lambda: app[POOL], tokens=TOKENS)

    async def fail(_: web.Application) -> None:
        message = "the host's own error"
        raise LookupError(message)

    app.on_startup.append(fail)
    with pytest.raises(LookupError, match="the host's own error"):
        async with api_of(app):
            pass
    assert before == asyncio.all_tasks()
    assert "pool closed" == journal[-1]


async def test_two_components_in_one_process_share_a_database_and_make_one_group(
    database_url: str, connection: Connection
) -> None:
    """Each has its own memory and writers: the database is what they agree through."""
    key = stretto.IdempotencyKey("k")
    async with open_component(database_url) as one, open_component(database_url) as other:
        answers = await asyncio.gather(
            *(component.creator.create(key, NEW_GROUP) for component in (one, other) * 10)
        )
    assert len({answer.group for answer in answers}) == 1
    assert sum(not answer.status.is_replay for answer in answers) == 1
    assert await connection.fetchval("SELECT count(*) FROM chat_group") == 1


async def test_two_mounted_components_keep_their_groups_and_metrics_apart(
    database_url: str, connection: Connection
) -> None:
    """Two schemas below two prefixes, one a word of SQL's: the same key makes a group in each."""
    await connection.execute('SET search_path = "order"')
    await migrate(connection, "order")
    app = web.Application()
    for prefix, schema in (("/one", "stretto"), ("/two", "order")):
        settings = stretto.ComponentSettings(db_schema=schema)
        stretto.setup(app, prefix, dsn=database_url, tokens=TOKENS, settings=settings)
    async with api_of(app) as api:
        groups = [await created(api, "k", prefix) for prefix in ("/one", "/one", "/two")]
        metrics = [(await api.get(f"{prefix}/metrics")).body for prefix in ("/one", "/two")]
    one, again, two = (group["conversation_id"] for group in groups)
    assert one == again
    assert one != two
    assert [True, False] == [b'outcome="replayed"' in shown for shown in metrics]
    for schema in ("stretto", "order"):
        assert await connection.fetchval(f'SELECT count(*) FROM "{schema}".chat_group') == 1


async def test_an_opening_is_entered_once_at_a_time(database_url: str) -> None:
    """Nobody would close the first component; after its end, or a failure, it may be opened again."""
    opening = open_component(database_url)
    for _ in range(2):
        async with opening as component:
            with pytest.raises(RuntimeError, match="is open already"):
                await opening.__aenter__()
            assert (await component.create("k", NEW_GROUP)).group is not None
