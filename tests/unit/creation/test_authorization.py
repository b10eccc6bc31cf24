"""The host is asked before the claim: what it may answer, and that it holds nothing up."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

import pytest

from stretto.creation import authorization as authorization_module
from stretto.creation import laggards as laggards_module
from stretto.creation.attempt import Attempt, AttemptStatus, GroupRow, Sighting
from stretto.creation.authorization import AUTHORIZATIONS_MAX, Authorization
from stretto.creation.hook_calls import HookCalls
from stretto.creation.laggards import RETRY_AFTER_SECONDS_MAX
from stretto.creation.paces import SLOW_SECONDS
from stretto.domain import CreatedGroup, NewGroup, UserId
from stretto.errors import (
    AuthorizeFailed,
    CreationRefused,
    DatabaseUnavailable,
    GroupRejected,
    Overloaded,
    Retry,
)
from stretto.observations import AuthorizationFailed, Observation
from stretto.store_errors import Unreachable
from support.clock import Clock
from support.leaving_veto import LeavingVeto
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Host = Callable[[NewGroup], Awaitable[Any]]

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
ID: Final = UUID(int=7)
TEAM: Final = NewGroup.parse(UserId("alice"), {"name": "Team", "members": ["bob"]})
OF_BOB: Final = NewGroup.parse(UserId("bob"), {"name": "Team"})
NOTHING: Final = Sighting(None, None)
ATTEMPT: Final = Attempt(
    AttemptStatus.PENDING, b"f" * 16, ID, None, None, NOW, None, lease_over=True
)
GROUP: Final = GroupRow(CreatedGroup(ID, ID), b"f" * 16, NOW)
VETO: Final = GroupRejected("quota", "No more groups.")


class Attempts:
    """What a look finds."""

    def __init__(self) -> None:
        self.found: Sighting | Exception = NOTHING
        self.looks = 0

    async def look(self, group_id: UUID, _: float, owner: UserId, /) -> Sighting:
        assert group_id == ID
        self.looks += 1
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class World:
    """An authorization by a host's function, and what it reports."""

    def __init__(self) -> None:
        self.attempts = Attempts()
        self.events: list[Observation] = []

    def by(self, host: Host) -> Authorization:
        """Return an authorization that asks this host."""
        observe = self.events.append
        return Authorization(host, self.attempts, 5.0, observe, lambda error: error, HookCalls())  # type: ignore[arg-type]

    async def ask(self, host: Host) -> None:
        """Ask this host for TEAM."""
        await self.by(host).require(ID.bytes, TEAM)

    @property
    def causes(self) -> list[str]:
        """Why the host said neither yes nor no."""
        return [each.cause for each in self.events if isinstance(each, AuthorizationFailed)]


@pytest.fixture
def world() -> World:
    """A database without the key."""
    return World()


async def _allow(_: NewGroup) -> None:
    pass


async def _reject(_: NewGroup) -> None:
    raise VETO


async def _reject_in_a_group(_: NewGroup) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_reject(TEAM))


async def _crash(_: NewGroup) -> None:
    raise LookupError


class _Closed(type):
    def __getattribute__(cls, name: str) -> NoReturn:
        raise RuntimeError


class _OfNoClass(Exception, metaclass=_Closed):
    """Its class says nothing."""


async def _crash_without_a_name(_: NewGroup) -> None:
    raise _OfNoClass


async def _reject_and_leave(_: NewGroup) -> None:
    code, detail = "quota", "No more groups."
    raise LeavingVeto(code, detail)


async def _crash_beside_a_veto(_: NewGroup) -> None:
    message = "two"
    raise ExceptionGroup(message, [VETO, LookupError()])


async def _say_no(_: NewGroup) -> bool:
    return False


async def _exit(_: NewGroup) -> None:
    raise SystemExit(7)


async def _cancel(_: NewGroup) -> None:
    raise asyncio.CancelledError


async def _hang(_: NewGroup) -> None:
    await asyncio.Event().wait()


async def test_what_the_host_allows_goes_on(world: World) -> None:
    """Without a look at the database."""
    seen: list[NewGroup] = []

    async def note(new_group: NewGroup) -> None:
        seen.append(new_group)

    await world.ask(note)
    assert ([TEAM], 0, []) == (seen, world.attempts.looks, world.events)


@pytest.mark.parametrize("host", [_reject, _reject_in_a_group])
async def test_what_the_host_rejects_is_refused_with_its_reason(host: Host, world: World) -> None:
    """As its hook rejects, also from a `TaskGroup`; that is no failure of its code."""
    for _ in range(2):
        with pytest.raises(CreationRefused) as refusal:
            await world.ask(host)
        assert (VETO.failure, Retry.NEVER) == (refusal.value.failure, refusal.value.retry)
    assert [] == world.causes
    # The constant keeps no frame of ours.
    assert VETO.__traceback__ is None


FAILING: dict[str, tuple[str, Host]] = {
    "bug": ("authorize raised LookupError", _crash),
    "a bug without a name": ("authorize raised _OfNoClass", _crash_without_a_name),
    "a veto that ends who reads it": ("authorize raised LeavingVeto", _reject_and_leave),
    "a veto beside a bug": ("authorize raised ExceptionGroup", _crash_beside_a_veto),
    "a value": ("authorize raised TypeError", _say_no),
    "exit": ("authorize raised RuntimeError", _exit),
    "cancelled": ("authorize was cancelled by something that it waited for", _cancel),
    "too long": ("authorize took longer than 0.05 s", _hang),
}


@pytest.mark.parametrize(("cause", "host"), FAILING.values(), ids=FAILING)
async def test_anything_else_is_neither_yes_nor_no(
    cause: str, host: Host, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client comes again with its key; a `False` is not taken for a yes."""
    if host is _hang:
        monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 0.05)
    async with asyncio.timeout(20):
        with pytest.raises(AuthorizeFailed) as failure:
            await world.ask(host)
    assert (Retry.SAME_KEY, 1) == (failure.value.retry, failure.value.retry_after_seconds)
    assert [cause] == world.causes
    # Not the host's words: these are for the log.
    assert AuthorizeFailed.message == failure.value.detail
    raised = [each.bug for each in world.events if isinstance(each, AuthorizationFailed)]
    assert ["raised" in cause] == [each is not None for each in raised]


@pytest.mark.parametrize("host", [_reject, _crash])
@pytest.mark.parametrize("found", [Sighting(ATTEMPT, None), Sighting(None, GROUP)])
async def test_a_key_that_was_claimed_is_not_refused(
    found: Sighting, host: Host, world: World
) -> None:
    """It was allowed then: its retries find what became of it."""
    world.attempts.found = found
    await world.ask(host)
    assert 1 == world.attempts.looks


async def test_without_a_database_it_is_not_known_whether_the_key_was_claimed(world: World) -> None:
    """So it is not refused for good."""
    world.attempts.found = Unreachable("away")
    with pytest.raises(DatabaseUnavailable):
        await world.ask(_reject)


async def test_a_request_that_leaves_ends_its_call(world: World) -> None:
    """The host's code is cancelled with it."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: NewGroup) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    request = asyncio.create_task(world.ask(wait))
    await begun.wait()
    request.cancel()
    async with asyncio.timeout(20):
        await ended.wait()
    with suppress(asyncio.CancelledError):
        await request
    assert [] == world.events


class Crowd:
    """A host whose code hangs, and the requests that wait for it."""

    def __init__(self, authorization: Authorization) -> None:
        self._authorization = authorization
        self._waiting: list[asyncio.Task[None]] = []

    async def ask(self, owner: str) -> None:
        """Ask for a group of this owner, to the end."""
        team = NewGroup.parse(UserId(owner), {"name": "Team"})
        await self._authorization.require(ID.bytes, team)

    async def come(self, owner: str) -> None:
        """Ask for a group of this owner, as far as the host's code or a rejection."""
        task = asyncio.create_task(self.ask(owner))
        self._waiting.append(task)
        for _ in range(3):
            await asyncio.sleep(0)
        if task.done():
            await task

    async def leave(self) -> None:
        """Have all clients leave."""
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)


async def test_so_many_are_asked_at_once_and_owners_leave_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are rejected at once; a call is left to an owner who is known to be quick."""
    monkeypatch.setattr(authorization_module, "AUTHORIZATIONS_MAX", 5)
    crowd = Crowd(world.by(_hang))
    for owner in ("alice", "alice", "bob"):
        await crowd.come(owner)
    for owner in ("alice", "bob"):
        # As many as are left for others.
        with pytest.raises(Overloaded):
            await crowd.come(owner)
    await crowd.come("carol")
    with pytest.raises(Overloaded) as rejection:
        await crowd.come("dave")
    assert 1 == rejection.value.retry_after_seconds
    await crowd.leave()
    for owner in ("dave", "dave"):
        await crowd.come(owner)
    await crowd.leave()


async def test_owners_for_whom_the_host_is_slow_leave_room_to_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many they are: half to newcomers, and of that a half to owners who are quick."""
    monkeypatch.setattr(authorization_module, "AUTHORIZATIONS_MAX", 8)
    clock, waiting = Clock(0.0), asyncio.Event()
    waiting.set()

    async def answer(new_group: NewGroup) -> None:
        clock.now += SLOW_SECONDS if new_group.owner.startswith("slow") else 0.0
        await waiting.wait()

    crowd = Crowd(world.by(answer))
    crowd._authorization._laggards.clock_seconds = clock
    slow = [f"slow{number}" for number in range(5)]
    for owner in (*slow, "quick1", "quick2"):
        await crowd.ask(owner)
    waiting.clear()
    for come, rejected in ((slow[:4], slow[4]), (["new1", "new2"], "new3")):
        for owner in come:
            await crowd.come(owner)
        with pytest.raises(Overloaded):
            await crowd.come(rejected)
    await crowd.come("quick1")
    await crowd.come("quick2")
    await crowd.leave()


async def test_of_one_owner_few_are_asked_at_once_and_the_others_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others' calls do not wait behind hundreds of one owner's in the host's own database."""
    monkeypatch.setattr(authorization_module, "CALLS_OF_OWNER", 2)
    asked: list[str] = []
    may_end = asyncio.Semaphore(0)

    async def wait(new_group: NewGroup) -> None:
        asked.append(new_group.owner)
        await may_end.acquire()

    crowd = Crowd(world.by(wait))
    for owner in ("alice", "alice", "alice", "alice", "bob"):
        await crowd.come(owner)
    assert ["alice", "alice", "bob"] == asked
    may_end.release()
    await until(lambda: asked[3:] == ["alice"])
    await crowd.leave()
    await crowd.come("alice")
    assert 5 == len(asked)
    await crowd.leave()


async def test_turns_of_owners_without_requests_are_not_kept(world: World) -> None:
    """There is no end of owners."""
    authorization = world.by(_allow)
    await authorization.require(ID.bytes, TEAM)
    assert not authorization._turns


async def test_a_request_whose_owner_has_too_many_is_rejected_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives its place back, and so does one that leaves."""
    monkeypatch.setattr(authorization_module, "CALLS_OF_OWNER", 1)
    authorization = world.by(_hang)
    crowd = Crowd(authorization)
    await crowd.come("alice")
    await crowd.come("alice")
    monkeypatch.setattr(authorization_module, "AUTHORIZE_SECONDS", 0.01)
    with pytest.raises(Overloaded):
        await crowd.ask("alice")
    assert AUTHORIZATIONS_MAX - 2 == authorization._calls._free
    await crowd.leave()
    await until(lambda: AUTHORIZATIONS_MAX == authorization._calls._free)


async def test_a_call_counts_until_it_has_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the host's code goes on after its time, and fails then."""
    monkeypatch.setattr(authorization_module, "AUTHORIZATIONS_MAX", 2)
    monkeypatch.setattr(authorization_module, "STUCK_SECONDS", 60.0)
    monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 0.02)
    goes_on = asyncio.Event()

    async def refuse_to_end(_: NewGroup) -> None:
        while not goes_on.is_set():
            with suppress(asyncio.CancelledError):
                await goes_on.wait()
        raise LookupError

    crowd = Crowd(world.by(refuse_to_end))
    # Whatever fails here, the calls must end: they cannot be cancelled.
    async with asyncio.timeout(20), AsyncExitStack() as stack:
        stack.callback(goes_on.set)
        for owner in ("alice", "bob"):
            with pytest.raises(AuthorizeFailed):
                await crowd.ask(owner)
        with pytest.raises(Overloaded):
            await crowd.ask("carol")
        goes_on.set()
        monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 20)
        calls = crowd._authorization._calls
        await until(lambda: not calls._of_owner)
        with pytest.raises(AuthorizeFailed):
            await crowd.ask("carol")
    assert "authorize raised LookupError" == world.causes[-1]


class Stuck:
    """A host whose code swallows its cancellation for some owners, and ends when it is told to."""

    def __init__(self, *owners: str) -> None:
        self._owners = owners
        self._goes_on = asyncio.Event()
        self.calls = 0

    async def __call__(self, new_group: NewGroup) -> None:
        """Allow the others at once."""
        self.calls += 1
        while new_group.owner in self._owners and not self._goes_on.is_set():
            with suppress(asyncio.CancelledError):
                await self._goes_on.wait()

    def end(self) -> None:
        """Have all calls end: they cannot be cancelled."""
        self._goes_on.set()


@pytest.fixture
def stuck_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a call be late, and then stuck, at once."""
    monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 0.02)
    monkeypatch.setattr(authorization_module, "STUCK_SECONDS", 0.02)


@asynccontextmanager
async def stuck_for(world: World, *owners: str) -> AsyncIterator[tuple[Stuck, Crowd]]:
    """Have a call of each of these owners go on after its cancellation, until the block ends."""
    host = Stuck(*owners)
    crowd = Crowd(world.by(host))
    async with asyncio.timeout(20), AsyncExitStack() as stack:
        stack.callback(host.end)
        for owner in owners:
            with pytest.raises(AuthorizeFailed):
                await crowd.ask(owner)
        yield host, crowd


def _stuck(crowd: Crowd) -> int:
    return crowd._authorization._stuck._of_owner.total()


@pytest.mark.usefixtures("stuck_soon")
async def test_a_call_that_swallows_its_cancellation_keeps_no_place(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or some owners for whom the host's code never ends would keep all others out for good."""
    monkeypatch.setattr(authorization_module, "AUTHORIZATIONS_MAX", 2)
    async with stuck_for(world, "alice", "bob") as (host, crowd):
        await until(lambda: _stuck(crowd) == 2)
        monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 20)
        await crowd.ask("carol")
        assert {"authorize.stuck"} == {record.msg for record in caplog.records}
        host.end()
        await until(lambda: not _stuck(crowd))
    assert 2 == crowd._authorization._calls._free


@pytest.mark.usefixtures("stuck_soon")
async def test_an_owner_has_only_so_many_calls_that_do_not_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the host is not called for it until one has ended; a key that was claimed is found."""
    monkeypatch.setattr(authorization_module, "STUCK_OF_OWNER_MAX", 1)
    async with stuck_for(world, "alice") as (host, crowd):
        await until(lambda: _stuck(crowd))
        with pytest.raises(AuthorizeFailed) as failure:
            await crowd.ask("alice")
        assert RETRY_AFTER_SECONDS_MAX == failure.value.retry_after_seconds
        world.attempts.found = Sighting(ATTEMPT, None)
        await crowd.ask("alice")
        assert 1 == host.calls
        monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 20)
        await crowd.ask("bob")
        host.end()
        await until(lambda: not _stuck(crowd))
        await crowd.ask("alice")
    assert 3 == host.calls


@pytest.mark.usefixtures("stuck_soon")
async def test_a_host_that_has_recovered_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old calls may never end; an owner whom it answers is not refused for them."""
    monkeypatch.setattr(authorization_module, "STUCK_OF_OWNER_MAX", 1)
    clock = Clock(0.0)
    async with stuck_for(world, "alice") as (host, crowd):
        # Before the call is stuck, which sets the time until which its owner is refused.
        crowd._authorization._stuck._clock_seconds = clock
        await until(lambda: _stuck(crowd))
        monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 20)
        host._owners = ()
        with pytest.raises(AuthorizeFailed):
            await crowd.ask("alice")
        clock.now += RETRY_AFTER_SECONDS_MAX
        for _ in range(2):
            await crowd.ask("alice")
        clock.now -= RETRY_AFTER_SECONDS_MAX
        await crowd.ask("alice")
        assert 1 == _stuck(crowd)
    assert 4 == host.calls


@pytest.mark.usefixtures("stuck_soon")
async def test_beyond_so_many_calls_that_do_not_end_each_keeps_its_place(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their memory is bounded, whatever the host's code does."""
    monkeypatch.setattr(authorization_module, "STUCK_MAX", 1)
    async with stuck_for(world, "alice", "bob") as (host, crowd):
        await until(lambda: len(caplog.records) == 1)
        await _so_long()
        calls = crowd._authorization._calls
        assert (1, {"bob": 1}) == (_stuck(crowd), calls._of_owner)
        # Once there is room, it is one of them.
        crowd._authorization._stuck._free += 1
        await until(lambda: not calls._of_owner)
        crowd._authorization._stuck._free -= 1
        host.end()
        await until(lambda: not _stuck(crowd))
    assert 1 == crowd._authorization._stuck._free


@pytest.mark.usefixtures("stuck_soon")
async def test_a_call_that_ends_with_its_cancellation_is_not_stuck(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The twin: its place is counted back once."""
    crowd = Crowd(world.by(_hang))
    with pytest.raises(AuthorizeFailed):
        await crowd.ask("alice")
    await _so_long()
    authorization = crowd._authorization
    assert (AUTHORIZATIONS_MAX, 0) == (authorization._calls._free, _stuck(crowd))
    assert [] == caplog.records


async def _so_long() -> None:
    """Wait for a timer of the same length that was set later: the earlier ones have run."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(authorization_module.STUCK_SECONDS, over.set)
    await over.wait()


async def test_many_owners_for_whom_the_host_hangs_keep_none_out_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once their calls were late, they have a few calls of their own, and the others the rest."""
    monkeypatch.setattr(authorization_module, "AUTHORIZATIONS_MAX", 3)
    monkeypatch.setattr(authorization_module, "LATE_CALLS_MAX", 2)
    hung = [f"hung{number}" for number in range(3)]

    async def hang_for_some(new_group: NewGroup) -> None:
        if new_group.owner in hung:
            await asyncio.Event().wait()

    crowd = Crowd(world.by(hang_for_some))
    monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 0.02)
    for owner in hung:
        with pytest.raises(AuthorizeFailed):
            await crowd.ask(owner)
    monkeypatch.setattr(laggards_module, "AUTHORIZE_SECONDS", 2.0)
    await crowd.come(hung[0])
    await crowd.come(hung[1])
    with pytest.raises(Overloaded) as rejection:
        await crowd.come(hung[2])
    assert 1 == rejection.value.retry_after_seconds
    await crowd.ask("alice")
    # One whom the host answers by now is as all others.
    was_hung = hung.pop()
    await crowd.leave()
    await crowd.ask(was_hung)
    assert was_hung not in crowd._authorization._laggards
    await crowd.leave()


async def test_a_client_that_does_not_wait_for_the_end_is_known_as_well(world: World) -> None:
    """Or those that leave after a second would never be: not one that leaves at once."""
    now = [100.0]
    goes_on = asyncio.Event()

    async def wait(_: NewGroup) -> None:
        await goes_on.wait()

    authorization = world.by(wait)
    authorization._laggards.clock_seconds = lambda: now[0]
    crowd = Crowd(authorization)
    answered = asyncio.create_task(crowd.ask("bob"))
    await asyncio.sleep(0)
    now[0] += 0.1
    goes_on.set()
    await answered
    goes_on.clear()
    for owner, seconds in (("quick", 0.3), ("alice", 0.4)):
        await crowd.come(owner)
        now[0] += seconds
        await crowd.leave()
    laggards = authorization._laggards
    assert (False, True) == ("quick" in laggards, "alice" in laggards)
