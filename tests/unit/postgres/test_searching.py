"""How a process that serves from an older primary finds the newer one again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

import pytest

from stretto.postgres.primaries import REFUSED_SECONDS, UNKNOWN, OpenConnections, Primary
from stretto.postgres.searching import LOOK_SECONDS, PrimarySearch
from stretto.store_errors import Unreachable
from stretto.telemetry.request_context import RequestContext
from support.clock import Clock
from support.opened_connection import Opened
from support.waiting import until

if TYPE_CHECKING:
    from stretto.postgres.driver_connection import DriverConnection
    from stretto.postgres.host_failures import Host

OLD, NEW, NEWEST = (Primary("7", f"0000000{number}") for number in "123")
OLD_HOST: Final = ("10.0.0.1", 5432)
NEW_HOST: Final = ("10.0.0.2", 5432)
AWAY: Final = ConnectionRefusedError()
READ_ONLY: Final = Unreachable("the database is read-only")


class World:
    """Two hosts, and a search whose pauses a test ends."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.leads_to: dict[Host, Primary | Exception] = {OLD_HOST: OLD, NEW_HOST: NEW}
        self.looked_at: list[Opened] = []
        """What the search has opened."""
        self._used: list[Opened] = []
        """Ordinary connections, which their users refer to."""
        self.opened = OpenConnections(self.clock)
        self.search = PrimarySearch(
            [OLD_HOST, NEW_HOST], self.opened, self.open_at, self.accepted, self.pause
        )
        self._turns = asyncio.Semaphore(0)
        self._pauses = 0

    @property
    def is_searching(self) -> bool:
        return self.search._task is not None

    async def pause(self, seconds: float) -> None:
        self._pauses += 1
        await self._turns.acquire()
        self.clock.now += seconds

    async def look(self) -> None:
        """Have the search look once more, and wait until it has."""
        await until(lambda: self._pauses or not self.is_searching)
        assert self._pauses
        self._pauses = 0
        self._turns.release()
        await until(lambda: self._pauses or not self.is_searching)

    async def open_at(self, host: Host) -> tuple[DriverConnection, Primary] | Exception:
        """Open a connection, to be closed by the search."""
        primary = self.leads_to[host]
        if isinstance(primary, Exception):
            return primary
        self.looked_at.append(opened := Opened())
        return cast("DriverConnection", opened), primary

    def accepted(
        self, host: Host, opened: tuple[DriverConnection, Primary]
    ) -> DriverConnection | Exception:
        """Accept a connection as a connector does."""
        connection, primary = opened
        try:
            self.opened.add(connection, primary, host)
        except Unreachable as error:
            connection.terminate()
            return error
        self.search.note_added()
        return connection

    def connect(self, primary: Primary) -> Opened:
        """Open an ordinary connection, which must be accepted."""
        self._used.append(opened := Opened())
        host = OLD_HOST if primary == OLD else NEW_HOST
        outcome = self.accepted(host, (cast("DriverConnection", opened), primary))
        assert outcome is cast("DriverConnection", opened)
        return opened

    def serve_from_older(self, away: Exception = AWAY) -> Opened:
        """Have the newer primary be seen and go away, so that the older one serves."""
        self.connect(NEW).terminate()
        self.leads_to[NEW_HOST] = away
        self.clock.now += REFUSED_SECONDS
        return self.connect(OLD)

    def living(self) -> list[Opened]:
        return [each for each in self.looked_at if not each.is_cut]


async def test_the_older_primary_is_left_once_the_newer_one_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Until then its connections work on, and what was looked at is closed."""
    caplog.set_level("INFO")
    world = World()
    old = [world.serve_from_older(), world.connect(OLD)]
    for _ in range(3):
        await world.look()
    assert not any(each.is_cut for each in old)
    assert ([], 3) == (world.living(), len(world.looked_at))
    assert ["primary.older_serves"] == [each.msg for each in caplog.records]
    world.leads_to[NEW_HOST] = NEW
    await world.look()
    assert all(each.is_cut for each in old)
    assert not world.is_searching
    assert ["primary.older_serves", "primary.newer_serves"] == [each.msg for each in caplog.records]
    await world.search.close()
    assert [] == world.living()


async def test_a_standby_of_a_newer_timeline_is_no_newer_primary() -> None:
    """It takes no writes, and has refused the connection by that: the search goes on."""
    world = World()
    old = world.serve_from_older(READ_ONLY)
    await world.look()
    assert world.is_searching
    assert not old.is_cut
    await world.search.close()


async def test_a_host_that_was_silent_is_looked_at_once() -> None:
    """It may be far away, and the newest primary; or there is none, and nothing more is looked for."""
    world = World()
    old = world.connect(OLD)
    world.leads_to[NEW_HOST] = AWAY
    world.search.begin()
    await world.look()
    assert not world.is_searching
    assert not old.is_cut
    world.leads_to[NEW_HOST] = NEW
    world.search.begin()
    await world.look()
    assert old.is_cut
    assert not world.is_searching
    await world.search.close()


async def test_one_address_is_looked_behind_again_and_again() -> None:
    """A balancer leads to the older one, then to the newer one again."""
    world = World()
    old = world.serve_from_older()
    world.leads_to = {OLD_HOST: OLD, NEW_HOST: OLD}
    await world.look()
    assert not old.is_cut
    world.leads_to[OLD_HOST] = NEW
    await world.look()
    assert old.is_cut
    await world.search.close()


@pytest.mark.parametrize("is_answering", [True, False])
async def test_what_was_found_keeps_the_older_one_out_while_it_answers(is_answering: bool) -> None:
    """Though each new connection leads to that. Or a balancer would have a process change for ever."""
    world = World()
    world.serve_from_older()
    world.leads_to[NEW_HOST] = NEW
    await world.look()
    (found,) = world.living()
    found.clock = world.clock if is_answering else None
    outcomes = []
    for _ in range(3 * int(REFUSED_SECONDS)):
        connection = cast("DriverConnection", Opened())
        outcomes.append(world.accepted(OLD_HOST, (connection, OLD)))
        world.clock.now += 1
    assert is_answering == all(isinstance(each, Unreachable) for each in outcomes)
    assert is_answering != found.is_cut
    world.search.release()
    assert found.is_cut
    await world.search.close()


async def test_the_search_ends_where_no_connection_to_an_older_primary_is_left() -> None:
    """It begins again with the next one, however often."""
    world = World()
    old = world.serve_from_older()
    for _ in range(2):
        await world.look()
        assert world.is_searching
        old.terminate()
        await world.look()
        assert not world.is_searching
        old = world.connect(OLD)
    await world.search.close()


async def test_the_search_goes_on_while_one_is_newer_than_what_it_has_found() -> None:
    """Of three primaries the newest is still away."""
    world = World()
    world.connect(NEWEST).terminate()
    world.clock.now += REFUSED_SECONDS
    old = world.serve_from_older()
    world.leads_to[NEW_HOST] = NEW
    await world.look()
    assert old.is_cut
    assert world.is_searching
    (found,) = world.living()
    world.leads_to[OLD_HOST] = NEWEST
    await world.look()
    assert found.is_cut
    assert not world.is_searching
    await world.search.close()


async def test_nothing_is_looked_for_where_the_newest_serves_or_none_is_known() -> None:
    """Such as behind a pooler, or where another system's server is in the URL as well."""
    world = World()
    for primary in (OLD, NEW, UNKNOWN, Primary("8", "00000001")):
        world.connect(primary)
    assert not world.is_searching


@pytest.mark.parametrize("has_looked", [False, True])
async def test_a_closed_search_leaves_no_task_and_begins_none(has_looked: bool) -> None:
    """Whether it has looked before or not; what has served goes on."""
    world = World()
    old = world.serve_from_older()
    if has_looked:
        await world.look()
    before = asyncio.all_tasks()
    await world.search.close()
    await world.search.close()
    assert 1 == len(before - asyncio.all_tasks())
    assert not old.is_cut
    world.connect(OLD)
    assert not world.is_searching


async def test_the_search_belongs_to_no_request(caplog: pytest.LogCaptureFixture) -> None:
    """It outlives the one whose connection has begun it."""
    caplog.set_level("INFO")
    world = World()
    with RequestContext("r1"):
        world.serve_from_older()
    world.leads_to[NEW_HOST] = NEW
    await world.look()
    ids = [vars(each).get("request_id") for each in caplog.records]
    assert ["r1", None] == ids
    await world.search.close()


async def test_each_look_follows_a_pause() -> None:
    """A host that refuses at once is not asked in a loop."""
    world = World()
    world.serve_from_older()
    before = world.clock.now
    await world.look()
    assert LOOK_SECONDS == world.clock.now - before
    await world.search.close()
