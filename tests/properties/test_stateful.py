"""Whatever is sent, lost and swept in whichever order: every answer is the one that is due."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from chaos.rows import read_rows
from properties.model import (
    BODIES,
    LEASE_SECONDS,
    RETENTION_DAYS,
    RETENTION_SECONDS,
    Memory,
    Model,
    Place,
    Wish,
)
from properties.processes import Process
from stretto.codec import created_document
from stretto.creation import follower as follower_module
from stretto.creation.attempt import decide
from stretto.creation.outcomes import document_for
from stretto.domain import FINGERPRINT_BYTES, CreatedGroup, IdempotencyKey, UserId, group_id
from stretto.errors import GroupDeleted, NotFound
from stretto.postgres.changes import delete_group
from stretto.postgres.connections import Database
from stretto.postgres.retention import sweep
from stretto.postgres.settings import Retention
from support.database import connect
from support.routines import change_routine

if TYPE_CHECKING:
    from collections.abc import Iterator


PROCESSES = 3
PROFILE = settings(
    # The same runs everywhere and every time: what is found stays found.
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=30,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
)
# With this one, each guard that is gone is missed within the first few examples.
SEED = 5
# The database refuses one of the bodies, as a constraint of a host's would.
REFUSE = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'no such groups here';
    END$$;
    CREATE TRIGGER refuse BEFORE INSERT ON chat_group FOR EACH ROW
        WHEN (NEW.name = 'Refused') EXECUTE FUNCTION refuse()"""
# What has happened moves into the past: the clock that counts is the database's, and stands still.
AGE = """
    WITH aged AS (UPDATE chat_group SET created_at = created_at - $1::interval
                  WHERE conversation_id IS NOT NULL)
    UPDATE attempt SET claimed_at = claimed_at - $1::interval, settled_at = settled_at - $1::interval"""

USERS = [UserId("alice"), UserId("mallory")]
# Who deletes in a transaction of its own, of which no process knows.
HOST = None
WISHES = [Wish(user, IdempotencyKey(key)) for user in USERS for key in ("k", "l")]
wishes = st.sampled_from(WISHES)
bodies = st.integers(0, len(BODIES) - 1)
any_process = st.integers(0, PROCESSES - 1)


class World:
    """A database for all the machines of a test, and the loop that they run in."""

    def __init__(self, url: str) -> None:
        # Debug mode would double the time of thousands of short steps.
        self._runner = asyncio.Runner(debug=False)
        self._stack = AsyncExitStack()
        self.run = self._runner.run
        self.run(self._open(url))

    async def _open(self, url: str) -> None:
        self.connection = await connect(url)
        await self.connection.execute(REFUSE)
        # Its clock is moved in rows that are settled, too.
        await self.connection.execute("SET session_replication_role = replica")
        self.database = await self._stack.enter_async_context(Database(url))

    def close(self) -> None:
        """Leave nothing open."""
        self.run(self._stack.aclose())
        self.run(self.connection.close())
        self._runner.close()


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A database with a machine's rules of its own."""
    world = World(database_url)
    yield world
    world.close()


class Machine(RuleBasedStateMachine):
    """Takes steps, in the model and in three processes on one database."""

    world: World

    @initialize()
    def start(self) -> None:
        self.model = Model()
        self.memories = [Memory() for _ in range(PROCESSES)]
        self.answers: dict[Wish, bytes] = {}
        self.processes: list[Process] = []
        self.world.run(self._start())

    async def _start(self) -> None:
        await self.world.connection.execute(
            "TRUNCATE attempt, conversation, chat_group, conversation_member, outbox"
        )
        for _ in range(PROCESSES):
            self.processes.append(await Process(self.world.database).__aenter__())

    def teardown(self) -> None:
        for process in self.processes:
            self.world.run(process.crash())

    def at_work(self, number: int) -> int:
        """Return a process that is not silent: the one of this number, or the next that is not."""
        numbers = [(number + more) % PROCESSES for more in range(PROCESSES)]
        return next(n for n in numbers if self.memories[n].silence is None)

    @rule(number=any_process, wish=wishes, body=bodies)
    def post(self, number: int, wish: Wish, body: int) -> None:
        """A new request, a retry, another body or another owner: all the same to the client."""
        number = self.at_work(number)
        expected = self.model.post(self.memories[number], wish, body)
        assert expected == self.world.run(self.processes[number].post(wish, body))

    @rule(number=any_process, wish=wishes, body=bodies)
    def post_late(self, number: int, wish: Wish, body: int) -> None:
        """A request that was first sent too long ago finds what is there, and starts nothing."""
        number = self.at_work(number)
        expected = self.model.post_late(self.memories[number], wish, body)
        assert expected == self.world.run(self.processes[number].post_late(wish, body))

    @rule(
        number=any_process,
        wish=wishes,
        body=bodies,
        place=st.sampled_from(["claimed", "claimed", "committed", "failed"]),
    )
    def fall_silent(self, number: int, wish: Wish, body: int, place: Place) -> None:
        """A process stops between two statements; one always goes on."""
        if sum(memory.silence is not None for memory in self.memories) == PROCESSES - 1:
            return
        number = self.at_work(number)
        expected = self.model.fall_silent(self.memories[number], wish, body, place)
        assert expected == self.world.run(self.processes[number].post(wish, body, place))

    @rule(number=any_process)
    def go_on(self, number: int) -> None:
        """A process that was silent goes on where it was, whatever has happened meanwhile."""
        if self.memories[number].silence is not None:
            expected = self.model.go_on(self.memories[number])
            assert expected == self.world.run(self.processes[number].go_on())

    @rule(number=any_process)
    def crash(self, number: int) -> None:
        """Its memory and what it was at are gone; another process takes its place."""
        self.memories[number] = Memory()
        self.world.run(self._restart(number))

    async def _restart(self, number: int) -> None:
        await self.processes[number].crash()
        self.processes[number] = await Process(self.world.database).__aenter__()

    @rule(seconds=st.sampled_from([LEASE_SECONDS + 1400, RETENTION_SECONDS + 3600]))
    def advance_the_clock(self, seconds: float) -> None:
        self.model.now += seconds
        self.world.run(self.world.connection.execute(AGE, timedelta(seconds=seconds)))

    @rule()
    def sweep(self) -> None:
        self.model.sweep()
        self.world.run(self._sweep())

    async def _sweep(self) -> None:
        await sweep(self.world.database.upkeep, Retention(RETENTION_DAYS), None, lambda *_: None)

    @rule()
    def truncate(self) -> None:
        self.model.attempts.clear()
        self.world.run(self.world.connection.execute("TRUNCATE attempt"))

    @rule(number=any_process, wish=wishes, user=st.sampled_from([*USERS, HOST]))
    def delete(self, number: int, wish: Wish, user: UserId | None) -> None:
        """By its owner, by another user, who finds no such group, or by a host; and again."""
        number = self.at_work(number)
        memory = None if user is HOST else self.memories[number]
        known = self.model.delete(wish, user, memory)
        if user is HOST:
            assert bool(known) == self.world.run(self._delete_in_a_transaction(wish))
        else:
            assert (known is not None) == self.world.run(self._delete(number, wish, user))

    async def _delete(self, number: int, wish: Wish, user: UserId) -> bool:
        try:
            await self.processes[number].deleter.delete(group_id(*wish), user)
        except NotFound:
            return False
        return True

    async def _delete_in_a_transaction(self, wish: Wish) -> bool:
        async with self.world.database.upkeep() as connection, connection.transaction():
            return await delete_group(connection, group_id(*wish))

    @rule(number=any_process)
    def look_for_deletions(self, number: int) -> None:
        """A process learns what the others have deleted; one that is silent does not look."""
        number = self.at_work(number)
        self.model.watch(self.memories[number])
        self.world.run(self.processes[number].watch.run_once())

    @rule(number=any_process, wish=wishes)
    def look_up(self, number: int, wish: Wish) -> None:
        expected = self.model.look_up(wish)
        assert expected == self.world.run(self._look_up(number, wish))

    async def _look_up(self, number: int, wish: Wish) -> str | None:
        try:
            report = await self.processes[number].lookup.look_up(*wish, 0)
        except NotFound:
            return None
        except GroupDeleted:
            return "deleted"
        assert report.group_id == group_id(*wish)
        return report.status.value

    @invariant()
    def the_database_is_as_the_model_says(self) -> None:
        """And every success, of any request at any time, had the same bytes."""
        self.world.run(self._compare())

    async def _compare(self) -> None:
        rows = await read_rows(self.world.connection, RETENTION_DAYS)
        assert [] == rows.violations
        wishes = {group_id(*wish): wish for wish in WISHES}
        assert self.model.groups == {
            wishes[row.group_id]: [body["name"] for body in BODIES].index(row.name)
            for row in rows.groups
        }
        assert {wish: attempt.status for wish, attempt in self.model.attempts.items()} == {
            wishes[row.group_id]: row.status for row in rows.attempts
        }
        for row in rows.groups:
            wish = wishes[row.group_id]
            group = wish.group(self.model.groups[wish])
            assert {group.owner, *group.members} == set(rows.members[row.conversation_id])
            answer = created_document(CreatedGroup(row.group_id, row.conversation_id))
            assert self.answers.setdefault(wish, answer) == answer
        for process in self.processes:
            assert process.answers.items() <= self.answers.items()
        assert len(rows.events) == len(rows.groups) + 2 * len(self.model.deleted)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take more than a second for a write; the model knows no such seconds."""
    monkeypatch.setattr("stretto.creation.creator.OWN_WRITE_SECONDS", 600.0)


def machine_in(world: World) -> type[Machine]:
    """Return a machine that works on this database."""
    return type("MachineHere", (Machine,), {"world": world})


def test_every_answer_in_every_order_is_the_one_that_is_due(world: World) -> None:
    """Requests, silences, crashes, leases, sweeps, lost records and questions, as they come."""
    run_state_machine_as_test(machine_in(world), settings=PROFILE)


def forget_the_lease(_: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take attempts over from leaders who may live."""
    monkeypatch.setattr("properties.processes.LEASE_SECONDS", 0.0)


def forget_the_fingerprint(_: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer another body with the group of the first."""

    def decide_blindly(sighting: Any, _: bytes) -> Any:
        holder_of_key = sighting.group or sighting.attempt
        return decide(sighting, holder_of_key.fingerprint if holder_of_key else b"")

    monkeypatch.setattr(follower_module, "decide", decide_blindly)


def forget_that_a_group_may_be_there(world: World, _: pytest.MonkeyPatch) -> None:
    """Claim the key of a group whose attempt was swept."""
    guard = "NOT EXISTS (SELECT FROM chat_group WHERE chat_group.group_id = claim.group_id)\n          AND "
    world.run(change_routine(world.connection, "claim_attempts_1", guard))


def forget_whose_memory_it_is(_: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer from memory every request with the key."""
    monkeypatch.setattr(
        "stretto.creation.creator.document_for",
        lambda success, _: document_for(
            success, success[FINGERPRINT_BYTES : 2 * FINGERPRINT_BYTES]
        ),
    )


def forget_how_old_it_is(_: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have whatever is too old start an attempt."""

    async def require_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(follower_module.Follower, "require_attempt", require_nothing)


def forget_to_forget(_: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer from memory what was deleted."""
    monkeypatch.setattr("stretto.creation.creator.GroupCreator.forget_group", lambda *_: None)


def forget_the_dead(world: World, _: pytest.MonkeyPatch) -> None:
    """Leave no tombstone of a deleted group: the conversation takes its row along."""
    last = "    RETURN true;\nEND"
    gone = "    DELETE FROM chat_group WHERE group_id = id;\n"
    world.run(change_routine(world.connection, "delete_group_1", last, gone + last))


@pytest.mark.parametrize(
    "forget",
    [
        forget_to_forget,
        forget_the_dead,
        forget_how_old_it_is,
        forget_the_lease,
        forget_the_fingerprint,
        forget_that_a_group_may_be_there,
        forget_whose_memory_it_is,
    ],
    ids=lambda forget: forget.__name__,
)
def test_without_its_guard_an_order_is_found_that_goes_wrong(
    forget: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each guard is one that the machine misses."""
    forget(world, monkeypatch)
    quick = settings(PROFILE, phases=[Phase.generate], max_examples=200)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(seed(SEED)(machine_in(world)), settings=quick)


def claim_after_a_loss(machine: Machine) -> None:
    """Two leaders of one key, of which the first one's claim is gone: it must write nothing."""
    wish = Wish(UserId("alice"), IdempotencyKey("k"))
    machine.start()
    machine.fall_silent(0, wish, 0, "claimed")
    machine.truncate()
    machine.fall_silent(1, wish, 1, "claimed")
    machine.go_on(0)
    machine.the_database_is_as_the_model_says()
    machine.go_on(1)
    machine.the_database_is_as_the_model_says()


@pytest.mark.parametrize("is_fenced", [True, False])
def test_two_leaders_of_one_key_are_distinguished_by_their_claims(
    is_fenced: bool, world: World
) -> None:
    """An order too rare to be met by chance; without the fence the first one's group is made."""
    machine = machine_in(world)()
    if not is_fenced:
        guard = "AND attempt.claim_token = write.claim_token"
        world.run(change_routine(world.connection, "lead_groups_4", guard))
    try:
        with nullcontext() if is_fenced else pytest.raises(AssertionError):
            claim_after_a_loss(machine)
    finally:
        machine.teardown()
