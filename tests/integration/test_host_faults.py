"""What a host hands in and what then fails by itself: observer, log, bus and pool."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

import stretto
from stretto.assembly.opening import open_component
from stretto.observations import ActorCrashed, AuthorizationFailed, Observation, WriteFailed
from stretto.postgres.connections import Database
from support.database import first_row
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from stretto.assembly.component import Component
    from support.database import Connection

DEADLINE_SECONDS: Final = 60
READ_ONLY: Final = "default_transaction_read_only"
NEW_GROUP: Final = stretto.NewGroup(stretto.UserId("alice"), "Team", None, ())


async def created(component: Component, key: str) -> stretto.Answer:
    """Create a group, or find it."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await component.creator.create(stretto.IdempotencyKey(key), NEW_GROUP)


class _Fault(BaseException):
    """No `Exception`, and none that ends a process."""


@pytest.mark.parametrize(
    "error",
    [LookupError, asyncio.CancelledError, GeneratorExit, _Fault, SystemExit, KeyboardInterrupt],
)
async def test_an_observer_that_raises_ends_neither_an_answer_nor_an_actor(
    error: type[BaseException], database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each event is observed, each group answered, and the log says what the observer has met."""
    seen: list[Observation] = []

    def observe(event: Observation) -> None:
        seen.append(event)
        raise error

    async with open_component(database_url, observe=observe) as component:
        first = await created(component, "a")
        assert first.group == (await created(component, "a")).group
        assert first.group != (await created(component, "b")).group
        assert [] == component.runner.down
    assert not [event for event in seen if isinstance(event, ActorCrashed)]
    failed = [record for record in caplog.records if record.msg == "observer.failed"]
    assert "AttemptAnswered" in {vars(record)["kind"] for record in failed}


class _NeedsARequest(logging.Filter):
    """Reads what only a host's middleware sets, as one with a context variable does."""

    def filter(self, record: logging.LogRecord) -> bool:
        raise LookupError


@pytest.fixture
def broken_log() -> Iterator[None]:
    """A filter of the host's that raises for everything that we log."""
    log, broken = logging.getLogger("stretto"), _NeedsARequest()
    log.addFilter(broken)
    yield
    log.removeFilter(broken)


async def test_a_log_that_raises_ends_neither_an_answer_nor_an_actor(
    database_url: str, broken_log: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even where it would say what an observer has met; stderr has one line about it."""
    failures: list[Observation] = []

    async def fail(*_: object) -> None:
        raise RuntimeError

    def observe(event: Observation) -> None:
        if isinstance(event, WriteFailed):
            failures.append(event)
        raise ZeroDivisionError

    async with open_component(database_url, on_create=fail, observe=observe) as component:
        for key in ("a", "b"):
            with pytest.raises(stretto.HookFailed):
                await created(component, key)
        assert [] == component.runner.down
    assert len(failures) == 2
    assert 1 == capsys.readouterr().err.count("logging has raised LookupError")


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, GeneratorExit, ValueError, SystemExit, KeyboardInterrupt]
)
async def test_a_bus_that_raises_what_it_likes_does_not_end_the_relay(
    error: type[BaseException], database_url: str
) -> None:
    """It is reported as a crash, and the next turn sends the next events."""
    published: list[stretto.CommittedEvent] = []
    # After the first one it is tried once more, as an owner's alone.
    errors, arrived, crashed = [error(), error()], asyncio.Event(), asyncio.Event()

    class Bus:
        async def publish(self, events: Sequence[stretto.CommittedEvent]) -> Mapping[UUID, str]:
            if errors:
                raise errors.pop()
            published.extend(events)
            arrived.set()
            return {}

    def observe(event: Observation) -> None:
        if isinstance(event, ActorCrashed):
            assert "relay" == event.actor
            crashed.set()

    async with open_component(database_url, bus=Bus(), observe=observe) as component:
        await created(component, "a")
        async with asyncio.timeout(DEADLINE_SECONDS):
            await crashed.wait()
            await created(component, "b")
            await arrived.wait()
    assert published


async def test_a_bus_that_returns_nothing_learns_what_to_return(database_url: str) -> None:
    """It may have forgotten that events were refused: none of them counts as published."""
    crashes: asyncio.Queue[ActorCrashed] = asyncio.Queue()

    class Bus:
        async def publish(self, events: Sequence[stretto.CommittedEvent]) -> None:
            """Forget to return anything."""

    def observe(event: Observation) -> None:
        if isinstance(event, ActorCrashed):
            crashes.put_nowait(event)

    bus: Any = Bus()
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        open_component(database_url, bus=bus, observe=observe) as component,
    ):
        await created(component, "a")
        crash = await crashes.get()
    assert "relay" == crash.actor
    assert "from `publish`, and {} where none was refused, not <class 'NoneType'>" in str(
        crash.error
    )


class _Callback:
    """A callback of a host's pool, which fails while a test says so."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.error: BaseException | None = None

    async def __call__(self, *connection: asyncpg.Connection, **_: object) -> None:
        if self.error is not None:
            raise self.error
        if self._name == "reset":
            await connection[0].reset()


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
@pytest.mark.parametrize("name", ["setup", "init", "reset"])
async def test_a_pool_whose_callback_fails_is_a_database_that_is_away(
    name: str, error: type[BaseException], database_url: str, connection: Connection
) -> None:
    """No actor crashes; once the callback works again, so does everything else."""
    events: list[Observation] = []
    callback = _Callback(name)
    options: dict[str, Any] = {name: callback}
    async with (
        asyncpg.create_pool(
            database_url,
            min_size=0,
            max_size=5,
            server_settings={"search_path": "stretto", "application_name": "broken pool"},
            **options,
        ) as pool,
        open_component(pool=pool, observe=events.append) as component,
    ):
        groups, alice = component.reads.groups, NEW_GROUP.owner
        await created(component, "a")
        callback.error = error()
        if name == "reset":
            # What was read is known by then, and the pool makes another connection.
            assert 1 == len(await groups.groups_of_member(alice, None, 9))
        else:
            await connection.fetch(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name = 'broken pool'"
            )
            with pytest.raises(stretto.DatabaseUnavailable):
                await created(component, "b")
            with pytest.raises(stretto.Unreachable, match=f"setup .* raised {error.__name__}"):
                await groups.groups_of_member(alice, None, 9)
            with pytest.raises(stretto.Unreachable):
                await component.reads.ping()
        callback.error = None
        await created(component, "b")
        await created(component, "c")
        await component.reads.ping()
        assert 3 == len(await groups.groups_of_member(alice, None, 9))
        assert {1, 2} == set(component.runner.up.values())
    assert not [event for event in events if isinstance(event, ActorCrashed)]


@pytest.mark.parametrize("is_awaited_in_a_task", [False, True])
async def test_an_authorize_that_awaits_a_creation_of_its_component_fails_at_once(
    is_awaited_in_a_task: bool, database_url: str
) -> None:
    """It would be asked for that one as well, and so on; the next key is none the worse."""
    asked: list[str] = []
    events: list[Observation] = []

    async def authorize(new_group: stretto.NewGroup) -> None:
        asked.append(new_group.name)
        if new_group.name == "Team":
            creation = created(component, f"k{len(asked)}")
            await (asyncio.wait_for(creation, 60) if is_awaited_in_a_task else creation)

    async with open_component(
        database_url, authorize=authorize, observe=events.append
    ) as component:
        with pytest.raises(stretto.AuthorizeFailed):
            await created(component, "k")
        await component.create_from("alice", "k", b'{"name": "Other"}')
    assert ["Team", "Other"] == asked
    (failed,) = (event for event in events if isinstance(event, AuthorizationFailed))
    assert "authorize must not await a creation by its own component" in failed.cause


async def test_components_whose_authorize_asks_each_other_fail_at_once(database_url: str) -> None:
    """The first one's is asked once; the other's error is a failure of the host's."""
    asked: list[str] = []
    events: list[Observation] = []

    async def ask_second(_: stretto.NewGroup) -> None:
        asked.append("first")
        await created(second, f"k{len(asked)}")

    async def ask_first(_: stretto.NewGroup) -> None:
        asked.append("second")
        await created(first, f"k{len(asked)}")

    async with (
        open_component(database_url, authorize=ask_second, observe=events.append) as first,
        open_component(database_url, authorize=ask_first, observe=events.append) as second,
    ):
        with pytest.raises(stretto.AuthorizeFailed):
            await created(first, "k")
    assert ["first", "second"] == asked
    of_second, of_first = (each for each in events if isinstance(each, AuthorizationFailed))
    assert "authorize must not await a creation by its own component" in of_second.cause
    assert "AuthorizeFailed" in of_first.cause


async def test_a_release_that_is_cancelled_leaves_nothing_that_asyncio_prints(
    database_url: str,
) -> None:
    """As at a start that is cancelled: the driver's own release meets a connection that was cut."""
    printed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: printed.append(context))
    in_reset = asyncio.Event()

    async def reset(connection: Connection) -> None:
        in_reset.set()
        await connection.execute("SELECT pg_sleep(60)")

    pool = asyncpg.create_pool(database_url, min_size=0, max_size=1, reset=reset)
    async with asyncio.timeout(DEADLINE_SECONDS), pool, Database(pool=pool) as database:
        releasing = asyncio.create_task(database.release(await database.acquire()))
        await in_reset.wait()
        releasing.cancel()
        await asyncio.wait({releasing})
        assert releasing.cancelled()
        this = asyncio.current_task()
        await until(lambda: {this} == asyncio.all_tasks())
        # Its error's frames refer to what is looked for.
        del releasing
        gc.collect()
    assert [] == printed


async def test_a_role_that_reads_texts_otherwise_has_its_pool_taken(database_url: str) -> None:
    """The probe's own values do not depend on how the session reads a text."""
    settings = {
        "search_path": "stretto",
        "array_nulls": "off",
        "standard_conforming_strings": "off",
        "quote_all_identifiers": "on",
    }
    async with (
        asyncpg.create_pool(database_url, min_size=0, server_settings=settings) as pool,
        open_component(pool=pool),
    ):
        pass


@pytest.mark.parametrize("is_in_url", [False, True])
async def test_a_pool_that_only_reads_is_refused(is_in_url: bool, database_url: str) -> None:
    """Nothing but the pool's own settings could end that."""
    settings = {"search_path": "stretto"}
    if is_in_url:
        database_url = f"{database_url}{'&' if '?' in database_url else '?'}{READ_ONLY}=on"
    else:
        settings |= {READ_ONLY: "on"}
    async with asyncpg.create_pool(database_url, min_size=0, server_settings=settings) as pool:
        with pytest.raises(stretto.ConfigurationError, match="so stretto could never write: leave"):
            async with open_component(pool=pool):
                pass


async def test_a_pool_whose_database_only_reads_for_now_is_waited_for(
    database_url: str, connection: Connection
) -> None:
    """An operator ends that, as a promotion ends a standby."""
    (name,) = await first_row(connection, "SELECT quote_ident(current_database())")
    await connection.execute(f"ALTER DATABASE {name} SET {READ_ONLY} = on")
    settings = {"search_path": "stretto"}
    async with (
        asyncpg.create_pool(database_url, min_size=0, server_settings=settings) as pool,
        open_component(pool=pool) as component,
    ):
        with pytest.raises(stretto.DatabaseUnavailable):
            await created(component, "k")
        await connection.execute(f"ALTER DATABASE {name} RESET {READ_ONLY}")
        await pool.expire_connections()

        async def is_created() -> bool:
            try:
                await created(component, "k")
            except stretto.DatabaseUnavailable:
                return False
            return True

        await until(is_created)
