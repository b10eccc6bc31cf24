"""GroupCreator, its follower and the look-up, with a real writer, on stores in memory.

What only a real database can show is in `tests/integration`; that the stores do the same, in
`tests/contract`.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from stretto.codec import LARGE_BODY_BYTES, SMALL_BODY_VALUES, parse_json
from stretto.creation.age import OutOfRange
from stretto.creation.attempt import AnswerStatus, AttemptStatus
from stretto.creation.baton import Baton
from stretto.creation.breakers import OwnerBreakers
from stretto.creation.creator import GroupCreator
from stretto.creation.deletion import Deletion
from stretto.creation.lookup import AttemptLookup
from stretto.creation.settings import CreatorSettings
from stretto.creation.writer import GroupWriter
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    DatabaseUnavailable,
    Failure,
    FirstSentOutOfRange,
    GroupDeleted,
    KeyInvalid,
    KeyReused,
    NotFound,
    Overloaded,
    RateLimited,
)
from stretto.misuse import WrongEventLoop
from stretto.observations import AttemptAnswered, AttemptStrayed, FirstSentAhead, GuaranteeBroken
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Run
from stretto.store_errors import OutcomeUnknown, Unreachable
from support.loop_turns import counted_turns
from support.memory_store.database import MemoryDatabase
from support.memory_store.stores import (
    MemoryAttemptStore,
    MemoryDeletionStore,
    MemoryWriteStore,
)
from support.memory_store.tables import AttemptRow
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractContextManager
    from uuid import UUID

    from stretto.creation.flight import Answer
    from stretto.creation.ports import Write, WriteResult
    from stretto.observations import Observation
    from support.memory_store.database import Statement

ALICE = UserId("alice")
KEY, ANOTHER = IdempotencyKey("k"), IdempotencyKey("another")
ID = group_id(ALICE, KEY)
TEAM = NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})
OF_BOB = NewGroup.parse(UserId("bob"), {"name": "Team", "members": []})
OTHER = NewGroup.parse(ALICE, {"name": "Other"})
BODY = b'{"name":"Team","members":["bob"]}'
SETTINGS = CreatorSettings(lease_seconds=5.0)


class World:
    """A database whose clock moves while a follower pauses, and what was observed."""

    def __init__(self) -> None:
        self.database = MemoryDatabase()
        self.attempts = MemoryAttemptStore(self.database)
        self.lookup = AttemptLookup(self.attempts, SETTINGS.lease_seconds, self.pause)
        self.events: list[Observation] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    @asynccontextmanager
    async def running(
        self,
        settings: CreatorSettings = SETTINGS,
        store: type[MemoryWriteStore] = MemoryWriteStore,
        *,
        batch_max: int = 100,
        mailbox_max: int = 100,
    ) -> AsyncIterator[GroupCreator]:
        """Run a creator and its writer."""
        mailbox: Mailbox[Write, WriteResult] = Mailbox(mailbox_max)
        observe = self.events.append
        creator = GroupCreator(mailbox, self.attempts, settings, observe, self.pause)
        stored = store(self.database, creator.forget)
        writer = GroupWriter(
            Baton(mailbox), stored, observe, breakers=OwnerBreakers(observe), batch_max=batch_max
        )
        turns = asyncio.create_task(Run(writer, observe).turns(), name="writer")
        try:
            async with creator:
                yield creator
        finally:
            turns.cancel()
            await asyncio.wait([turns])

    async def pause(self, seconds: float) -> None:
        """Wait for the test, and let the time pass at once."""
        await self.goes_on.wait()
        self.database.pass_time(seconds)
        await asyncio.sleep(0)

    def put(self, status: AttemptStatus, seconds_ago: float = 0) -> None:
        """Have an attempt of TEAM in the database, pending as a leader that died leaves it."""
        since = self.database.now - timedelta(seconds=seconds_ago)
        row = AttemptRow(TEAM.fingerprint(), uuid4(), since, status)
        if status is AttemptStatus.FAILED:
            row = replace(row, failure=Failure("x", "y"), settled_at=since)
        self.database.put_attempt(ID, row)

    def lose_attempt(self) -> None:
        """Delete the attempt's record."""
        self.database.put_attempt(ID, None)

    def status(self) -> AttemptStatus:
        """Return what the attempt's record says."""
        return self.database.committed.attempts[ID].status

    def counts(self) -> tuple[int, ...]:
        """Return how many attempts and groups there are."""
        return self.database.committed.counts()[:2]

    def strays(self) -> list[Observation]:
        """Return what was observed beside the normal way."""
        return [event for event in self.events if isinstance(event, AttemptStrayed)]

    def leads_held_up(self, key: IdempotencyKey = KEY) -> AbstractContextManager[None]:
        """Let the claim of a key through, and have its lead wait."""
        return self.database.holding(group_id(ALICE, key))

    async def lead_waits(self) -> None:
        """Wait until a lead is held up."""
        await until(lambda: self.database.is_anybody_blocked)


@pytest.fixture
async def world() -> World:
    """A database with nothing in it."""
    return World()


@pytest.fixture
async def creator(world: World) -> AsyncIterator[GroupCreator]:
    """A creator that runs."""
    async with world.running() as creator:
        yield creator


def deep(levels: int) -> bytes:
    """Return a body with so many arrays, one in the other."""
    return b'{"name":"Team","metadata":{"a":' + b"[" * levels + b"]" * levels + b"}}"


@pytest.mark.parametrize(
    ("body", "turns"),
    [
        (b'{"name":"Team"}' + b" " * LARGE_BODY_BYTES, 5),
        (b'{"name":"Team"}', 1),
        # With the braces and the commas around them.
        (deep(SMALL_BODY_VALUES - 2), 5),
        (deep(SMALL_BODY_VALUES - 3), 1),
        (b'{"name":"Team","metadata":{"a":[0' + b",0" * SMALL_BODY_VALUES + b"]}}", 5),
        (b'{"name":"Team","metadata":{"a":[{}' + b",{}" * (SMALL_BODY_VALUES // 2) + b"]}}", 5),
    ],
    ids=["long", "short", "deep", "less deep", "wide", "objects"],
)
async def test_large_bodies_are_parsed_one_in_a_turn(
    body: bytes, turns: int, creator: GroupCreator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest takes milliseconds: other requests run in between. Small ones wait for none."""
    parsed: list[int] = []

    with counted_turns() as turn:

        def counted(document: bytes) -> object:
            parsed.append(turn())
            return parse_json(document)

        monkeypatch.setattr("stretto.creation.creator.parse_json", counted)
        keys = [IdempotencyKey(f"k{number}") for number in range(5)]
        # Of what is nested too deeply only the parsing counts.
        asked = (creator.create_from(ALICE, key, body) for key in keys)
        await asyncio.gather(*asked, return_exceptions=True)

    assert (5, turns) == (len(parsed), len(set(parsed)))


async def test_a_body_is_not_kept_while_its_group_is_created(creator: GroupCreator) -> None:
    """It may have 256 KiB, and its group may wait for the database for long."""
    body = b'{"name": "Team"}'.ljust(100)
    references: list[int] = []

    def count() -> None:
        references.append(sys.getrefcount(body))

    count()
    await creator.create_from(ALICE, KEY, body, parsed=count)
    assert [references[0]] * 2 == references


async def test_a_settled_attempt_is_answered_from_memory(
    world: World, creator: GroupCreator
) -> None:
    """The database is not asked for what is known."""
    first = await creator.create(KEY, TEAM)

    def refuse(statement: Statement) -> None:
        statement.fail(Unreachable("it is asked"))

    world.database.submitted = refuse
    again = await creator.create(KEY, TEAM)
    assert (first.group, AnswerStatus.REPLAYED) == (again.group, again.status)


async def test_a_repeated_body_is_answered_without_being_read(
    creator: GroupCreator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the very bytes of the same owner's request; any other spelling is read for its meaning."""
    body = b'{"name":"Team","members":["bob"]}'
    first = await creator.create_from(ALICE, KEY, body)
    assert AnswerStatus.CREATED is first.status
    respelled = await creator.create_from(ALICE, KEY, body.replace(b":", b" : "))
    assert first.document == respelled.document
    read: list[bytes] = []

    def note(body: bytes) -> object:
        read.append(body)
        return parse_json(body)

    monkeypatch.setattr("stretto.creation.creator.parse_json", note)
    again = await creator.create_from(ALICE, KEY, body)
    assert (first.document, AnswerStatus.REPLAYED) == (again.document, again.status)
    assert not read
    with pytest.raises(KeyReused):
        await creator.create_from(ALICE, KEY, b'{"name":"Other"}')
    assert AnswerStatus.CREATED is (await creator.create_from(UserId("bob"), KEY, body)).status
    creator.forget()
    assert first.document == (await creator.create_from(ALICE, KEY, body)).document
    assert 3 == len(read)


@pytest.mark.parametrize("has_attempt", [True, False])
async def test_a_group_whose_attempt_is_open_or_gone_is_healed(
    has_attempt: bool, world: World, creator: GroupCreator
) -> None:
    """The domain rows are the truth."""
    first = await creator.create(KEY, TEAM)
    world.lose_attempt()
    if has_attempt:
        world.put(AttemptStatus.PENDING)
    creator.forget()
    again = await creator.create(KEY, TEAM)
    assert (first.group, AnswerStatus.HEALED) == (again.group, again.status)
    assert AttemptStatus.SUCCEEDED is world.status()


async def test_another_body_is_refused_even_after_the_attempt_was_deleted(
    world: World, creator: GroupCreator
) -> None:
    """And leaves nothing behind that would shut out the first body."""
    await creator.create(KEY, TEAM)
    with pytest.raises(KeyReused):
        await creator.create(KEY, OTHER)
    world.lose_attempt()
    creator.forget()
    with pytest.raises(KeyReused):
        await creator.create(KEY, OTHER)
    # Once from the memory and once by a follower.
    assert [AttemptStrayed("other_body", ID, ALICE)] * 2 == world.strays()
    assert (0, 1) == world.counts()
    assert (await creator.create(KEY, TEAM)).status is AnswerStatus.HEALED


async def test_two_bodies_at_once_make_one_group_and_one_refusal(
    world: World, creator: GroupCreator
) -> None:
    """The first of them owns the key."""
    results = await asyncio.gather(
        creator.create(KEY, TEAM),
        creator.create(KEY, OTHER),
        creator.create(KEY, TEAM),
        return_exceptions=True,
    )
    assert [False, True, False] == [isinstance(result, KeyReused) for result in results]
    assert [AttemptStrayed("other_body", ID, ALICE)] == world.strays()
    assert (1, 1) == world.counts()


async def test_a_dead_leaders_attempt_is_recovered_after_its_lease(
    world: World, creator: GroupCreator
) -> None:
    """The next request with the key finishes it; nothing else is needed."""
    world.put(AttemptStatus.PENDING, seconds_ago=60)
    assert AnswerStatus.RECOVERED is (await creator.create(KEY, TEAM)).status
    assert (1, 1) == world.counts()


async def test_a_request_waits_for_the_lease_and_then_recovers(
    world: World, creator: GroupCreator
) -> None:
    """Its own wait is longer than the lease, so it is answered, not sent away."""
    world.put(AttemptStatus.PENDING)
    began = world.database.now
    assert AnswerStatus.RECOVERED is (await creator.create(KEY, TEAM)).status
    assert timedelta(seconds=SETTINGS.lease_seconds) <= world.database.now - began


async def test_a_pending_attempt_is_answered_when_the_wait_is_over(
    world: World, creator: GroupCreator
) -> None:
    """409, and no write of this request's is left on its way."""
    world.put(AttemptStatus.PENDING)
    with pytest.raises(AttemptPending):
        await creator.create(KEY, TEAM, wait_seconds=0)
    assert AttemptStatus.PENDING is (await world.lookup.look_up(ALICE, KEY, 0)).status


async def test_a_pending_attempt_delays_only_its_own_key(
    world: World, creator: GroupCreator
) -> None:
    """G6: others are created meanwhile."""
    world.put(AttemptStatus.PENDING)
    world.goes_on.clear()
    waiting = asyncio.ensure_future(creator.create(KEY, TEAM))
    assert AnswerStatus.CREATED is (await creator.create(ANOTHER, TEAM)).status
    assert not waiting.done()
    world.goes_on.set()
    assert AnswerStatus.RECOVERED is (await waiting).status


async def test_a_request_that_is_given_up_is_finished_all_the_same(
    world: World, creator: GroupCreator
) -> None:
    """The client has gone, its group comes; the retry finds it."""
    with world.leads_held_up():
        request = asyncio.ensure_future(creator.create(KEY, TEAM))
        await world.lead_waits()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert AnswerStatus.REPLAYED is (await creator.create(KEY, TEAM)).status
    assert (1, 1) == world.counts()


async def test_a_failed_attempt_with_a_group_is_loud(world: World, creator: GroupCreator) -> None:
    """G4 is broken: the client gets its group, the operator an alarm."""
    first = await creator.create(KEY, TEAM)
    world.put(AttemptStatus.FAILED)
    creator.forget()
    assert first.group == (await creator.create(KEY, TEAM)).group
    assert GuaranteeBroken(first.group.group_id) in world.events


async def test_a_commit_whose_acknowledgement_is_lost_is_found(world: World) -> None:
    """The write is committed, its answer never comes: created all the same, and once."""
    losses = [1, 2]

    def lose() -> None:
        if losses:
            losses.pop()
            raise OutcomeUnknown("the answer was lost")

    class LossyStore(MemoryWriteStore):
        async def claim_and_lead(
            self, writes: Sequence[Write], *, is_hasty: bool = False
        ) -> set[UUID]:
            led = await super().claim_and_lead(writes, is_hasty=is_hasty)
            lose()
            return led

        async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
            led = await super().lead(writes, is_hasty=is_hasty)
            lose()
            return led

    async with world.running(store=LossyStore) as creator:
        assert AnswerStatus.CREATED is (await creator.create(KEY, TEAM)).status
    assert (1, 1) == world.counts()
    assert [] == losses


async def test_a_full_mailbox_sheds_before_the_claim(world: World) -> None:
    """503 at once, and no row of the rejected requests (G7)."""
    keys = [IdempotencyKey(f"k{number}") for number in range(5)]
    async with world.running(batch_max=1, mailbox_max=1) as creator:
        with ExitStack() as held:
            for key in keys:
                held.enter_context(world.leads_held_up(key))
            requests = [asyncio.ensure_future(creator.create(key, TEAM)) for key in keys]
            done, _ = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
            assert all(isinstance(request.exception(), Overloaded) for request in done)
        results = await asyncio.gather(*requests, return_exceptions=True)
    created = sum(not isinstance(result, Overloaded) for result in results)
    assert created < 5
    assert (created, created) == world.counts()


async def test_a_limited_owner_claims_nothing(world: World) -> None:
    """Replays are not limited: only new attempts are."""
    async with world.running(CreatorSettings(rate_limit=0.001)) as creator:
        await creator.create(KEY, TEAM)
        with pytest.raises(RateLimited):
            await creator.create(ANOTHER, TEAM)
        assert (await creator.create(KEY, TEAM)).status is AnswerStatus.REPLAYED
        # By now the writer would have taken a rejected one, too.
        assert (await creator.create(KEY, OF_BOB)).status is AnswerStatus.CREATED
    assert (2, 2) == world.counts()


async def test_stopping_lands_what_flies_and_refuses_the_rest(
    world: World, creator: GroupCreator
) -> None:
    """A claimed attempt is finished, a new request is not begun."""
    with world.leads_held_up():
        request = asyncio.ensure_future(creator.create(KEY, TEAM))
        await world.lead_waits()
        stopping = asyncio.ensure_future(creator.stop())
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await creator.create(ANOTHER, TEAM)
    await stopping
    assert (await request).status is AnswerStatus.CREATED
    await creator.stop()
    assert (1, 1) == world.counts()


async def test_a_second_body_does_not_outwait_its_own_patience(
    world: World, creator: GroupCreator
) -> None:
    """With `wait=0` it is asked to retry while the first body's request is still under way."""
    with world.leads_held_up():
        first = asyncio.ensure_future(creator.create(KEY, TEAM))
        await world.lead_waits()
        with pytest.raises(AttemptPending):
            await creator.create(KEY, OTHER, wait_seconds=0)
        assert not first.done()
    assert (await first).status is AnswerStatus.CREATED


async def test_what_was_found_before_the_last_loss_is_not_remembered_after_it(
    world: World, creator: GroupCreator
) -> None:
    """It may be of a server that has been replaced since; what is found after it is remembered."""
    with world.leads_held_up():
        creating = asyncio.ensure_future(creator.create(KEY, TEAM))
        await world.lead_waits()
        creator.forget()
    first = await creating
    assert creator.outcomes == 0
    assert first.group == (await creator.create(KEY, TEAM)).group
    assert creator.outcomes == 1


async def test_what_was_found_before_its_deletion_is_not_remembered_after_it(
    world: World, creator: GroupCreator
) -> None:
    """The flight may have met the group; one of another key is remembered."""
    with world.leads_held_up():
        creating = asyncio.ensure_future(creator.create(KEY, TEAM))
        await world.lead_waits()
        creator.forget_group(group_id(ALICE, KEY).bytes)
        creator.forget_group(group_id(ALICE, "another").bytes)
    first = await creating
    assert creator.outcomes == 0
    assert first.group == (await creator.create(KEY, TEAM)).group
    assert creator.outcomes == 1
    creator.forget_group(group_id(ALICE, KEY).bytes)
    assert creator.outcomes == 0


async def test_a_flight_is_joined_by_no_request_that_comes_after_the_deletion(
    world: World, creator: GroupCreator
) -> None:
    """It has met the group, which its own request began before; the others find the tombstone."""
    await creator.create(KEY, TEAM)
    world.database.put_attempt(ID, None)
    creator.forget()
    with world.database.holding(ID, "new attempt"):
        healing = asyncio.ensure_future(creator.create_from(ALICE, KEY, BODY))
        await world.lead_waits()
        joined = asyncio.ensure_future(creator.create(KEY, TEAM))
        await asyncio.sleep(0)
        store = MemoryDeletionStore(world.database)
        async with store.deleting() as delete:
            assert await delete(Deletion(ID, ALICE, None), is_hasty=False)
        creator.forget_group(ID.bytes)
        later = [asyncio.ensure_future(creator.create(KEY, TEAM)) for _ in range(2)]
        fast = creator.begin(ALICE, KEY, BODY, wait_seconds=1, may_start=True, then=print)
        assert fast is None
    assert AnswerStatus.HEALED is (await healing).status
    assert AnswerStatus.REPLAYED is (await joined).status
    for each in later:
        with pytest.raises(GroupDeleted):
            await each
    assert 0 == creator.outcomes


TOO_OLD = OutOfRange(0, 1)
AHEAD = OutOfRange(2, 1)


async def create_late(creator: GroupCreator, body: bytes = BODY) -> Answer:
    """Send a request that is too old to start an attempt."""
    return await creator.create_from(ALICE, KEY, body, out_of_range=TOO_OLD)


async def test_a_request_that_is_too_old_starts_no_attempt(
    world: World, creator: GroupCreator
) -> None:
    """Nothing is claimed, and the outcome counts; the twin is not too old."""
    with pytest.raises(FirstSentOutOfRange):
        await create_late(creator)
    assert (0, 0) == world.counts()
    assert [AttemptAnswered(FirstSentOutOfRange.code)] == world.events
    assert AnswerStatus.CREATED is (await creator.create_from(ALICE, KEY, BODY)).status


async def test_a_request_from_the_future_that_starts_nothing_is_reported(
    world: World, creator: GroupCreator
) -> None:
    """Our own clock may be behind. The twin finds its group: its time does not matter."""
    with pytest.raises(FirstSentOutOfRange):
        await creator.create_from(ALICE, KEY, BODY, out_of_range=AHEAD)
    assert [FirstSentAhead(AHEAD.cause)] == world.events[:1]
    assert AnswerStatus.CREATED is (await creator.create_from(ALICE, KEY, BODY)).status
    creator.forget()
    found = await creator.create_from(ALICE, KEY, BODY, out_of_range=AHEAD)
    assert AnswerStatus.REPLAYED is found.status
    assert 1 == sum(isinstance(event, FirstSentAhead) for event in world.events)


@pytest.mark.parametrize("has_attempt", [True, False])
@pytest.mark.parametrize("is_remembered", [True, False])
async def test_a_request_that_is_too_old_finds_its_group(
    is_remembered: bool, has_attempt: bool, world: World, creator: GroupCreator
) -> None:
    """G3: also where the attempt was swept; another body is still refused."""
    first = await creator.create(KEY, TEAM)
    if not has_attempt:
        world.lose_attempt()
    if not is_remembered:
        creator.forget()
    assert first.document == (await create_late(creator)).document
    creator.forget()
    with pytest.raises(KeyReused):
        await create_late(creator, b'{"name":"Other"}')


async def test_a_request_that_is_too_old_finishes_an_attempt_that_was_claimed_in_time(
    world: World, creator: GroupCreator
) -> None:
    """G6: what is pending is settled by the next request, and its client learns the outcome."""
    world.put(AttemptStatus.PENDING, seconds_ago=60)
    assert AnswerStatus.RECOVERED is (await create_late(creator)).status
    assert (1, 1) == world.counts()


async def test_a_request_that_is_too_old_follows_the_one_in_flight(
    world: World, creator: GroupCreator
) -> None:
    """Though that has not claimed yet: a look would find nothing."""
    with world.leads_held_up():
        first = asyncio.ensure_future(creator.create(KEY, TEAM))
        second = asyncio.ensure_future(create_late(creator))
        await asyncio.sleep(0)
        assert (0, 0) == world.counts()
        await world.lead_waits()
    assert (await first).document == (await second).document
    assert AnswerStatus.REPLAYED is (await second).status


async def test_a_request_that_is_too_old_is_refused_as_its_attempt_was(
    world: World, creator: GroupCreator
) -> None:
    """By what it has seen: the row may be swept before its claim."""
    world.put(AttemptStatus.FAILED)

    def sweep(statement: Statement) -> None:
        world.database.submitted = None
        world.database.submit(statement)
        world.lose_attempt()

    world.database.submitted = sweep
    with pytest.raises(AttemptFailed):
        await create_late(creator)
    assert (0, 0) == world.counts()


async def test_a_request_that_is_too_old_is_not_refused_without_a_look(
    world: World, creator: GroupCreator
) -> None:
    """While the database is away, nothing is known: it is to come again with the same key."""

    def refuse(statement: Statement) -> None:
        statement.fail(Unreachable("it is away"))

    world.database.submitted = refuse
    with pytest.raises(DatabaseUnavailable):
        await create_late(creator)


async def test_looking_up_says_what_became_of_an_attempt(
    world: World, creator: GroupCreator
) -> None:
    """It takes nothing over, and puts nothing back: the group alone answers."""
    look_up = world.lookup.look_up
    with pytest.raises(NotFound):
        await look_up(ALICE, KEY, 0)
    world.put(AttemptStatus.PENDING, seconds_ago=60)
    pending = await look_up(ALICE, KEY, 0)
    assert (AttemptStatus.PENDING, None) == (pending.status, pending.settled_at)
    created = (await creator.create(KEY, TEAM)).group
    world.lose_attempt()
    swept = await look_up(ALICE, KEY, 0)
    assert (AttemptStatus.SUCCEEDED, created.conversation_id) == (
        swept.status,
        swept.conversation_id,
    )
    assert (0, 1) == world.counts()
    world.put(AttemptStatus.PENDING)
    await look_up(ALICE, KEY, 0)
    assert AttemptStatus.SUCCEEDED is world.status()


@pytest.mark.parametrize("key", ["k k", "\u00e9", "", "k" * 300, b"k", None])
async def test_a_key_that_could_not_come_over_http_is_refused(
    key: object, creator: GroupCreator
) -> None:
    """However the group is given, and before anything is looked up."""
    for creation in (
        creator.create(key, TEAM),  # type: ignore[arg-type]
        creator.create_from(ALICE, key, b'{"name":"Team"}'),  # type: ignore[arg-type]
    ):
        with pytest.raises(KeyInvalid):
            await creation


async def test_a_creation_in_another_threads_loop_is_refused_at_once(creator: GroupCreator) -> None:
    """Its loop would not hear of an answer. Also where the outcome is remembered."""

    def create() -> object:
        return asyncio.run(creator.create(KEY, TEAM))

    assert AnswerStatus.CREATED is (await creator.create(KEY, TEAM)).status
    with pytest.raises(WrongEventLoop, match="run_coroutine_threadsafe"):
        await asyncio.to_thread(create)
