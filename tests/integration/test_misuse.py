"""What a host hands in wrongly is refused at the start, in words that say what to do."""

from __future__ import annotations

import asyncio
import math
import sys
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
import pytest
from aiohttp import web

import stretto
from stretto.assembly.host_options import require_hook
from stretto.assembly.host_pool import POOL_SPARE_MIN, READ, SENT
from stretto.errors import KeyInvalid
from stretto.postgres import hosts_pool
from stretto.postgres.migrate import PRIVILEGES
from stretto.postgres.queries import QUERIES
from stretto.targets.settings import RelaySettings
from support.api_client import SECRET

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stretto.postgres.driver_connection import Connection

TOKENS: Final = stretto.TokenSettings(jwt_secret=SECRET)
DSN: Final = "postgresql://nowhere/chat"
WRITERS: Final = 2
SETTINGS: Final = stretto.ComponentSettings(writers=WRITERS)
NEW_GROUP: Final = stretto.NewGroup(stretto.UserId("alice"), "Team", None, ())


async def _hook(*_: object) -> None:
    """Do nothing."""


class _Hook:
    """Is called like an async function."""

    async def __call__(self, *_: object) -> None:
        """Do nothing."""

    async def run(self, *_: object) -> None:
        """Do nothing."""


class _NotAsync:
    """A bus that forgets `async`."""

    def publish(self, _: object) -> dict[object, str]:
        """Refuse nothing."""
        return {}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("unknown option 'on_created': did you mean 'on_create'", {"on_created": _hook}),
        ("unknown option 'colour': there are tokens, dsn, pool", {"colour": "red"}),
        ("'tokens' is needed", {"tokens": None}),
        ("tokens must be .*TokenSettings, not <class 'str'>", {"tokens": SECRET}),
        ("neither was given", {"dsn": None}),
        ("both were given", {"pool": lambda: None}),
        ("pool must be a function", {"dsn": None, "pool": object()}),
        ("settings must be .*ComponentSettings, not <class 'dict'>", {"settings": {"writers": 2}}),
        (
            "StreamSettings.origins must be frozenset",
            {"streams": stretto.StreamSettings(origins="https://chat.example")},  # type: ignore[arg-type]
        ),
        ("streams must be .*StreamSettings", {"streams": TOKENS}),
        ("on_create must be an async function", {"on_create": lambda *_: None}),
        ("on_create must be an async function", {"on_create": "hook"}),
        ("authorize must be an async function", {"authorize": lambda _: None}),
        ("tracer_provider must be an opentelemetry.*, not <class 'str'>", {"tracer_provider": "x"}),
        ("console must be bool, not <class 'str'>", {"console": "off"}),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused(words: str, options: dict[str, Any]) -> None:
    """As soon as the application is made: nothing runs yet."""
    given: Any = {"tokens": TOKENS, "dsn": DSN} | options
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(TypeError, match=words):
        stretto.create_app(**given)
    with pytest.raises(TypeError, match=words):
        stretto.setup(web.Application(), "/chat", **given)


@pytest.mark.parametrize("hook", [None, _hook, partial(_hook, 1), _Hook(), _Hook().run])
def test_whatever_is_called_like_an_async_function_is_a_hook(hook: object) -> None:
    """A function, one with arguments bound, an object, a method; or no hook at all."""
    require_hook(hook)


@pytest.mark.parametrize(
    ("prefix", "right"),
    [("chat", "/chat"), ("/chat/", "/chat"), ("", "/chat"), ("/", "/chat"), ("a/b", "/a/b")],
)
def test_a_prefix_has_a_slash_before_and_none_behind(prefix: str, right: str) -> None:
    """The message has the right one."""
    with pytest.raises(stretto.ConfigurationError, match=f"'{right}'$"):
        stretto.setup(web.Application(), prefix, dsn=DSN, tokens=TOKENS)


@pytest.mark.parametrize(
    "prefix",
    [
        "/{t}",
        "/a/{t:.*}",
        "/a//b",
        "//a",
        "/a?b",
        "/a#b",
        "/ä",
        "/a%20b",
        "/a b",
        "/a\n",
        "/a/../b",
        "/.",
    ],
)
def test_a_prefix_is_a_path_that_is_sent_as_it_is_written(prefix: str) -> None:
    """No pattern, no query, nothing that has to be encoded; the message has an example."""
    with pytest.raises(stretto.ConfigurationError, match=r"must be a path such as '/chat'"):
        stretto.setup(web.Application(), prefix, dsn=DSN, tokens=TOKENS)


@pytest.mark.parametrize("prefix", ["/chat", "/api/v2/chat", "/a-b_c.d~e", "/@a:b", "/..a", "/A+1"])
def test_any_other_path_is_a_prefix(prefix: str) -> None:
    """It is mounted there as it is."""
    app = web.Application()
    stretto.setup(app, prefix, dsn=DSN, tokens=TOKENS)
    assert [prefix] == [resource.canonical for resource in app.router.resources()]


def test_a_prefix_is_given_once() -> None:
    """The first application there would get every request, and the second never one."""
    app = web.Application()
    app.add_subapp("/api", web.Application())
    stretto.setup(app, "/chat", dsn=DSN, tokens=TOKENS)
    for prefix in ("/chat", "/api"):
        with pytest.raises(stretto.ConfigurationError, match=f"'{prefix}' is taken"):
            stretto.setup(app, prefix, dsn=DSN, tokens=TOKENS)
    stretto.setup(app, "/chat/v2", dsn=DSN, tokens=TOKENS)


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (TypeError, "neither was given", {}),
        (TypeError, "both were given", {"dsn": DSN, "pool": object()}),
        (TypeError, "dsn must be str, not <class 'int'>", {"dsn": 5}),
        (TypeError, "pool must be asyncpg.pool.Pool, not", {"pool": object()}),
        (TypeError, "settings must be", {"dsn": DSN, "settings": {}}),
        (TypeError, "on_create must be", {"dsn": DSN, "on_create": print}),
        (TypeError, "authorize must be", {"dsn": DSN, "authorize": print}),
        (TypeError, "observe must be a function .* not 'print'", {"dsn": DSN, "observe": "print"}),
        (TypeError, "observe must be .* no async one", {"dsn": DSN, "observe": _hook}),
        (TypeError, "tracer_provider must be", {"dsn": DSN, "tracer_provider": object()}),
        (TypeError, "bus must be .* `async def publish", {"dsn": DSN, "bus": object()}),
        (TypeError, "bus must be", {"dsn": DSN, "bus": _NotAsync()}),
        *(
            (
                stretto.ConfigurationError,
                f"ComponentSettings.db_schema is '{schema}': it must be text that matches",
                {"dsn": DSN, "settings": stretto.ComponentSettings(db_schema=schema)},
            )
            for schema in ("Stretto", "", "a b", "1a", "a" * 64)
        ),
        (
            stretto.ConfigurationError,
            "webhook_url needs a webhook_secret",
            {
                "dsn": DSN,
                "settings": stretto.ComponentSettings(
                    webhook=stretto.WebhookSettings(webhook_url="https://backend.example/hook")
                ),
            },
        ),
        (
            stretto.ConfigurationError,
            "RelaySettings.batch_max is 0: it must be 1 or more",
            {"dsn": DSN, "settings": stretto.ComponentSettings(relay=RelaySettings(batch_max=0))},
        ),
    ],
)
async def test_a_component_that_cannot_work_does_not_start(
    error: type[Exception], words: str, arguments: dict[str, Any]
) -> None:
    """Nothing has been connected by then: there is no database behind the address."""
    with pytest.raises(error, match=words):
        async with stretto.open_component(**arguments):
            pass


@pytest.mark.parametrize("missing", [0, 1])
async def test_a_pool_has_room_for_writers_and_for_everything_else(
    missing: int, database_url: str
) -> None:
    """One connection less, and every read would wait for one that the writers keep."""
    size = WRITERS + POOL_SPARE_MIN - missing
    async with asyncpg.create_pool(
        database_url,
        min_size=0,
        max_size=size,
        server_settings={"search_path": "stretto"},
    ) as pool:
        if missing:
            words = f"has {size} connections and needs {size + missing} .* max_size"
            with pytest.raises(stretto.ConfigurationError, match=words):
                async with stretto.open_component(pool=pool, settings=SETTINGS):
                    pass
        else:
            async with stretto.open_component(pool=pool, settings=SETTINGS) as component:
                owner = stretto.UserId("alice")
                new_group = stretto.NewGroup.parse(owner, {"name": "Team"})
                answer = await component.creator.create(stretto.IdempotencyKey("k"), new_group)
                assert (
                    await component.reads.groups.group_of_member(answer.group.group_id, owner)
                    is not None
                )


@pytest.mark.parametrize("missing", [0, 1])
async def test_a_pool_has_room_for_every_component_that_shares_it(
    missing: int, database_url: str
) -> None:
    """The second writer would wait for a connection for ever, and its component never say so."""
    size = 2 * (WRITERS + POOL_SPARE_MIN) - missing

    async def create(component: stretto.Component, key: str) -> stretto.Answer:
        return await component.creator.create(stretto.IdempotencyKey(key), NEW_GROUP)

    async with asyncpg.create_pool(
        database_url, min_size=0, max_size=size, server_settings={"search_path": "stretto"}
    ) as pool:
        async with stretto.open_component(pool=pool, settings=SETTINGS) as one:
            if missing:
                words = (
                    rf"{size} connections, .* need 5 and this one 5 more .* to {size + 1} at least"
                )
                with pytest.raises(stretto.ConfigurationError, match=words):
                    async with stretto.open_component(pool=pool, settings=SETTINGS):
                        pass
            else:
                async with stretto.open_component(pool=pool, settings=SETTINGS) as other:
                    assert (await create(other, "a")).group == (await create(one, "a")).group
            # Of the one that was refused, or has ended, nothing is kept.
            small = stretto.ComponentSettings(writers=1)
            async with stretto.open_component(pool=pool, settings=small) as third:
                assert (await create(third, "b")).group == (await create(one, "b")).group
        assert pool.get_size() == pool.get_idle_size()


async def _closed(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    await pool
    await pool.close()


async def _never_opened(_: object) -> None:
    """Leave it as it is."""


@pytest.mark.parametrize(
    ("words", "prepare"), [("closed", _closed), ("not initialized", _never_opened)]
)
async def test_a_pool_that_is_not_open_is_refused(
    words: str, prepare: Callable[[object], Any], database_url: str
) -> None:
    """It says which of both it is."""
    pool = asyncpg.create_pool(database_url, min_size=0)
    await prepare(pool)
    with pytest.raises(stretto.ConfigurationError, match=words):
        async with stretto.open_component(pool=pool):
            pass


async def test_a_pool_of_another_loop_is_refused(database_url: str) -> None:
    """Such as one that was opened before the host's server: its connections answer in that loop."""

    async def opened() -> asyncpg.Pool[asyncpg.Record]:
        return await asyncpg.create_pool(database_url, min_size=0)

    pool = await asyncio.to_thread(lambda: asyncio.run(opened()))
    with pytest.raises(stretto.ConfigurationError, match="belongs to another event loop: open it"):
        async with stretto.open_component(pool=pool):
            pass


async def _set_codec(connection: Connection) -> None:
    await connection.set_type_codec(
        "uuid", schema="pg_catalog", encoder=str, decoder=str, format="text"
    )


async def _leave(_: Connection) -> None:
    """Change nothing."""


@pytest.mark.parametrize(
    ("words", "search_path", "init"),
    [
        (r"search_path \(public\).*in the schema stretto", "public", _leave),
        # A table of the host's, called like one of ours, comes first.
        (r"search_path \(public, stretto\)", "public, stretto", _leave),
        ("gives connections with codecs of its own", "stretto", _set_codec),
    ],
)
async def test_a_pool_that_does_not_find_our_tables_is_refused(
    words: str,
    search_path: str,
    init: Callable[[Connection], Any],
    database_url: str,
    connection: Connection,
) -> None:
    """Today's first request is not the one to find out."""
    await connection.execute("CREATE TABLE public.attempt (x int)")
    async with asyncpg.create_pool(
        database_url,
        min_size=0,
        init=init,
        server_settings={"search_path": search_path},
    ) as pool:
        with pytest.raises(stretto.ConfigurationError, match=words):
            async with stretto.open_component(pool=pool):
                pass
        assert pool.get_size() == pool.get_idle_size()


@pytest.mark.parametrize("table", sorted(PRIVILEGES))
async def test_a_pool_whose_path_meets_a_hosts_table_first_is_refused(
    table: str, database_url: str, connection: Connection
) -> None:
    """Each of our tables counts: what is written into another burns every key."""
    await connection.execute(f"CREATE TABLE public.{table} (x int)")
    async with asyncpg.create_pool(
        database_url, min_size=0, server_settings={"search_path": "public,stretto"}
    ) as pool:
        with pytest.raises(stretto.ConfigurationError, match=r"search_path \(public,stretto\)"):
            async with stretto.open_component(pool=pool):
                pass


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("client_encoding is LATIN1 and must be UTF8", {"client_encoding": "LATIN1"}),
        (
            "default_transaction_isolation is serializable and must be read committed",
            {"default_transaction_isolation": "serializable"},
        ),
        ("synchronous_commit is off", {"synchronous_commit": "off"}),
        ("client_min_messages is error", {"client_min_messages": "error"}),
    ],
)
async def test_a_pool_whose_sessions_do_not_suit_is_refused(
    words: str, settings: dict[str, str], database_url: str
) -> None:
    """The first name that its encoding lacks would otherwise find out."""
    async with asyncpg.create_pool(
        database_url, min_size=0, server_settings={"search_path": "stretto", **settings}
    ) as pool:
        with pytest.raises(stretto.ConfigurationError, match=words):
            async with stretto.open_component(pool=pool):
                pass


async def _keep(_: object) -> None:
    """Do nothing to a connection that comes back."""


async def _begin(connection: Any) -> None:
    """Leave a transaction open."""
    await connection.execute("BEGIN")


@pytest.mark.parametrize(
    ("words", "callbacks"),
    [
        ("keeps what a handler has set in it", {"reset": _keep}),
        ("setup leaves a transaction open", {"setup": _begin}),
    ],
)
async def test_a_pool_whose_sessions_are_not_given_as_they_were_is_refused(
    words: str, callbacks: dict[str, Any], database_url: str
) -> None:
    """A handler's search_path would lead groups elsewhere; and no commit of ours would be one."""
    path = {"search_path": "stretto"}
    async with asyncpg.create_pool(
        database_url, min_size=0, server_settings=path, **callbacks
    ) as pool:
        with pytest.raises(stretto.ConfigurationError, match=words):
            async with stretto.open_component(pool=pool):
                pass


@pytest.mark.parametrize(("expected", "limit"), [(False, "200ms"), (True, "30s")])
async def test_a_pool_whose_sessions_end_statements_too_soon_is_refused(
    expected: bool, limit: str, database_url: str, connection: Connection
) -> None:
    """With advice, and as an error that hosts know; the twin waits until the server answers."""
    async with asyncpg.create_pool(
        database_url,
        min_size=0,
        server_settings={"search_path": "stretto", "statement_timeout": limit},
    ) as pool:
        if expected:
            async with stretto.open_component(pool=pool):
                pass
            return
        async with connection.transaction():
            await connection.execute("LOCK TABLE stretto.schema_version IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(stretto.ConfigurationError, match="RESET statement_timeout"):
                async with stretto.open_component(pool=pool):
                    pass


class _RowsAsDicts(asyncpg.Connection):
    async def fetch(self, *args: Any, **options: Any) -> Any:
        return [dict(row) for row in await super().fetch(*args, **options)]


class _RowAsDict(asyncpg.Connection):
    async def fetchrow(self, *args: Any, **options: Any) -> Any:
        row = await super().fetchrow(*args, **options)
        return None if row is None else dict(row)


class _Rows(asyncpg.Connection):
    """The twin: a class of the host's that returns what the driver returns."""


@pytest.mark.parametrize(
    ("expected", "connection_class"),
    [(False, _RowsAsDicts), (False, _RowAsDict), (True, _Rows)],
)
async def test_a_pool_that_returns_other_rows_than_the_driver_is_refused(
    expected: bool, connection_class: Any, database_url: str
) -> None:
    """The first statement whose columns are read by their places would find out."""
    async with asyncpg.create_pool(
        database_url,
        min_size=0,
        connection_class=connection_class,
        server_settings={"search_path": "stretto"},
    ) as pool:
        refusal = pytest.raises(stretto.ConfigurationError, match="returns rows that are no")
        with nullcontext() if expected else refusal:
            async with stretto.open_component(pool=pool):
                pass


TYPES: Final = sorted({name.removesuffix("[]") for name in {**SENT, **READ}})


def _encode(_: object) -> str:
    return "8"


def _decode(text: str) -> object:
    return {"read": text}


def _crash(text: object) -> str:
    raise LookupError(text)


@pytest.mark.parametrize(
    ("name", "encoder", "decoder"),
    [
        *((name, str, decoder) for name in TYPES for decoder in (_decode, _crash)),
        *((name, _encode, str) for name in TYPES if name in SENT),
    ],
)
async def test_a_pool_with_codecs_for_our_types_is_refused(
    name: str,
    encoder: Callable[[Any], str],
    decoder: Callable[[str], Any],
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Answers, retries and events would be made of what the host's codec makes of it.

    Also where the driver does not know of it, as of what a `connection_class` does.
    """
    monkeypatch.setattr(hosts_pool, "is_recoded", lambda _: False)

    async def set_codec(connection: Connection) -> None:
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=encoder, decoder=decoder, format="text"
        )

    async with asyncpg.create_pool(
        database_url, min_size=0, init=set_codec, server_settings={"search_path": "stretto"}
    ) as pool:
        with pytest.raises(stretto.ConfigurationError, match="a pool of its own"):
            async with stretto.open_component(pool=pool):
                pass


async def test_every_type_that_our_statements_use_is_tried(connection: Connection) -> None:
    """A statement with another one gets its value into `ping_codecs`."""
    taken, returned = set(), set()
    for statement in QUERIES.values():
        prepared = await connection.prepare(statement)
        taken |= {type_.name for type_ in prepared.get_parameters()}
        returned |= {attribute.type.name for attribute in prepared.get_attributes()}
    assert set(SENT) >= taken
    assert {*SENT, *READ} >= returned - {"void"}


async def test_a_pool_that_is_not_there_yet_is_reported_in_words() -> None:
    """The host opens it after us, or keeps it under another name."""
    pools: dict[str, Any] = {}
    app = stretto.create_app(tokens=TOKENS, pool=lambda: pools["main"])
    words = r"the function given as pool raised KeyError\('main'\): .* before stretto.setup"
    runner = web.AppRunner(app)
    with pytest.raises(stretto.ConfigurationError, match=words):
        await runner.setup()
    await runner.cleanup()


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (
            "app must be aiohttp.*Application, not <class 'str'>",
            lambda: stretto.setup("app", "/chat", dsn=DSN, tokens=TOKENS),  # type: ignore[arg-type]
        ),
        (
            "prefix must be str, not <class 'int'>",
            lambda: stretto.setup(web.Application(), 5, dsn=DSN, tokens=TOKENS),  # type: ignore[arg-type]
        ),
        ("dsn must be str", lambda: stretto.create_app(dsn=5, tokens=TOKENS)),  # type: ignore[arg-type]
        ("owner must be str", lambda: stretto.group_id(5, "k")),  # type: ignore[arg-type]
        ("key must be str", lambda: stretto.group_id("alice", 5)),  # type: ignore[arg-type]
        ("conversation must be uuid.UUID, not", lambda: stretto.event_id(str(UUID(int=7)))),  # type: ignore[arg-type]
        ("name must be str", lambda: stretto.Inbox(5)),  # type: ignore[arg-type]
        ("schema must be str", lambda: stretto.Inbox("counter", schema=5)),  # type: ignore[arg-type]
    ],
)
def test_an_argument_of_another_kind_is_named(words: str, call: Callable[[], object]) -> None:
    """And not what it has led to further inside."""
    with pytest.raises(TypeError, match=f"^{words}"):
        call()


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (
            "new_group must be stretto.domain.NewGroup, not <class 'dict'>",
            lambda creator: creator.create("k", {"name": "Team"}),
        ),
        (
            "wait_seconds must be int or float, not <class 'str'>",
            lambda creator: creator.create("k", NEW_GROUP, wait_seconds="5"),
        ),
        (
            "body must be bytes, not <class 'str'>",
            lambda creator: creator.create_from("alice", "k", '{"name": "Team"}'),
        ),
        (
            "claims must be collections.abc.Mapping, not <class 'int'>",
            lambda creator: creator.create_from("alice", "k", b'{"name": "Team"}', claims=5),
        ),
    ],
)
async def test_a_creations_argument_of_another_kind_is_named(
    words: str, call: Callable[[Any], Awaitable[object]], database_url: str
) -> None:
    """Before anything is claimed: the key is as good as new."""
    async with stretto.open_component(database_url) as component:
        with pytest.raises(TypeError, match=f"^{words}"):
            await call(component.creator)
        answer = await component.creator.create(stretto.IdempotencyKey("k"), NEW_GROUP)
    assert "created" == answer.status


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, 10**400])
async def test_a_wait_without_an_end_is_refused(seconds: float, database_url: str) -> None:
    """No clock can be compared with it; the longest finite one is taken."""
    async with stretto.open_component(database_url) as component:
        for call in (
            partial(component.create, "k", NEW_GROUP),
            partial(component.create_from, "alice", "k", b'{"name": "Team"}'),
            partial(component.attempt, "alice", "k"),
        ):
            with pytest.raises(ValueError, match=r"^wait_seconds must be a finite number"):
                await call(wait_seconds=seconds)
        answer = await component.create("k", NEW_GROUP, wait_seconds=sys.float_info.max)
        assert "created" == answer.status
        await component.attempt("alice", "k", wait_seconds=sys.float_info.max)


@pytest.mark.parametrize("key", [5, None, "", "a b", "a" * 256])
async def test_a_key_that_could_not_come_over_http_is_refused(key: Any, database_url: str) -> None:
    """Its group could never be found by a client."""
    async with stretto.open_component(database_url) as component:
        with pytest.raises(KeyInvalid):
            await component.creator.create(key, NEW_GROUP)
        answer = await component.creator.create("k", NEW_GROUP)  # type: ignore[arg-type]
        again = await component.creator.create(stretto.IdempotencyKey("k"), NEW_GROUP)
    assert answer.group == again.group


async def test_an_announcement_from_another_thread_is_refused(database_url: str) -> None:
    """Its own loop may call it; a thread has no loop, or another one."""
    async with stretto.open_component(database_url) as component:

        async def announce() -> None:
            component.announce()

        for call in (component.announce, lambda: asyncio.run(announce())):
            with pytest.raises(stretto.WrongEventLoop, match="call_soon_threadsafe"):
                await asyncio.to_thread(call)
        component.announce()
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(loop.call_soon_threadsafe, component.announce)
