"""What a host's hook must not do with its connection: it is refused in words, and does no harm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
import pytest_asyncio

from stretto.postgres.hook_handle import HandleMisused, HookHandle
from stretto.store_errors import HookError
from support.both_stores import write
from support.database import groups
from support.hooked_stores import led_by, open_stores

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from stretto.postgres.driver_connection import Connection as InnerConnection
    from support.database import Connection
    from support.hooked_stores import Created, Stores

    Use = Callable[[InnerConnection], Awaitable[object]]


@pytest_asyncio.fixture(params=["own", "pool"])
async def stores(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Stores]:
    """Stores on connections of the component's own, and on those of a host's pool."""
    async with open_stores(database_url, is_hosts_pool=request.param == "pool") as stores:
        yield stores


async def _terminate(connection: InnerConnection) -> None:
    connection.terminate()


def _adding(method: str, *arguments: object) -> Use:
    """Return what adds a listener, by a method that need not be async."""

    async def add(connection: InnerConnection) -> None:
        added = getattr(connection, method)(*arguments, print)
        if added is not None:
            await added

    return add


def _crash(_: object) -> str:
    raise LookupError


def _codec_of(name: str) -> Use:
    """Return what sets a codec that cannot send, and cannot read."""
    return lambda connection: connection.set_type_codec(
        name, schema="pg_catalog", encoder=_crash, decoder=_crash, format="text"
    )


# Of the types that our statements send and read.
TYPES: Final = ("uuid", "text", "bytea", "json", "timestamptz", "int8", "_uuid")
MISUSES: Final[dict[str, Use]] = {
    "close": lambda connection: connection.close(),
    "terminate": _terminate,
    "reset": lambda connection: connection.reset(),
    "set_builtin_type_codec": lambda connection: connection.set_builtin_type_codec(
        "uuid", schema="pg_catalog", codec_name="text"
    ),
    "add_listener": _adding("add_listener", "channel"),
    "add_log_listener": _adding("add_log_listener"),
    "add_query_logger": _adding("add_query_logger"),
    "add_termination_listener": _adding("add_termination_listener"),
    "reset_type_codec": lambda connection: connection.reset_type_codec("uuid", schema="pg_catalog"),
} | {f"set_type_codec {name}": _codec_of(name) for name in TYPES}


class _Once:
    """A hook that misuses its connection in its first call, and notes each session."""

    def __init__(self, use: Use, *, is_swallowed: bool) -> None:
        self._use = use
        self._is_swallowed = is_swallowed
        self.pids: list[int] = []

    async def __call__(self, connection: InnerConnection, _: Created) -> None:
        self.pids.append(await connection.fetchval("SELECT pg_backend_pid()"))
        if len(self.pids) > 1:
            return
        try:
            await self._use(connection)
        except HandleMisused:
            if not self._is_swallowed:
                raise


@pytest.mark.parametrize("name", MISUSES)
async def test_a_hook_that_misuses_its_connection_fails_once(
    name: str, stores: Stores, connection: Connection
) -> None:
    """It is said what to do; the key stays open, and the writer goes on in the same session."""
    hook = _Once(MISUSES[name], is_swallowed=False)
    store = stores(hook)
    ours, method = write("k"), name.partition(" ")[0]
    await store.claim([ours])
    with pytest.raises(HookError, match=rf"HandleMisused: {method}\(\) is not for") as bad:
        await store.lead([ours])
    assert isinstance(bad.value.__cause__, HandleMisused)
    assert await groups(connection) == 0
    assert {ours.claim_token} == await store.lead([ours])
    assert len(await led_by(store, "another")) == 1
    assert (1, []) == (len(set(hook.pids)), stores.lost)


@pytest.mark.parametrize("name", MISUSES)
async def test_a_hook_that_swallows_the_refusal_has_done_nothing(
    name: str, stores: Stores, connection: Connection
) -> None:
    """Its group and all later ones are created: claims and leads send and read what they are made to."""
    hook = _Once(MISUSES[name], is_swallowed=True)
    store = stores(hook)
    for key in ("a", "b"):
        assert len(await led_by(store, key)) == 1
    assert await groups(connection) == 2
    assert (1, []) == (len(set(hook.pids)), stores.lost)


def test_everything_that_changes_codecs_stays_or_closes_is_refused() -> None:
    """A method that the driver adds under such a name must be looked at."""
    harmful = {
        name
        for name in dir(HookHandle)
        if not name.startswith("_")
        and any(part in name for part in ("codec", "close", "terminate", "reset", "add_"))
    }
    assert {name.partition(" ")[0] for name in MISUSES} | {
        "is_closed",
        "get_reset_query",
    } == harmful
