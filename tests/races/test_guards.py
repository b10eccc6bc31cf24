"""Each guard has a twin without it, in which the explorer finds the harm: so each is needed.

Several guards stand behind one another. That one has failed shows in what only the last line of
defence has stopped (the primary key, the trigger on settled attempts), or, where there is none
left, in a broken guarantee. What the guards are called elsewhere, and what they are here:

| guard | here |
|---|---|
| the token fence | `lead` and `fail` touch an attempt only if it carries their token |
| the row lock | they hold its row from the look at it to the commit; `reclaim` skips such a row |
| the fresh look after the lock | no statement of its own: the update re-checks the locked row |
| the sorted batch | `GroupWriter.run_once` sorts by id |
| one key per batch | `GroupCreator` has one flight per key, registered before it can run |
| the primary key | of `chat_group` |
| "unknown is not failed" | `LeadWriter` leads again with the same token and never fails it |
| "held is not failed" | what another transaction holds is left to its request to follow |
| the tombstone | `delete_group` empties the row, the sweep of a failed attempt leaves one |
| the known row | `claim` and `lead` leave out a key whose row is in `chat_group` |
| what is deleted is forgotten | `GroupDeleter` and `DeletionWatch` have the creator forget the key |
| a flight that is older than that | leaves nothing to remember, and is joined by no further request |
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pytest

from races import faults
from races.explorer import AnomalyError, explore
from races.scenario import OTHER, Deletion, Request, Scenario
from stretto.creation.attempt import Decision, Reclaim, Sighting, Wait, decide
from stretto.creation.batch import BatchWriter
from stretto.creation.creator import GroupCreator
from stretto.creation.flight import Answer
from stretto.creation.leads import LeadWriter
from stretto.creation.ports import SettledAsFailed
from stretto.creation.writer import GroupWriter
from stretto.runtime.mailbox import Mailbox
from stretto.store_errors import OutcomeUnknown
from support.memory_store.database import Guards

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.creation.age import OutOfRange
    from stretto.domain import NewGroup
    from stretto.runtime.rounds import Envelope

Message = TypeVar("Message")
Reply = TypeVar("Reply")

TWO_PROCESSES: Final = (Request(0), Request(1))
TWO_BODIES: Final = (Request(0), Request(1, body=OTHER))
TWO_KEYS: Final = (Request(0, "a"), Request(0, "b"), Request(1, "b"), Request(1, "a"))


class Unsorted(list[Any]):
    """A batch that stays as it came."""

    def sort(self, **_: object) -> None:
        """Leave it."""


class UnsortedMailbox(Mailbox[Message, Reply]):
    """Hands out batches that cannot be sorted."""

    async def take(self, *bounds: Any) -> list[Envelope[Message, Reply]]:
        """Return a batch as it came."""
        return Unsorted(await super().take(*bounds))


class CreatorWithoutFlights(GroupCreator):
    """Starts a flight for every request."""

    async def _create(
        self,
        id_: bytes,
        known: bytes | None,
        new_group: NewGroup,
        body_digest: bytes,
        wait_seconds: float,
        *,
        out_of_range: OutOfRange | None = None,
    ) -> Answer:
        flight = self._flights.start(id_, new_group, new_group.fingerprint(), body_digest)
        return Answer(await flight.wait(wait_seconds), flight.status)


class HastyBatches(BatchWriter):
    """Takes an unknown outcome for a failure."""

    async def _write_at_once(self, batch: Sequence[Any], started: float) -> int:
        try:
            return await super()._write_at_once(batch, started)
        except OutcomeUnknown:
            for request in batch:
                request.answer(SettledAsFailed(faults.VETO))
            return 0


class HastyLeads(LeadWriter):
    """Takes an unknown outcome for a failure."""

    async def lead(self, batch: Sequence[Any], *failed: Any) -> int:
        try:
            return await super().lead(batch, *failed)
        except OutcomeUnknown:
            for request in batch:
                request.answer(SettledAsFailed(faults.VETO))
            return 0

    async def _lead_persistently(self, batch: Sequence[Any], retried: Any, **options: Any) -> int:
        return await super()._lead_persistently(batch, (), **options)


class BlindLeads(LeadWriter):
    """Takes what another transaction holds for a failure."""

    async def unlocked(self, batch: Sequence[Any]) -> set[UUID]:
        for request in batch:
            request.answer(SettledAsFailed(faults.VETO))
        return set()


class HastyWriter(GroupWriter):
    """Writes such batches."""

    def __init__(self, baton: Any, store: Any, observe: Any, **options: Any) -> None:
        super().__init__(baton, store, observe, **options)
        parts = store, baton.mailbox, options["breakers"], observe
        self._batches = HastyBatches(*parts)
        self._batches._leads = HastyLeads(*parts)


class BlindWriter(GroupWriter):
    """Writes such batches."""

    def __init__(self, baton: Any, store: Any, observe: Any, **options: Any) -> None:
        super().__init__(baton, store, observe, **options)
        self._batches._leads = BlindLeads(store, baton.mailbox, options["breakers"], observe)


class CreatorThatRemembers(GroupCreator):
    """Answers from memory what it has deleted."""

    def forget_group(self, _: bytes) -> None:
        pass


class CreatorThatRemembersFlights(GroupCreator):
    """Remembers what a flight has found, also where it was deleted meanwhile."""

    def forget_group(self, id_: bytes) -> None:
        self._memory.drop(id_)


LEASE_ENDS: Final = Scenario(requests=TWO_PROCESSES)
DELETED: Final = Scenario(requests=(Request(), Request()), deletions=(Deletion(),), leases_max=0)


@pytest.mark.parametrize(
    ("expected", "scenario"),
    [
        pytest.param(
            "a group under another body's fingerprint",
            Scenario(
                requests=TWO_BODIES,
                faults=("lost",),
                faults_max=1,
                guards=Guards(token_fence=False),
            ),
            id="token fence",
        ),
        pytest.param(
            "a group under another body's fingerprint",
            Scenario(
                requests=TWO_BODIES,
                faults=("lost",),
                faults_max=1,
                guards=Guards(token_fence=False),
                in_steps=(1,),
            ),
            id="token fence, beside another version",
        ),
        pytest.param(
            "the primary key stopped a second group",
            replace(LEASE_ENDS, guards=Guards(row_lock=False)),
            id="row lock",
        ),
        pytest.param(
            "the trigger stopped the change of a settled attempt",
            replace(LEASE_ENDS, guards=Guards(fresh_look=False)),
            id="fresh look",
        ),
        pytest.param(
            "G1: two groups of one key",
            replace(LEASE_ENDS, guards=Guards(row_lock=False, primary_key=False)),
            id="primary key",
        ),
        pytest.param(
            "deadlock",
            Scenario(requests=TWO_KEYS, together=True, leases_max=0, mailbox=UnsortedMailbox),
            id="sorted batch",
        ),
        pytest.param(
            "a batch holds a key twice",
            Scenario(requests=(Request(), Request()), together=True, creator=CreatorWithoutFlights),
            id="one key per batch",
        ),
        pytest.param(
            "G4: answered failed, and the group exists",
            Scenario(requests=(Request(),), faults=("late",), faults_max=1, writer=HastyWriter),
            id="unknown is not failed",
        ),
        pytest.param(
            "G4: answered failed, and the group exists",
            Scenario(
                requests=(Request(),), faults=("cut", "locked"), faults_max=2, writer=BlindWriter
            ),
            id="held is not failed",
        ),
        pytest.param(
            "G1: another group of a key whose group was deleted",
            replace(DELETED, guards=Guards(tombstone=False)),
            id="tombstone",
        ),
        pytest.param(
            "G4",
            Scenario(
                requests=(Request(),),
                faults=("veto",),
                faults_max=1,
                sweeps_max=1,
                guards=Guards(tombstone=False),
            ),
            id="tombstone of a failed attempt",
        ),
        pytest.param(
            "the primary key stopped a second group",
            replace(DELETED, requests=TWO_PROCESSES, guards=Guards(known_row=False)),
            id="known row",
        ),
        pytest.param(
            "a group was deleted twice",
            replace(
                DELETED, deletions=(Deletion(), Deletion(None)), guards=Guards(fresh_look=False)
            ),
            id="fresh look of a deletion",
        ),
        pytest.param(
            "a process remembers a group that it knows to be deleted",
            replace(DELETED, creator=CreatorThatRemembers),
            id="what is deleted is forgotten",
        ),
        pytest.param(
            "a process remembers a group that it knows to be deleted",
            replace(DELETED, replies_late=True, creator=CreatorThatRemembersFlights),
            id="a flight leaves nothing",
        ),
    ],
)
def test_without_its_guard_a_schedule_goes_wrong(expected: str, scenario: Scenario) -> None:
    """The explorer finds it, and lists the steps; with the guard there is none."""
    with pytest.raises(AnomalyError) as found:
        explore(scenario)
    assert expected in found.value.fault
    whole = replace(
        scenario, guards=Guards(), creator=GroupCreator, writer=GroupWriter, mailbox=Mailbox
    )
    assert explore(whole).schedules


def test_without_reclaims_a_crash_leaves_its_key_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    """Liveness is judged too: safe and never answered is not good enough (G6)."""

    def only_wait(sighting: Sighting, fingerprint: bytes) -> Decision:
        decision = decide(sighting, fingerprint)
        return Wait() if isinstance(decision, Reclaim) else decision

    scenario = Scenario(requests=(Request(),), faults=("crash",), faults_max=1)
    assert explore(scenario).schedules
    monkeypatch.setattr("stretto.creation.follower.decide", only_wait)
    with pytest.raises(AnomalyError, match="a request is never answered"):
        explore(scenario)


def test_without_its_decision_a_tombstone_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim and lead leave the key out all the same: nothing is made, and nothing answered."""

    def decide_without(sighting: Sighting, fingerprint: bytes) -> Decision:
        return decide(replace(sighting, tombstone=None), fingerprint)

    scenario = replace(DELETED, requests=(Request(),))
    assert explore(scenario).schedules
    monkeypatch.setattr("stretto.creation.follower.decide", decide_without)
    with pytest.raises(AnomalyError, match="a retry was answered"):
        explore(scenario)


def test_a_flight_that_is_joined_after_the_deletion_answers_with_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its own request came before the deletion, the one that joins came after it."""
    scenario = replace(DELETED, replies_late=True)
    assert explore(scenario).schedules
    monkeypatch.setattr("stretto.creation.flight.Flight.may_be_joined", True)
    with pytest.raises(AnomalyError, match="answered with a group that was known to be deleted"):
        explore(scenario)
