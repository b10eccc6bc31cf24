"""GroupCreator and its follower, with writers and a store that do what a test says."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest

from stretto.creation.attempt import AnswerStatus, Attempt, AttemptStatus, GroupRow, Sighting
from stretto.creation.creator import GroupCreator
from stretto.creation.flight import Answer, Flight
from stretto.creation.follower import POLL
from stretto.creation.lookup import AttemptLookup
from stretto.creation.ports import Led, NotLed
from stretto.creation.settings import CreatorSettings
from stretto.domain import CreatedGroup, IdempotencyKey, NewGroup, UserId
from stretto.errors import (
    AttemptPending,
    DatabaseUnavailable,
    InternalError,
    Overloaded,
    StrettoError,
)
from stretto.observations import AttemptAnswered, AttemptStrayed, GuaranteeBroken, ReclaimTried
from stretto.store_errors import Unreachable
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from stretto.creation.ports import Write, WriteResult
    from stretto.observations import Observation

KEY = IdempotencyKey("k")
TEAM = NewGroup.parse(UserId("alice"), {"name": "Team"})
OTHER = NewGroup.parse(UserId("alice"), {"name": "Other"})
TOKEN, CONVERSATION = uuid4(), uuid4()
# Far beyond what any of these tests may take.
LONG_SECONDS = 1000.0

# Where a test goes round itself, it has a time-out of its own: another one would end in the flight.
TEST_SECONDS = 30
pytestmark = pytest.mark.timeout(2 * TEST_SECONDS)


def attempt(status: AttemptStatus, token: UUID = TOKEN, *, lease_over: bool = False) -> Attempt:
    """An attempt of TEAM."""
    conversation = CONVERSATION if status is AttemptStatus.SUCCEEDED else None
    now = datetime.now(UTC)
    return Attempt(status, TEAM.fingerprint(), token, conversation, None, now, None, lease_over)


def group(id_: UUID) -> GroupRow:
    """A group of TEAM."""
    created = CreatedGroup(id_, CONVERSATION)
    return GroupRow(created, TEAM.fingerprint(), datetime.now(UTC))


class Writers:
    """Takes writes, which the test answers."""

    def __init__(self) -> None:
        self.asked: deque[tuple[Write, asyncio.Future[WriteResult]]] = deque()
        self._arrived = asyncio.Event()

    def ask(self, write: Write) -> asyncio.Future[WriteResult]:
        future: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        self.asked.append((write, future))
        self._arrived.set()
        return future

    async def take(self) -> tuple[Write, asyncio.Future[WriteResult]]:
        """Wait for the next write."""
        while not self.asked:
            self._arrived.clear()
            await self._arrived.wait()
        return self.asked.popleft()

    async def answer(self, result: WriteResult) -> Write:
        """Answer the next write."""
        write, future = await self.take()
        future.set_result(result)
        return write


class Store:
    """Shows what `sees` returns, or raises it."""

    def __init__(self) -> None:
        self.sees: Callable[[UUID], Sighting] = lambda _: Sighting(
            attempt(AttemptStatus.PENDING), None
        )
        self.looked = asyncio.Event()
        self.holds: asyncio.Event | None = None
        self.healed: list[UUID] = []
        self.reclaimed: list[tuple[UUID, UUID]] = []

    async def look(self, group_id: UUID, lease_seconds: float, owner: UserId, /) -> Sighting:
        self.looked.set()
        if self.holds is not None:
            await self.holds.wait()
        return self.sees(group_id)

    async def heal(self, group_id: UUID) -> None:
        self.healed.append(group_id)

    async def reclaim(
        self, group_id: UUID, seen: UUID, claim_token: UUID, lease_seconds: float
    ) -> bool:
        self.reclaimed.append((seen, claim_token))
        return True


class World:
    """A creator and what it stands on."""

    def __init__(self) -> None:
        self.writers, self.store = Writers(), Store()
        self.events: list[Observation] = []
        self.pauses: list[float] = []
        self._has_paused = asyncio.Event()
        self.creator = self.made(LONG_SECONDS)

    def made(self, stop_seconds: float) -> GroupCreator:
        """Another creator with the same parts."""
        settings = CreatorSettings(stop_seconds=stop_seconds)
        return GroupCreator(
            self.writers, self.store, settings, self.events.append, pause=self.pause
        )

    def reclaims(self) -> list[Observation]:
        """Return what was observed of taking attempts over."""
        return [event for event in self.events if isinstance(event, ReclaimTried)]

    def strays(self) -> list[Observation]:
        """Return what was observed beside the normal way."""
        return [event for event in self.events if isinstance(event, AttemptStrayed)]

    async def pause(self, seconds: float) -> None:
        """Note how long, and go on at once."""
        self.pauses.append(seconds)
        self._has_paused.set()
        await asyncio.sleep(0)

    async def paused(self, times: int) -> None:
        """Wait until followers have paused so often."""
        async with asyncio.timeout(TEST_SECONDS):
            while len(self.pauses) < times:
                self._has_paused.clear()
                await self._has_paused.wait()


@pytest.fixture
async def world() -> World:
    """A creator that runs; it is not stopped, which might wait for what a test left open."""
    made = World()
    await made.creator.__aenter__()
    return made


def begin(creator: GroupCreator, key: IdempotencyKey = KEY) -> asyncio.Task[Answer]:
    """Ask for TEAM, with all the patience in the world."""
    return asyncio.ensure_future(creator.create(key, TEAM, wait_seconds=LONG_SECONDS))


async def turns(number: int = 10) -> None:
    """Have everything that can go on go on."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_request_that_does_not_wait_gets_its_own_write(world: World) -> None:
    """An answer "pending" would only cost the client another request."""
    request = asyncio.ensure_future(world.creator.create(KEY, TEAM, wait_seconds=0))
    await turns()
    await world.writers.answer(Led())
    assert AnswerStatus.CREATED is (await request).status


async def test_another_request_that_does_not_wait_gets_pending(world: World) -> None:
    """The twin: only the request whose write it is may wait longer than it wants to."""
    first = begin(world.creator)
    write, answered = await world.writers.take()
    for new_group in (TEAM, OTHER):
        with pytest.raises(AttemptPending) as pending:
            await world.creator.create(KEY, new_group, wait_seconds=0)
        assert 1 == pending.value.retry_after_seconds
    assert not first.done()
    answered.set_result(Led())
    assert write.group_id == (await first).group.group_id


async def test_answered_requests_leave_no_timer_behind(world: World) -> None:
    """Each would hold its request for as long as that wanted to wait."""
    loop = asyncio.get_running_loop()
    scheduled = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    request = begin(world.creator)
    await world.writers.answer(Led())
    await request
    left = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
    assert len(scheduled) == len(left)


async def test_a_follower_ends_when_the_service_stops(world: World) -> None:
    """Another's attempt is not waited for; the stop does not take all of its time."""
    request = begin(world.creator)
    await world.writers.answer(NotLed())
    await world.store.looked.wait()
    await world.creator.stop()
    with pytest.raises(AttemptPending):
        await request
    assert 0 == world.creator.flights


async def test_a_follower_that_hangs_is_given_up_when_the_stop_is_over(world: World) -> None:
    """Its request is sent elsewhere, and no task is left."""
    world.store.holds = asyncio.Event()
    async with world.made(0.01) as creator:
        request = begin(creator)
        await world.writers.answer(NotLed())
        await world.store.looked.wait()
    with pytest.raises(Overloaded):
        await request
    assert [] == [task for task in asyncio.all_tasks() if task.get_name().startswith("flight")]


async def test_a_write_that_hangs_is_given_up_when_the_stop_is_over(world: World) -> None:
    """Whatever comes of it later begins nothing: there is none to follow for."""
    async with world.made(0.01) as creator:
        request = begin(creator)
        _, answered = await world.writers.take()
    with pytest.raises(Overloaded):
        await request
    answered.set_result(NotLed())
    await turns()
    assert not world.store.looked.is_set()


async def test_the_time_of_an_own_write_is_not_spent_on_waiting_for_anothers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the write has come back, a request that does not wait is answered "pending"."""
    monkeypatch.setattr("stretto.creation.creator.OWN_WRITE_SECONDS", LONG_SECONDS)
    request = asyncio.ensure_future(world.creator.create(KEY, TEAM, wait_seconds=0))
    await world.writers.answer(NotLed())
    with pytest.raises(AttemptPending):
        await request


async def test_a_flight_that_no_request_waits_for_is_not_followed(world: World) -> None:
    """Watching another's attempt for no request would cost the database a look each time."""
    request = begin(world.creator)
    await world.writers.answer(NotLed())
    await world.store.looked.wait()
    request.cancel()
    await until(lambda: not world.creator.flights)


async def test_a_flight_goes_on_while_one_of_its_waiters_is_there(world: World) -> None:
    """The twin: others may leave."""
    leaves = begin(world.creator)
    await world.writers.answer(NotLed())
    stays = begin(world.creator)
    await world.store.looked.wait()
    leaves.cancel()
    await world.paused(len(world.pauses) + 3)
    world.store.sees = lambda _: Sighting(attempt(AttemptStatus.SUCCEEDED), None)
    assert CONVERSATION == (await stays).group.conversation_id


async def test_a_waiter_that_has_left_is_passed_over() -> None:
    """It is still among the waiters in the turn of the loop in which it leaves."""
    flight = Flight(UUID(int=1), TEAM, TEAM.fingerprint(), b"")
    waiter = asyncio.get_running_loop().create_future()
    flight.waiters[waiter] = 0
    waiter.cancel()
    flight.finish(b"{}")
    flight.release_impatient(1)
    assert waiter.cancelled()


async def test_followers_look_again_at_random_and_ever_more_rarely(world: World) -> None:
    """Replicas that wait for the same attempt do not ask at the same moments."""
    request = begin(world.creator)
    await world.writers.answer(NotLed())
    await world.paused(60)
    request.cancel()
    longest = [POLL.longest(looks) for looks in range(60)]
    assert all(
        most / 2 <= pause <= most for pause, most in zip(world.pauses, longest, strict=False)
    )
    # Evenly over that half: no two are alike, and both ends are come close to.
    ratios = sorted(pause / most for pause, most in zip(world.pauses, longest, strict=False))
    assert 60 == len(set(ratios))
    assert ratios[0] < 0.65
    assert ratios[-1] > 0.85


async def test_an_attempt_that_is_taken_away_each_time_ends_as_pending(world: World) -> None:
    """After its first write and eight turns the client is asked to come back."""
    world.store.sees = lambda _: Sighting(None, None)
    request = begin(world.creator)
    tokens = {(await world.writers.answer(NotLed())).claim_token for _ in range(9)}
    with pytest.raises(AttemptPending):
        await request
    assert 9 == len(tokens)


async def test_an_attempt_that_vanished_is_claimed_again(world: World) -> None:
    """The next turn leads it."""
    world.store.sees = lambda _: Sighting(None, None)
    request = begin(world.creator)
    await world.writers.answer(NotLed())
    again = await world.writers.answer(Led())
    assert not again.is_claimed
    assert AnswerStatus.CREATED is (await request).status
    owner = TEAM.owner
    assert [
        AttemptStrayed("claimed_again", again.group_id, owner, again.claim_token)
    ] == world.strays()


async def test_an_attempt_whose_lease_is_over_is_taken_over_and_led(world: World) -> None:
    """From the token that was seen, and without another claim."""
    world.store.sees = lambda _: Sighting(attempt(AttemptStatus.PENDING, lease_over=True), None)
    request = begin(world.creator)
    await world.writers.answer(NotLed())
    write = await world.writers.answer(Led())
    assert write.is_claimed
    assert [(TOKEN, write.claim_token)] == world.store.reclaimed
    assert AnswerStatus.RECOVERED is (await request).status
    assert [ReclaimTried("won")] == world.reclaims()
    # Its statement records it.
    assert [] == world.strays()


async def test_an_attempt_that_another_has_taken_over_is_counted_as_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader lives, or another request was first; the follower looks again."""
    world.store.sees = lambda _: Sighting(attempt(AttemptStatus.PENDING, lease_over=True), None)
    results = iter((False, False, True))

    async def reclaim(*_: object) -> bool:
        return next(results)

    monkeypatch.setattr(world.store, "reclaim", reclaim)
    request = begin(world.creator)
    await world.writers.answer(NotLed())
    await world.writers.answer(Led())
    await request
    assert [ReclaimTried(each) for each in ("lost", "lost", "won")] == world.reclaims()


async def test_a_write_of_ours_that_is_found_settled_is_reported_as_created(world: World) -> None:
    """Its acknowledgement was lost; another's is a replay."""
    statuses = []
    for is_ours in (True, False):
        key = IdempotencyKey(f"k{is_ours}")
        request = begin(world.creator, key)
        write, answered = await world.writers.take()
        token = write.claim_token if is_ours else TOKEN
        seen = Sighting(attempt(AttemptStatus.SUCCEEDED, token), None)
        world.store.sees = lambda _, seen=seen: seen  # type: ignore[misc]
        answered.set_result(NotLed())
        statuses.append((await request).status)
    assert [AnswerStatus.CREATED, AnswerStatus.REPLAYED] == statuses


@pytest.mark.parametrize("status", [AttemptStatus.PENDING, None, AttemptStatus.FAILED])
async def test_a_group_that_exists_is_answered_and_settles_its_attempt(
    status: AttemptStatus | None, world: World
) -> None:
    """Unless it says failed, which is final and breaks G4: that is loud."""
    found = None if status is None else attempt(status)
    world.store.sees = lambda id_: Sighting(found, group(id_))
    request = begin(world.creator)
    write = await world.writers.answer(NotLed())
    answer = await request
    assert (AnswerStatus.HEALED, CONVERSATION) == (answer.status, answer.group.conversation_id)
    broken = [event for event in world.events if isinstance(event, GuaranteeBroken)]
    if status is AttemptStatus.FAILED:
        assert ([], [GuaranteeBroken(write.group_id)]) == (world.store.healed, broken)
    else:
        assert ([write.group_id], []) == (world.store.healed, broken)


@pytest.mark.parametrize("what", ["heal", "reclaim"])
async def test_an_owner_whose_heals_hang_leaves_a_place_to_others(
    what: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whose reclaims hang: one of them at a time, however many keys it has."""
    begun: list[UUID] = []
    opened = asyncio.Event()

    async def hang(group_id: UUID, *_: object) -> bool:
        begun.append(group_id)
        await opened.wait()
        return True

    monkeypatch.setattr(world.store, what, hang)
    over = attempt(AttemptStatus.PENDING, lease_over=True)
    world.store.sees = lambda id_: Sighting(over, group(id_) if what == "heal" else None)
    bob = NewGroup.parse(UserId("bob"), {"name": "Team"})
    wanted = [(f"k{number}", TEAM) for number in range(3)] + [("k", bob)]
    tasks = [
        asyncio.create_task(world.creator.create(IdempotencyKey(key), each, wait_seconds=60))
        for key, each in wanted
    ]
    writes = [await world.writers.answer(NotLed()) for _ in wanted]
    await turns()
    ids = {write.new_group.owner: write.group_id for write in reversed(writes)}
    assert [*ids.values()] == begun[::-1]
    for task in tasks:
        task.cancel()


async def test_a_flight_whose_task_is_cancelled_before_it_begins_has_ended(world: World) -> None:
    """By a host that cancels tasks that are not its own; otherwise its key would wait for ever."""
    request = begin(world.creator)
    _, answered = await world.writers.take()

    def cancel() -> None:
        for task in asyncio.all_tasks():
            if task.get_name().startswith("flight "):
                task.cancel()

    answered.set_result(NotLed())
    # Behind the callback that makes the task, and before that begins.
    answered.add_done_callback(lambda _: cancel())
    with pytest.raises(Overloaded):
        await request
    assert 0 == len(world.creator._flights)


async def test_what_finds_no_writer_counts_as_no_attempt(world: World) -> None:
    """Its client comes back, and must not be told that it has started too many."""
    settings = CreatorSettings(rate_limit=0.001)
    ask, rejections = world.writers.ask, [Overloaded("full"), Overloaded("full")]

    def ask_or_reject(write: Write) -> asyncio.Future[WriteResult]:
        if rejections:
            raise rejections.pop()
        return ask(write)

    world.writers.ask = ask_or_reject  # type: ignore[method-assign]
    async with GroupCreator(world.writers, world.store, settings, world.events.append) as creator:
        for _ in range(2):
            with pytest.raises(Overloaded):
                await creator.create(KEY, TEAM)
        created = begin(creator)
        await world.writers.answer(Led())
        assert AnswerStatus.CREATED is (await created).status


@pytest.mark.parametrize("is_shared", [True, False])
async def test_look_ups_whose_heals_hang_leave_a_place_to_others(
    is_shared: bool, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take turns with those who create. In places of their own they would take all connections."""
    begun: list[UUID] = []
    opened = asyncio.Event()

    async def hang(group_id: UUID) -> None:
        begun.append(group_id)
        await opened.wait()

    monkeypatch.setattr(world.store, "heal", hang)
    over = attempt(AttemptStatus.PENDING, lease_over=True)
    world.store.sees = lambda id_: Sighting(over, group(id_))
    places = world.creator.places if is_shared else None
    lookup = AttemptLookup(world.store, 5, places=places)
    tasks: list[asyncio.Task[object]] = [
        asyncio.create_task(lookup.look_up(TEAM.owner, IdempotencyKey(f"k{number}"), 0))
        for number in range(3)
    ]
    tasks.append(begin(world.creator))
    write = await world.writers.answer(NotLed())
    await turns()
    of_alice = 1 if is_shared else 2
    assert write.new_group.owner == TEAM.owner
    assert of_alice == len(begun), begun
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize(
    ("error", "expected"),
    [(Unreachable("away"), DatabaseUnavailable), (ZeroDivisionError("bug"), InternalError)],
)
async def test_whatever_goes_wrong_is_answered_to_all_that_wait(
    error: Exception, expected: type[StrettoError], world: World
) -> None:
    """In a write or in a look: no request waits for what never comes."""

    def fails(_: UUID) -> Sighting:
        raise error

    handled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: handled.append(context))
    world.store.sees = fails
    for is_write in (True, False):
        requests = [begin(world.creator) for _ in range(2)]
        _, answered = await world.writers.take()
        if is_write:
            answered.set_exception(error)
        else:
            answered.set_result(NotLed())
        for request in requests:
            with pytest.raises(expected) as caught:
                await request
            assert (expected is DatabaseUnavailable) == (caught.value.retry_after_seconds == 1)
    assert 0 == world.creator.flights
    counted = [event.outcome for event in world.events if isinstance(event, AttemptAnswered)]
    assert [expected.code] * 4 == counted


async def test_the_stop_ends_as_soon_as_the_last_flight_has_finished(world: World) -> None:
    """However long it might take."""
    request = begin(world.creator)
    _, answered = await world.writers.take()
    stopping = asyncio.ensure_future(world.creator.stop())
    await turns()
    assert not stopping.done()
    answered.set_result(Led())
    await stopping
    assert AnswerStatus.CREATED is (await request).status
