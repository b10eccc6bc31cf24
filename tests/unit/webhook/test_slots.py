"""Requests that are slow, or hang, and those of other owners beside them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING
from unittest.mock import patch
from uuid import UUID

import pytest

from stretto.events.log import CommittedEvent
from stretto.observations import WebhookTried
from stretto.targets.delivery import Delivery
from stretto.webhook.reach import UNREACHED_MAX
from stretto.webhook.rules import (
    JITTER_RATIO_MAX,
    RETRY_SECONDS,
    Answered,
    NotConnected,
    Unanswered,
)
from stretto.webhook.sender import POLL_SECONDS, WebhookSender
from stretto.webhook.slots import (
    SCARCE_SECONDS_MIN,
    SLOW_MAX,
    SLOW_OWNERS_MAX,
    SLOW_SECONDS,
    SLOW_TURN_OWNERS,
    UNDER_WAY_MAX,
    USUAL_OWNERS_MAX,
    USUAL_OWNERS_MIN,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping

    from stretto.observations import Observation
    from stretto.targets.delivery import Move, PutOff, ReaderTarget
    from stretto.webhook.rules import Answer


class Stage:
    """A store, an endpoint that answers when the test says so, and the clock of a sender of both."""

    connections_opened = 0
    has_marked = False
    is_disabled = False
    target: ReaderTarget | None = None
    move: Move | None = None

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Delivery] = []
        self.owners: dict[UUID, str] = {}
        self.asked: dict[UUID, asyncio.Future[Answer]] = {}
        self.sent: list[UUID] = []
        self.put_off: list[PutOff] = []
        self.observed: list[Observation] = []
        self.sender = WebhookSender(
            self, self, self.observed.append, clock_seconds=lambda: self.now
        )

    def wait(self, *owners: str) -> None:
        """Let a delivery of each be due."""
        for owner in owners:
            event_id = UUID(int=len(self.owners) + 1)
            self.owners[event_id] = owner
            self.due.append(Delivery(CommittedEvent(event_id, (), b"{}"), 9, owner))

    async def turn(self, seconds: float = 0.0) -> None:
        """Take a turn so many seconds later, and another to settle what it has cut short."""
        self.now += seconds
        for _ in range(2):
            await self.sender.run_once()
            for _ in range(5):
                await asyncio.sleep(0)

    async def answer(self, *owners: str) -> None:
        """Accept the events of these owners that are under way, and settle them."""
        for event_id, asked in self.asked.items():
            if self.owners[event_id] in owners and not asked.done():
                asked.set_result(Answered(204))
        await self.turn()

    async def answer_after(self, seconds: float, *owners: str) -> None:
        """Let an event of each be due, and accept them so many seconds after they were sent."""
        self.wait(*owners)
        await self.turn()
        self.now += seconds
        await self.answer(*owners)

    def under_way(self) -> Counter[str]:
        """Return the owners whose requests have no answer yet."""
        return Counter(self.owners[each] for each, asked in self.asked.items() if not asked.done())

    # The store.

    async def open(self) -> None:
        """Nothing to do."""

    async def enrol(self, events_max: int) -> int:
        """All that there is waits already."""
        return 0

    async def take(
        self,
        deliveries_max: int,
        lease_seconds: float,
        under_way: Mapping[str, int] | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> list[Delivery]:
        """Return the first of these owners."""
        taken = [
            each
            for each in self.due
            if (only is None or each.owner_id in only) and each.owner_id not in without
        ][:deliveries_max]
        self.due = [each for each in self.due if each not in taken]
        return taken

    async def count_due(self, deliveries_max: int) -> int:
        """What is due here does not matter."""
        return 0

    async def oldest_seconds(self) -> float | None:
        """None waits for long."""
        return None

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> list[UUID]:
        """Note it."""
        self.sent += sent
        self.put_off += put_off
        return []

    async def serve(self, seen: ReaderTarget) -> None:
        """Not needed here."""
        raise AssertionError

    async def take_over(self, seen: ReaderTarget) -> None:
        """Not needed here."""
        raise AssertionError

    async def move_again(self, lost: Move, seen: ReaderTarget) -> None:
        """Not needed here."""
        raise AssertionError

    async def pause(self, seconds: float) -> None:
        """Not asked for here."""
        raise AssertionError

    async def disable(self) -> bool:
        """Not asked for here."""
        raise AssertionError

    # The endpoint.

    @property
    def url_digest(self) -> bytes:
        """Not asked for here."""
        raise AssertionError

    async def send(self, event_id: UUID, body: bytes, fields: Mapping[str, str]) -> Answer:
        """Answer when the test says so."""
        self.asked[event_id] = asyncio.get_running_loop().create_future()
        return await self.asked[event_id]

    async def is_blocked(self) -> bool:
        """Never."""
        return False


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Nothing waits yet."""
    stage = Stage()
    yield stage
    stage.sender.stop()
    with patch("stretto.webhook.sender.STOP_SECONDS", 0):
        await stage.sender.close()


def names(prefix: str, count: int) -> list[str]:
    """Return the names of so many owners."""
    return [f"{prefix}{number}" for number in range(count)]


async def test_requests_that_hang_leave_their_slots_to_others(stage: Stage) -> None:
    """They go on: an endpoint may take its time."""
    hanging = names("hanging", UNDER_WAY_MAX)
    stage.wait(*hanging, "other")
    await stage.turn()
    assert Counter(hanging) == stage.under_way()
    await stage.turn(SLOW_SECONDS)
    assert Counter([*hanging, "other"]) == stage.under_way()
    await stage.answer(*hanging)
    assert len(hanging) == len(stage.sent)


async def test_beyond_the_slow_slots_requests_are_cut_short_and_put_off_without_a_try(
    stage: Stage,
) -> None:
    """Here each would be the last one: they get all of their time once a slow slot is free."""
    stage.wait(*(hanging := names("hanging", SLOW_MAX)))
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    stage.wait(*(later := names("later", UNDER_WAY_MAX)))
    await stage.turn()
    assert [] == stage.put_off
    stage.wait("other")
    await stage.turn(SLOW_SECONDS)
    assert Counter([*hanging, "other"]) == Counter(
        {owner: count for owner, count in stage.under_way().items() if owner not in later}
    )
    assert [(False, None)] * UNDER_WAY_MAX == [
        (each.is_try, each.dead_reason) for each in stage.put_off
    ]
    for each in stage.put_off:
        assert RETRY_SECONDS[0] <= each.seconds <= RETRY_SECONDS[0] * (1 + JITTER_RATIO_MAX)
    tried = [each for each in stage.observed if isinstance(each, WebhookTried)]
    assert [WebhookTried("cut")] * UNDER_WAY_MAX == tried
    # Their next tries wait for a slow slot, and are not cut short there.
    stage.wait(later[0])
    await stage.turn()
    assert [later[0]] == [each.owner_id for each in stage.due]
    await stage.answer(hanging[0])
    await stage.turn(10 * SLOW_SECONDS)
    assert [] == stage.due
    assert UNDER_WAY_MAX == len(stage.put_off)
    await stage.answer(later[0])
    assert UUID(int=len(stage.owners)) == stage.sent[-1]


async def test_of_requests_that_hang_together_as_many_go_on_as_there_are_slow_slots(
    stage: Stage,
) -> None:
    """The others are cut short."""
    stage.wait(*names("hanging", SLOW_MAX // 2))
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    stage.wait(*names("later", UNDER_WAY_MAX))
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    assert SLOW_MAX == stage.under_way().total()
    assert SLOW_MAX // 2 + UNDER_WAY_MAX - SLOW_MAX == len(stage.put_off)


async def test_where_slots_are_left_no_request_is_cut_short(stage: Stage) -> None:
    """One owner alone leaves enough of them."""
    stage.wait(*names("hanging", SLOW_MAX))
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    stage.wait(*["one"] * (UNDER_WAY_MAX - UNDER_WAY_MAX // 3))
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    assert [] == stage.put_off


async def test_an_owner_waits_for_slow_slots_until_an_answer_is_quick(stage: Stage) -> None:
    """A slow answer, or none, does not change that."""
    stage.wait(*(slow := names("slow", SLOW_MAX)))
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    stage.wait("slow0", "slow1")
    await stage.turn()
    assert ["slow0", "slow1"] == [each.owner_id for each in stage.due]
    await stage.answer("slow0")
    # Its next request has the slow slot that it has left.
    assert ["slow1"] == [each.owner_id for each in stage.due]
    await stage.answer("slow0")
    stage.wait("slow0")
    await stage.turn()
    assert Counter({"slow0": 1, "slow1": 2, **dict.fromkeys(slow[2:], 1)}) == stage.under_way()
    stage.wait("slow0")
    await stage.turn()
    assert [] == stage.due


async def test_a_request_that_fails_at_its_time_limit_makes_its_owner_slow(stage: Stage) -> None:
    """Also if no turn has met it while it was under way."""
    stage.wait("slow")
    await stage.turn()
    stage.now += SLOW_SECONDS
    stage.asked[UUID(int=1)].set_result(Unanswered("timeout"))
    await asyncio.wait(stage.sender._under_way)
    await stage.turn()
    assert ("slow",) == stage.sender._slots.slow_owners


async def test_of_the_slow_owners_the_one_that_has_waited_longest_comes_first(stage: Stage) -> None:
    """One that has got a slow slot waits behind the others, and so do those before it."""
    stage.wait("a", "b", "c", "d")
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    stage.wait("b")
    await stage.sender.run_once()
    assert ("c", "d", "a", "b") == stage.sender._slots.slow_owners


async def test_slow_owners_that_have_nothing_due_hold_up_no_other(stage: Stage) -> None:
    """A turn asks for some of them, the next one for others."""
    with (
        patch("stretto.webhook.slots.UNDER_WAY_MAX", 2 * SLOW_TURN_OWNERS),
        patch("stretto.webhook.slots.SLOW_MAX", 4 * SLOW_TURN_OWNERS),
    ):
        stage.wait(*(slow := names("slow", SLOW_TURN_OWNERS + 1)))
        await stage.turn()
        await stage.turn(SLOW_SECONDS)
        stage.wait(*slow)
        stage.due = stage.due[-1:]
        await stage.turn()
    assert [] == stage.due


async def test_as_many_slow_owners_are_known_as_have_waited_least(stage: Stage) -> None:
    """A process that runs for months meets any number of them."""
    with (
        patch("stretto.webhook.slots.UNDER_WAY_MAX", SLOW_OWNERS_MAX + 1),
        patch("stretto.webhook.slots.SLOW_MAX", SLOW_OWNERS_MAX + 1),
    ):
        stage.wait(*names("slow", SLOW_OWNERS_MAX + 1))
        for _ in range(SLOW_OWNERS_MAX // UNDER_WAY_MAX + 1):
            await stage.turn()
        await stage.turn(SLOW_SECONDS)
        slow_owners = stage.sender._slots.slow_owners
    assert (SLOW_OWNERS_MAX, "slow1") == (len(slow_owners), slow_owners[0])


async def test_where_answers_are_quick_and_slots_scarce_a_request_is_slow_sooner(
    stage: Stage,
) -> None:
    """Owners whose requests hang are met the sooner."""
    await stage.answer_after(0.0, *names("quick", USUAL_OWNERS_MIN))
    stage.wait(*(hanging := names("hanging", UNDER_WAY_MAX)), "other")
    await stage.turn()
    await stage.turn(SCARCE_SECONDS_MIN)
    assert Counter([*hanging, "other"]) == stage.under_way()


async def test_where_slots_are_left_no_request_is_slow_sooner(stage: Stage) -> None:
    """It may take its time."""
    await stage.answer_after(0.0, *names("quick", USUAL_OWNERS_MIN))
    stage.wait("other")
    await stage.turn()
    await stage.turn(SCARCE_SECONDS_MIN)
    assert () == stage.sender._slots.slow_owners


@pytest.mark.parametrize(
    ("usual_seconds", "slow_after_seconds"), [(0.125, 1.25), (1.0, SLOW_SECONDS), (4.0, 6.0)]
)
async def test_where_answers_take_long_no_request_is_slow_before_where_slots_are_scarce(
    usual_seconds: float, slow_after_seconds: float, stage: Stage
) -> None:
    """Most would be cut short in vain."""
    for _ in range(2):
        await stage.answer_after(usual_seconds, *names("usual", USUAL_OWNERS_MIN))
    stage.wait(*names("a", UNDER_WAY_MAX))
    await stage.turn()
    await stage.turn(slow_after_seconds - 0.1)
    assert () == stage.sender._slots.slow_owners
    await stage.turn(0.1)
    assert UNDER_WAY_MAX == len(stage.sender._slots.slow_owners)


@pytest.mark.parametrize("quick_owners", [0, 1])
async def test_the_slow_answers_of_one_owner_do_not_tell_how_long_one_usually_takes(
    quick_owners: int, stage: Stage
) -> None:
    """However many there are. Of the answers of two owners the quicker ones count."""
    await stage.answer_after(0.0, *names("quick", quick_owners))
    for _ in range(USUAL_OWNERS_MAX):
        await stage.answer_after(5.0, "slow")
    stage.wait(*(hanging := names("hanging", UNDER_WAY_MAX)), "other")
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    assert Counter([*hanging, "other"]) == stage.under_way()


async def test_an_owner_has_one_voice_however_many_answers_it_gets(stage: Stage) -> None:
    """Else its slow answers alone would let the requests of others hang for longer."""
    await stage.answer_after(0.0, *names("quick", USUAL_OWNERS_MIN))
    for _ in range(USUAL_OWNERS_MAX):
        await stage.answer_after(5.0, "slow")
    assert ["slow"] == list(stage.sender._slots.slow_owners)
    stage.wait("hanging")
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    assert ["slow", "hanging"] == list(stage.sender._slots.slow_owners)


async def test_only_the_newest_answers_tell_how_long_one_usually_takes(stage: Stage) -> None:
    """An endpoint that was quick for months may have become slow, and the other way round."""
    await stage.answer_after(0.0, *names("before", 2 * USUAL_OWNERS_MAX))
    now = names("now", USUAL_OWNERS_MAX)
    await stage.answer_after(5.0, *now)
    assert set(now) > set(stage.sender._slots.slow_owners)
    await stage.answer_after(5.0, *now)
    assert () == stage.sender._slots.slow_owners


async def test_an_endpoint_that_is_slow_for_all_has_all_the_time_that_it_usually_takes(
    stage: Stage,
) -> None:
    """It would only do their work twice. A request that hangs leaves its slot all the same."""
    before = names("before", USUAL_OWNERS_MIN)
    await stage.answer_after(5.0, *before)
    # The first of them were slow for all that was known then.
    assert before[:-1] == list(stage.sender._slots.slow_owners)
    await stage.answer_after(5.0, *before)
    assert () == stage.sender._slots.slow_owners
    stage.wait(*(hanging := names("hanging", UNDER_WAY_MAX)), "other")
    await stage.turn()
    await stage.turn(5.0)
    assert (Counter(hanging), []) == (stage.under_way(), stage.put_off)
    await stage.turn(5.0)
    assert Counter([*hanging, "other"]) == stage.under_way()


async def test_an_endpoint_that_cannot_be_reached_is_tried_again_with_any_owners_event(
    stage: Stage,
) -> None:
    """Each owner's connection has taken long, or was cut short."""
    stage.wait(*(unreached := names("unreached", SLOW_MAX)))
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    stage.wait(*names("cut", UNDER_WAY_MAX))
    await stage.turn()
    stage.now += SLOW_SECONDS
    for event_id, asked in stage.asked.items():
        if stage.owners[event_id] in unreached:
            asked.set_result(NotConnected("timed out"))
    # Else those that are cut short would take the slow slots that have come free.
    with patch("stretto.webhook.slots.SLOW_MAX", 0):
        await stage.turn()
    assert UNDER_WAY_MAX + SLOW_MAX == len(stage.put_off)
    stage.wait("cut0", "cut1")
    await stage.turn(POLL_SECONDS)
    assert Counter({"cut0": 1}) == stage.under_way()


async def test_slow_owners_are_the_last_to_try_an_endpoint_that_was_away(stage: Stage) -> None:
    """A request that hangs does not show that the endpoint is back."""
    stage.wait("slow")
    await stage.turn()
    await stage.turn(SLOW_SECONDS)
    stage.sender._reach._unreached = UNREACHED_MAX
    stage.wait("slow", "other")
    await stage.turn(POLL_SECONDS)
    assert Counter({"slow": 1, "other": 1}) == stage.under_way()
    await stage.turn(POLL_SECONDS)
    assert Counter({"slow": 2, "other": 1}) == stage.under_way()
