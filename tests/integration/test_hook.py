"""A host's hook `on_create` on a real PostgreSQL: its transaction, and what its mistakes come to."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from stretto.errors import GroupRejected
from stretto.postgres import hook as hook_module
from stretto.store_errors import (
    HookCutOff,
    HookError,
    HookInterrupted,
    Refused,
    Transient,
)
from support.both_stores import write
from support.database import end_session, groups
from support.hooked_stores import DEADLINE_SECONDS, Stores, led_by, running
from support.waiting import until

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import Connection as InnerConnection
    from stretto.postgres.hook import OnCreate
    from support.database import Connection
    from support.hooked_stores import Created


async def _nothing(*_: object) -> None:
    pass


async def _crash(*_: object) -> None:
    raise RuntimeError


async def _many(*_: object) -> None:
    message = "two"
    raise ExceptionGroup(message, [RuntimeError(), GroupRejected("quota", "Enough.")])


async def _base(*_: object) -> None:
    message = "two"
    raise BaseExceptionGroup(message, [asyncio.CancelledError()])


async def _driver_error(*_: object) -> None:
    raise asyncpg.SerializationError


async def _exit(*_: object) -> None:
    raise SystemExit(7)


async def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


async def _end_the_generator(*_: object) -> None:
    raise GeneratorExit


async def _cancelled(*_: object) -> None:
    raise asyncio.CancelledError


async def _time_out(*_: object) -> None:
    raise TimeoutError


async def _network(*_: object) -> None:
    raise ConnectionRefusedError


async def _lose_and_crash(connection: InnerConnection, _: Created) -> None:
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
        await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    raise RuntimeError


async def _swallow(connection: InnerConnection, _: Created) -> None:
    with pytest.raises(asyncpg.DivisionByZeroError):
        await connection.execute("SELECT 1 / 0")


async def _hang(*_: object) -> None:
    await asyncio.Event().wait()


async def _hang_in_a_statement(connection: InnerConnection, _: Created) -> None:
    await connection.execute("SELECT pg_sleep(60)")


async def _hold_on(*_: object) -> None:
    """Refuse to be cancelled, once."""
    for _cancellation in ("ours", "the loop's"):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def _leave_a_statement_running(connection: InnerConnection, _: Created) -> None:
    task = asyncio.ensure_future(connection.execute("SELECT pg_sleep(0.3)"))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.sleep(0)


class _SilentVeto(GroupRejected):
    def __init__(self) -> None:
        """Forget the veto's own."""


async def _reject_silently(*_: object) -> None:
    raise _SilentVeto


def _not_async(*_: object) -> None:
    """Forget `async`."""


FAILING: Final[dict[str, object]] = {
    "a bug": _crash,
    "an exception group": _many,
    "a base exception": _base,
    "an error without a text": _driver_error,
    "SystemExit": _exit,
    "KeyboardInterrupt": _interrupt,
    "GeneratorExit": _end_the_generator,
    "its own cancellation": _cancelled,
    "its own time-out": _time_out,
    "a network of its own": _network,
    "a bug after a loss": _lose_and_crash,
    "a swallowed error": _swallow,
    "too long": _hang,
    "too long a statement": _hang_in_a_statement,
    "no end": _hold_on,
    "a statement still running": _leave_a_statement_running,
    "no coroutine": _not_async,
    "a veto without a reason": _reject_silently,
    "division by zero": running("SELECT 1 / 0"),
    "bad data": running("SELECT 'alice'::int"),
    "own foreign key": running("INSERT INTO public.channel VALUES (gen_random_uuid(), 'nobody')"),
    "own unique key": running(
        "INSERT INTO public.tenant VALUES ('a')", "INSERT INTO public.tenant VALUES ('a')"
    ),
    "own trigger": running("DO $$BEGIN RAISE EXCEPTION 'no'; END$$"),
    "missing table": running("SELECT * FROM nowhere"),
    "an error that looks like a loss": running(
        "DO $$BEGIN RAISE EXCEPTION 'remote' USING ERRCODE = '08006'; END$$"
    ),
    "an internal error": running(
        "DO $$BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = 'XX000'; END$$"
    ),
    "a deferred foreign key": running(
        "SET CONSTRAINTS ALL DEFERRED",
        "INSERT INTO public.channel VALUES (gen_random_uuid(), 'nobody')",
    ),
    "ROLLBACK": running("ROLLBACK"),
    "ROLLBACK and BEGIN": running("ROLLBACK", "BEGIN"),
    "ROLLBACK, BEGIN and rows": running(
        "ROLLBACK", "BEGIN", "INSERT INTO public.tenant VALUES ('orphan')"
    ),
}


@pytest.mark.parametrize("hook", FAILING.values(), ids=FAILING.keys())
async def test_a_hook_that_fails_creates_nothing_and_burns_nothing(
    hook: OnCreate,
    stores: Stores,
    tables: None,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither group nor rows of the host's; the key is still open, and the writer goes on."""
    monkeypatch.setattr(hook_module, "HOOK_SECONDS", 0.5)
    monkeypatch.setattr(hook_module, "HOOK_CANCEL_SECONDS", 0.1)
    hooks = [hook]

    async def call(inner: InnerConnection, created: Created) -> None:
        await hooks[0](inner, created)

    store = stores(call)
    ours = write("k")
    await store.claim([ours])
    with pytest.raises(HookError):
        await store.lead([ours])
    for table in ("chat_group", "conversation", "conversation_member", "outbox", "tenant"):
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0
    assert "pending" == await connection.fetchval("SELECT status FROM attempt")
    hooks[0] = _nothing
    assert {ours.claim_token} == await store.lead([ours])


async def test_a_hook_that_swallows_an_error_is_told_what_to_do(stores: Stores) -> None:
    """The server's own words, of an aborted transaction, would lead nobody to it."""
    ours = write("k")
    store = stores(_swallow)
    await store.claim([ours])
    with pytest.raises(HookError, match="swallowed a database error"):
        await store.lead([ours])


async def _take_the_cancellation(*_: object) -> None:
    """End well, but only because it was cancelled."""
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


async def test_a_hook_that_ends_well_but_too_late_has_failed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has left out is not known."""
    monkeypatch.setattr(hook_module, "HOOK_SECONDS", 0.1)
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(HookError, match=r"longer than 0\.1 s"):
            await led_by(stores(_take_the_cancellation))


async def test_a_hook_that_goes_on_loses_its_connection(
    stores: Stores, tables: None, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot write into the transactions that come after its own."""
    monkeypatch.setattr(hook_module, "HOOK_SECONDS", 0.1)
    monkeypatch.setattr(hook_module, "HOOK_CANCEL_SECONDS", 0.1)
    go_on, ended = asyncio.Event(), asyncio.get_running_loop().create_future()
    pids = list[int]()

    async def hook(inner: InnerConnection, _: Created) -> None:
        pids.append(await inner.fetchval("SELECT pg_backend_pid()"))
        if len(pids) > 1:
            return
        await _take_the_cancellation()
        await go_on.wait()
        try:
            await inner.execute("INSERT INTO public.tenant VALUES ('late')")
        except asyncpg.InterfaceError as error:
            ended.set_result(error)
        else:
            ended.set_result(None)

    store = stores(hook)
    with pytest.raises(HookError):
        await led_by(store)
    assert await led_by(store, "another")
    assert 2 == len(set(pids))
    go_on.set()
    assert "released" in str(await ended)
    assert await connection.fetchval("SELECT count(*) FROM tenant") == 0


async def test_what_a_hook_that_was_left_alone_raises_in_the_end_is_in_no_log(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By asyncio it would be, with its text: that may hold a user's row."""
    monkeypatch.setattr(hook_module, "HOOK_SECONDS", 0.1)
    monkeypatch.setattr(hook_module, "HOOK_CANCEL_SECONDS", 0.1)
    go_on, hooks, logged = asyncio.Event(), set[weakref.ref[object]](), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    async def hook(*_: object) -> None:
        hooks.add(weakref.ref(asyncio.current_task()))
        await _take_the_cancellation()
        await go_on.wait()
        message = "a user's row"
        raise LookupError(message)

    with pytest.raises(HookError):
        await led_by(stores(hook))
    go_on.set()

    def is_gone() -> bool:
        gc.collect()
        return not any(each() for each in hooks)

    # A task logs what nobody has read when it is no more.
    await until(is_gone)
    assert 1 == len(hooks)
    assert [] == logged


async def test_a_veto_is_final_and_takes_the_hooks_rows_with_it(
    stores: Stores, tables: None, connection: Connection
) -> None:
    """Raised in a savepoint as well: it is what the hook says about the group."""

    async def hook(inner: InnerConnection, _: Created) -> None:
        await inner.execute("INSERT INTO public.tenant VALUES ('a')")
        async with inner.transaction():
            raise GroupRejected("quota", "Ten groups are enough.")

    store = stores(hook)
    with pytest.raises(Refused) as refused:
        await led_by(store)
    assert "quota" == refused.value.failure.code
    assert (0, 0) == (
        await groups(connection),
        await connection.fetchval("SELECT count(*) FROM tenant"),
    )
    assert [] == stores.lost


async def test_a_veto_is_final_whatever_its_text_is(stores: Stores, connection: Connection) -> None:
    """PostgreSQL takes neither NUL nor lone surrogates."""

    async def hook(*_: object) -> None:
        raise GroupRejected("a\0b", "x\ud800y")

    store, ours = stores(hook), write("k")
    await store.claim([ours])
    with pytest.raises(Refused) as refused:
        await store.lead([ours])
    assert await store.fail(ours, refused.value.failure)
    settled = await connection.fetchrow("SELECT failure_code, failure_detail FROM attempt")
    assert settled is not None
    assert ("a?b", "x?y") == tuple(settled)


@pytest.mark.parametrize(("is_caught", "tenants"), [(True, ["a"]), (False, [])])
async def test_a_transaction_of_the_hooks_is_a_savepoint(
    is_caught: bool, tenants: list[str], stores: Stores, tables: None, connection: Connection
) -> None:
    """What fails in it is taken back alone, where the hook catches it outside."""

    async def hook(inner: InnerConnection, _: Created) -> None:
        await inner.execute("INSERT INTO public.tenant VALUES ('a')")
        try:
            async with inner.transaction():
                await inner.execute("INSERT INTO public.tenant VALUES ('b')")
                await inner.execute("INSERT INTO public.tenant VALUES ('a')")
        except asyncpg.UniqueViolationError:
            if not is_caught:
                raise

    store = stores(hook)
    if is_caught:
        assert len(await led_by(store)) == 1
    else:
        with pytest.raises(HookError, match=r"UniqueViolationError \(23505\): duplicate key"):
            await led_by(store)
    assert tenants == [row[0] for row in await connection.fetch("SELECT name FROM tenant")]
    assert is_caught == await groups(connection)


async def test_what_our_own_statement_meets_stays_the_requests_own_error(
    stores: Stores, connection: Connection
) -> None:
    """The host's trigger on our table refuses the group for good; its hook is not even called."""
    await connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'no'; END$$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON chat_group FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    called: list[object] = []

    async def hook(*created: object) -> None:
        called.append(created)

    with pytest.raises(Refused):
        await led_by(stores(hook))
    assert [] == called


async def test_a_hook_that_meets_a_lock_may_be_tried_again(
    stores: Stores, tables: None, connection: Connection
) -> None:
    """It passes, unlike a bug: the writer tries again by itself."""
    async with connection.transaction():
        await connection.execute("LOCK TABLE tenant")
        with pytest.raises(HookInterrupted, match=r"\(55P03\)") as interrupted:
            await led_by(stores(running("INSERT INTO public.tenant VALUES ('a')")))
    assert isinstance(interrupted.value, Transient)


async def test_a_session_that_is_lost_under_a_hook_is_known_as_that(
    stores: Stores, connection: Connection
) -> None:
    """The hook may have ended it, or the whole server: whose failure it is shows only in others."""

    async def hook(inner: InnerConnection, _: Created) -> None:
        await end_session(connection, inner)
        await inner.execute("SELECT 1")

    with pytest.raises(HookCutOff):
        await led_by(stores(hook))
    assert ["lost"] == stores.lost


async def test_a_veto_counts_where_the_session_was_lost(
    stores: Stores, connection: Connection
) -> None:
    """Nothing of the lead was committed, and the hook has said what it thinks of the group."""

    async def hook(inner: InnerConnection, _: Created) -> None:
        await end_session(connection, inner)
        raise GroupRejected("quota", "Ten groups are enough.")

    with pytest.raises(Refused):
        await led_by(stores(hook))


@pytest.mark.parametrize(
    "then", [[], ["BEGIN"], ["BEGIN", "INSERT INTO public.tenant VALUES ('a')"]]
)
async def test_a_hook_that_commits_has_created_the_group(
    then: list[str], stores: Stores, tables: None, connection: Connection
) -> None:
    """The server knows how the transaction has ended; what the hook has begun since is taken back."""
    store = stores(running("COMMIT", *then))
    assert len(await led_by(store)) == 1
    assert (1, 0) == (
        await groups(connection),
        await connection.fetchval("SELECT count(*) FROM tenant"),
    )


async def test_a_veto_after_a_commit_comes_too_late(stores: Stores, connection: Connection) -> None:
    """The fence sees that the attempt has succeeded: it is not failed."""

    async def hook(inner: InnerConnection, _: Created) -> None:
        await inner.execute("COMMIT")
        raise GroupRejected("quota", "Ten groups are enough.")

    store, ours = stores(hook), write("k")
    await store.claim([ours])
    with pytest.raises(Refused) as refused:
        await store.lead([ours])
    assert not await store.fail(ours, refused.value.failure)
    assert "succeeded" == await connection.fetchval("SELECT status FROM attempt")
