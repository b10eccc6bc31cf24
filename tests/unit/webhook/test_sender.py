from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import patch
from uuid import UUID

import pytest

from stretto.events.log import CommittedEvent
from stretto.events.place import PositionLost
from stretto.observations import (
    ActorCrashed,
    ActorRestarted,
    PlaceLost,
    TargetFailed,
    TargetRecovered,
    UpkeepFailed,
    WebhookBlocked,
    WebhookTried,
)
from stretto.runtime.runner import Run
from stretto.store_errors import Unreachable
from stretto.targets.delivery import Delivery, Move, ReaderTarget
from stretto.targets.lag import LOOK_SECONDS
from stretto.telemetry.tracing import Tracing
from stretto.webhook.reach import UNREACHED_MAX
from stretto.webhook.rules import Answered, NotCalled, NotConnected, Unanswered
from stretto.webhook.sender import (
    BUSY_ENROL_SECONDS,
    DUE_MAX,
    ENROLLED_MAX,
    POLL_SECONDS,
    WebhookSender,
)
from stretto.webhook.slots import UNDER_WAY_MAX
from support.traces import PARENT_ID, SAMPLED, TRACE_ID, Spans

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stretto.observations import Observation
    from stretto.targets.delivery import PutOff
    from stretto.webhook.rules import Answer


def delivery_of(number: int) -> Delivery:
    """Return the first try of an event with that number."""
    return Delivery(CommittedEvent(UUID(int=number), (), b"{}"), 0, f"owner {number % 2}")


ONE = delivery_of(1)
DEADLINE_SECONDS = 30


class ScriptedStore:
    """A store with one delivery, whose statements fail as the test says."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.due = [ONE]
        self.sent: list[UUID] = []
        self.others: list[PutOff] = []
        self.is_disabled = False
        self.has_marked = False
        self.target: ReaderTarget | None = ReaderTarget(b"", "", is_ours=True, is_ahead=False)
        self.move: Move | None = None
        self.settled = asyncio.Event()

    def _fail(self, name: str) -> None:
        if error := self.errors.pop(name, None):
            raise error

    async def open(self) -> None:
        self._fail("open")

    async def enrol(self, events_max: int) -> int:
        self._fail("enrol")
        return 0

    async def take(
        self,
        deliveries_max: int,
        lease_seconds: float,
        under_way: Mapping[str, int] | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> list[Delivery]:
        self._fail("take")
        taken, self.due = self.due, []
        return taken

    async def count_due(self, deliveries_max: int) -> int:
        raise AssertionError

    async def oldest_seconds(self) -> float | None:
        return None

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> list[UUID]:
        self._fail("settle")
        self.sent += sent
        self.others += put_off
        self.settled.set()
        return [each.event_id for each in put_off if each.dead_reason is not None]

    async def serve(self, seen: ReaderTarget) -> None:
        raise AssertionError

    async def take_over(self, seen: ReaderTarget) -> None:
        raise AssertionError

    async def move_again(self, lost: Move, seen: ReaderTarget) -> None:
        raise AssertionError

    async def pause(self, seconds: float) -> None:
        raise AssertionError

    async def disable(self) -> bool:
        raise AssertionError


class ScriptedEndpoint:
    """Answers, or fails as an endpoint must not."""

    connections_opened = 0

    def __init__(self, answer: Answer | Exception) -> None:
        self.answer = answer

    @property
    def url_digest(self) -> bytes:
        raise AssertionError

    async def send(self, event_id: UUID, body: bytes, fields: Mapping[str, str]) -> Answer:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def is_blocked(self) -> bool:
        return False


async def test_a_place_that_was_swept_is_reported_once() -> None:
    """The next turn comes at once, and goes on where the log begins."""
    store, observed = ScriptedStore(enrol=PositionLost()), list["Observation"]()
    store.due = []
    sender = WebhookSender(store, ScriptedEndpoint(Answered(204)), observed.append)
    assert sender.pace is not None
    assert sender.pace.full == await sender.run_once()
    assert 0 == await sender.run_once()
    assert [PlaceLost("webhook")] == observed


@pytest.mark.parametrize(
    ("expected", "name", "error"),
    [
        ([UpkeepFailed], "open", Unreachable()),
        ([UpkeepFailed], "take", Unreachable()),
        ([ActorCrashed, ActorRestarted], "take", ZeroDivisionError()),
        ([UpkeepFailed], "settle", Unreachable()),
        ([ActorCrashed, ActorRestarted], "settle", ZeroDivisionError()),
    ],
)
async def test_no_error_of_the_store_ends_the_sending(
    expected: list[type[Observation]], name: str, error: Exception
) -> None:
    """It is reported, and what was answered is settled at a later turn, and counted once."""
    store, observed = ScriptedStore(**{name: error}), list["Observation"]()
    sender = WebhookSender(store, ScriptedEndpoint(Answered(204)), observed.append)
    running = asyncio.create_task(Run(sender, observed.append).turns())
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.settled.wait()
        sender.stop()
        await running
    assert [ONE.event.event_id] == store.sent
    assert [*expected, WebhookTried] == [type(event) for event in observed]


async def test_a_request_whose_task_a_host_has_cancelled_has_failed() -> None:
    """It is tried again; without that, no turn would ever end well."""
    store, observed = ScriptedStore(), list["Observation"]()
    sender = WebhookSender(store, ScriptedEndpoint(Answered(204)), observed.append)
    await sender.run_once()
    (task,) = sender._under_way
    task.cancel()
    await sender.answered()
    await sender.run_once()
    (put,) = store.others
    assert (ONE.event.event_id, True, None) == (put.event_id, put.is_try, put.dead_reason)
    assert [WebhookTried, TargetFailed] == [type(event) for event in observed]


async def test_a_bug_in_the_sending_fails_the_delivery_alone() -> None:
    """It is reported, and counts as a try: it must not come again and again."""
    store, observed = ScriptedStore(), list["Observation"]()
    sender = WebhookSender(store, ScriptedEndpoint(ZeroDivisionError()), observed.append)
    await sender.run_once()
    await sender.answered()
    await sender.run_once()
    (put,) = store.others
    assert (ONE.event.event_id, True) == (put.event_id, put.is_try)
    assert [ActorCrashed, WebhookTried, TargetFailed] == [type(event) for event in observed]


async def test_the_first_failure_is_reported_with_its_cause_and_so_is_the_recovery() -> None:
    """Not only the dead letter, ten tries later."""
    store, observed = ScriptedStore(), list["Observation"]()
    endpoint = ScriptedEndpoint(Answered(204))
    sender = WebhookSender(store, endpoint, observed.append)
    refused = Unanswered("connection refused")
    answers: list[Answer] = [Answered(500), refused, Answered(429, 7.0), Answered(204)]
    with patch.object(store, "pause", FullStore().pause):
        for answer in answers:
            store.due, endpoint.answer = [ONE], answer
            await sender.run_once()
            await sender.answered()
            await sender.run_once()
    assert [
        TargetFailed("webhook", "answered 500"),
        TargetFailed("webhook", "connection refused"),
        TargetFailed("webhook", "asked for a pause of 7 s"),
        TargetRecovered("webhook"),
    ] == [each for each in observed if isinstance(each, (TargetFailed, TargetRecovered))]


class FullStore(ScriptedStore):
    """A store that always has as many deliveries as are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)
        self.enrolments = 0
        self.pauses: list[float] = []
        self.under_way: list[Mapping[str, int] | None] = []
        self.due_count = 0
        self.page = 1

    async def take(
        self,
        deliveries_max: int,
        lease_seconds: float,
        under_way: Mapping[str, int] | None = None,
        only: Collection[str] | None = None,
        without: Collection[str] = (),
    ) -> list[Delivery]:
        assert 0 < deliveries_max <= UNDER_WAY_MAX
        self.under_way.append(under_way)
        return [delivery_of(next(self.numbers)) for _ in range(deliveries_max)]

    async def enrol(self, events_max: int) -> int:
        self.enrolments += 1
        return self.page

    async def count_due(self, deliveries_max: int) -> int:
        assert deliveries_max == DUE_MAX
        return self.due_count

    async def oldest_seconds(self) -> float | None:
        return 1.0

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


class SilentEndpoint(ScriptedEndpoint):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__(Answered(204))
        self.asked: dict[UUID, asyncio.Future[Answer]] = {}

    async def send(self, event_id: UUID, body: bytes, fields: Mapping[str, str]) -> Answer:
        self.asked[event_id] = asyncio.get_running_loop().create_future()
        return await self.asked[event_id]


async def test_a_hanging_endpoint_has_a_bounded_number_of_requests() -> None:
    """However much is due; a place that comes free is filled."""
    store, endpoint = FullStore(), SilentEndpoint()
    sender = WebhookSender(store, endpoint, lambda _: None)
    for _ in range(3):
        await sender.run_once()
        await asyncio.sleep(0)
        assert UNDER_WAY_MAX == len(endpoint.asked) == len(sender._under_way)
    endpoint.asked[UUID(int=1)].set_result(Answered(204))
    endpoint.asked[UUID(int=2)].set_result(Answered(204))
    await asyncio.sleep(0)
    await sender.run_once()
    await asyncio.sleep(0)
    assert UNDER_WAY_MAX + 2 == len(endpoint.asked)
    assert UNDER_WAY_MAX == len(sender._under_way)
    assert [UUID(int=1), UUID(int=2)] == store.sent
    # The store decides by what each owner has under way.
    half = UNDER_WAY_MAX // 2
    assert [Counter(), {"owner 0": half - 1, "owner 1": half - 1}] == store.under_way
    await abandon(sender)


async def test_a_turn_that_has_met_wrong_marks_is_followed_by_another_at_once() -> None:
    """If it has taken nothing: else the answers lead to the next one. Also while nothing is enrolled."""
    store, endpoint = ScriptedStore(), SilentEndpoint()
    sender = WebhookSender(store, endpoint, lambda _: None)
    store.has_marked = True
    assert 0 == await sender.run_once()
    assert sender.pace is not None
    assert sender.pace.full == await sender.run_once()
    sender._enrolled_max = 0
    assert sender.pace.full == await sender.run_once()
    # A turn that takes nothing for want of room says nothing of what is due.
    sender._reach._unreached, sender._reach._tried_at = UNREACHED_MAX, float("inf")
    assert 0 == await sender.run_once()
    sender._reach._unreached = 0
    store.has_marked = False
    assert 0 == await sender.run_once()
    await abandon(sender)


async def test_an_endpoint_that_cannot_be_reached_is_tried_with_one_event_at_a_time() -> None:
    """Another process may reach it: it must find the events due. None of them counts a try."""
    store, endpoint, now = FullStore(), SilentEndpoint(), 0.0
    sender = WebhookSender(store, endpoint, lambda _: None, clock_seconds=lambda: now)

    async def answer(count: int, answer: Answer) -> int:
        """Answer the first requests under way, take a turn, and return how many there are."""
        pending = [each for each in endpoint.asked.values() if not each.done()]
        for each in pending[:count]:
            each.set_result(answer)
        await asyncio.sleep(0)
        await sender.run_once()
        await asyncio.sleep(0)
        return sum(not each.done() for each in endpoint.asked.values())

    refused = NotConnected("Connection refused")
    assert UNDER_WAY_MAX == await answer(0, refused)
    assert UNDER_WAY_MAX == await answer(UNREACHED_MAX - 1, refused)
    # Whatever it answers: it was reached.
    assert UNDER_WAY_MAX == await answer(1, Answered(500))
    assert UNDER_WAY_MAX == await answer(UNREACHED_MAX - 1, refused)
    assert 0 == await answer(UNDER_WAY_MAX, refused)
    now += POLL_SECONDS
    assert 1 == await answer(0, refused)
    now += POLL_SECONDS / 2
    assert 1 == await answer(0, refused)
    # Others need time to find the event due, however long its connection took.
    assert 0 == await answer(1, refused)
    now += POLL_SECONDS / 2
    assert 0 == await answer(0, refused)
    now += POLL_SECONDS / 2
    assert 1 == await answer(0, refused)
    assert UNDER_WAY_MAX == await answer(1, Answered(204))
    assert {True: 1, False: 2 * UNREACHED_MAX + UNDER_WAY_MAX - 1} == Counter(
        put.is_try for put in store.others
    )
    await abandon(sender)


async def test_an_endpoint_that_could_not_be_reached_is_tried_beside_requests_that_hang() -> None:
    """Once a second, while a slot is free: what has hung since before may hang for all of its time."""
    store, endpoint, now = FullStore(), SilentEndpoint(), 0.0
    sender = WebhookSender(store, endpoint, lambda _: None, clock_seconds=lambda: now)

    async def turn(seconds: float) -> int:
        """Take a turn so many seconds later; return how many requests are under way."""
        nonlocal now
        now += seconds
        await sender.run_once()
        await asyncio.sleep(0)
        return sum(not each.done() for each in endpoint.asked.values())

    with patch("stretto.webhook.slots.SLOW_SECONDS", 3600):
        await turn(0)
        for asked in list(endpoint.asked.values())[: UNREACHED_MAX + 1]:
            asked.set_result(NotConnected("Connection refused"))
        await asyncio.sleep(0)
        hanging = UNDER_WAY_MAX - UNREACHED_MAX - 1
        assert hanging == await turn(0)
        assert [hanging + 1, hanging + 1, hanging + 2] == [
            await turn(POLL_SECONDS),
            await turn(POLL_SECONDS / 2),
            await turn(POLL_SECONDS / 2),
        ]
    await abandon(sender)


async def test_no_endpoint_is_tried_again_before_a_slot_is_free() -> None:
    """Requests under way have a bound also then."""
    store, endpoint, now = FullStore(), SilentEndpoint(), 0.0
    sender = WebhookSender(store, endpoint, lambda _: None, clock_seconds=lambda: now)
    await sender.run_once()
    sender._reach._unreached = UNREACHED_MAX
    now += POLL_SECONDS
    await sender.run_once()
    assert UNDER_WAY_MAX == len(sender._under_way)
    await abandon(sender)


async def abandon(sender: WebhookSender) -> None:
    """Stop a sender whose requests have no answer."""
    sender.stop()
    with patch("stretto.webhook.sender.STOP_SECONDS", 0):
        await sender.close()


async def test_events_are_enrolled_while_slots_are_taken_until_many_are_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next may be another owner's; but the deliveries must not become a copy of the whole log."""
    monkeypatch.setattr("stretto.webhook.slots.SLOW_SECONDS", 3600)
    store, now = FullStore(), 0.0
    sender = WebhookSender(store, SilentEndpoint(), lambda _: None, clock_seconds=lambda: now)
    store.due_count = DUE_MAX - 2
    assert [0, 1, 0] == [await sender.run_once() for _ in range(3)]
    assert 2 == store.enrolments
    store.due_count = DUE_MAX
    now += LOOK_SECONDS
    assert [0, 0] == [await sender.run_once() for _ in range(2)]
    store.due_count = DUE_MAX - 1
    now += LOOK_SECONDS
    assert [1, 0] == [await sender.run_once() for _ in range(2)]
    assert 3 == store.enrolments
    await abandon(sender)


@pytest.mark.parametrize(("expected", "page"), [(1, ENROLLED_MAX - 1), (3, ENROLLED_MAX)])
async def test_a_busy_sender_enrols_all_there_is_and_then_looks_now_and_then(
    expected: int, page: int
) -> None:
    """Each answer leads to a turn: it must not cost three statements more, nor a turn for each page."""
    store, endpoint, now = FullStore(), SilentEndpoint(), 0.0
    store.page = page
    sender = WebhookSender(store, endpoint, lambda _: None, clock_seconds=lambda: now)
    for number in range(1, 4):
        assert 0 == await sender.run_once()
        await asyncio.sleep(0)
        endpoint.asked[UUID(int=number)].set_result(Answered(204))
        await asyncio.sleep(0)
    assert expected == store.enrolments
    now += BUSY_ENROL_SECONDS
    await sender.run_once()
    assert expected + 1 == store.enrolments
    await abandon(sender)


async def test_a_busy_sender_that_gets_no_answer_takes_a_turn_soon() -> None:
    """What it has enrolled may be another owner's."""
    sender = WebhookSender(FullStore(), SilentEndpoint(), lambda _: None)
    assert 0 == await sender.run_once()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await sender.woken.wait()
    await abandon(sender)


async def test_of_two_pauses_that_are_asked_for_the_longer_counts() -> None:
    """In whichever order the answers have come."""
    store, endpoint = FullStore(), SilentEndpoint()
    sender = WebhookSender(store, endpoint, lambda _: None)
    await sender.run_once()
    await asyncio.sleep(0)
    for number, seconds in enumerate((7.0, 100.0, 8.0), start=1):
        endpoint.asked[UUID(int=number)].set_result(Answered(429, seconds))
    await asyncio.sleep(0)
    await sender.run_once()
    assert [100.0] == store.pauses
    sender.stop()
    with patch("stretto.webhook.sender.STOP_SECONDS", 0):
        await sender.close()


async def test_an_answer_wakes_the_sender() -> None:
    """Or a fast endpoint would get its next event a second later."""
    store = ScriptedStore()
    with patch("stretto.webhook.sender.POLL_SECONDS", 3600):
        sender = WebhookSender(store, ScriptedEndpoint(Answered(204)), lambda _: None)
        running = asyncio.create_task(Run(sender, lambda _: None).turns())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await store.settled.wait()
            sender.stop()
            await running
    assert [ONE.event.event_id] == store.sent


async def test_a_wake_up_during_a_turn_leads_to_another_turn() -> None:
    """What it is about may be newer than what the turn has taken."""
    taken = asyncio.Event()

    class Store(ScriptedStore):
        async def take(
            self,
            deliveries_max: int,
            lease_seconds: float,
            under_way: Mapping[str, int] | None = None,
            only: Collection[str] | None = None,
            without: Collection[str] = (),
        ) -> list[Delivery]:
            if taken.is_set():
                return await super().take(deliveries_max, lease_seconds, under_way)
            taken.set()
            sender.wake()
            return []

    store = Store()
    with patch("stretto.webhook.sender.POLL_SECONDS", 3600):
        sender = WebhookSender(store, ScriptedEndpoint(Answered(204)), lambda _: None)
        running = asyncio.create_task(Run(sender, lambda _: None).turns())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await store.settled.wait()
            sender.stop()
            await running
    assert [ONE.event.event_id] == store.sent


async def test_an_address_that_is_not_called_is_reported_once_until_it_is_called() -> None:
    """At the start, and when it becomes so later; each try is counted, and costs one."""
    store, observed = FullStore(), list["Observation"]()
    endpoint = SilentEndpoint()
    sender = WebhookSender(store, endpoint, observed.append)
    sender._note_blocked(is_blocked=True)
    await sender.run_once()
    await asyncio.sleep(0)
    rounds: list[list[Answer]] = [
        [NotCalled(), NotCalled()],
        [NotCalled()],
        [Answered(204)],
        [NotCalled()],
    ]
    for answers in rounds:
        for future, answer in zip(
            [each for each in endpoint.asked.values() if not each.done()], answers, strict=False
        ):
            future.set_result(answer)
        await asyncio.sleep(0)
        await sender.run_once()
        await asyncio.sleep(0)
    blocked, tried = WebhookBlocked(), WebhookTried("blocked")
    sent = WebhookTried("sent"), TargetRecovered("webhook")
    assert [blocked, tried, tried, tried, *sent, tried, blocked] == observed
    assert [True] * 4 == [each.is_try for each in store.others]
    sender.stop()
    with patch("stretto.webhook.sender.STOP_SECONDS", 0):
        await sender.close()


@pytest.mark.parametrize("is_blocked", [True, False])
async def test_a_blocked_endpoint_is_reported_at_the_start(is_blocked: bool) -> None:
    """Before there is any event."""
    store, observed = ScriptedStore(), list["Observation"]()
    store.due = []
    endpoint = ScriptedEndpoint(Answered(204))
    sender = WebhookSender(store, endpoint, observed.append)
    looked = asyncio.Event()

    async def look() -> bool:
        looked.set()
        return is_blocked

    with patch.object(endpoint, "is_blocked", look):
        running = asyncio.create_task(Run(sender, lambda _: None).turns())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await looked.wait()
            sender.stop()
            await running
    assert [WebhookBlocked()] * is_blocked == observed


async def test_an_error_while_stopping_is_no_error() -> None:
    """The leases end by themselves."""
    store = ScriptedStore(settle=Unreachable())
    sender = WebhookSender(store, ScriptedEndpoint(Answered(204)), lambda _: None)
    await sender.run_once()
    sender.stop()
    async with asyncio.timeout(DEADLINE_SECONDS):
        await sender.close()
    assert [] == store.sent


class NotingEndpoint(ScriptedEndpoint):
    """Notes the fields that come beside an event."""

    def __init__(self, answer: Answer | Exception) -> None:
        super().__init__(answer)
        self.fields: list[Mapping[str, str]] = []

    async def send(self, event_id: UUID, body: bytes, fields: Mapping[str, str]) -> Answer:
        self.fields.append(fields)
        return await super().send(event_id, body, fields)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, Answered(204)),
        ("Failed", Answered(500)),
        ("Failed", ZeroDivisionError()),
    ],
)
async def test_a_receiver_goes_on_with_the_trace_of_the_sending(
    error: str | None, answer: Answer | Exception
) -> None:
    """The span says how it ended; of an event that has no trace, nothing is sent or recorded."""
    spans, endpoint = Spans(), NotingEndpoint(answer)
    store = ScriptedStore()
    event = replace(ONE.event, trace_context=f"{SAMPLED} vendor=1")
    store.due = [Delivery(event, 0), ONE]
    sender = WebhookSender(store, endpoint, lambda _: None, tracing=Tracing(spans.provider))
    await sender.run_once()
    await sender.answered()
    (span,) = spans.named("stretto.webhook")
    assert (TRACE_ID, PARENT_ID, error) == (
        span.trace_id,
        span.parent_id,
        span.attributes.get("error.type"),
    )
    own = {"traceparent": f"00-{TRACE_ID}-{span.id}-01", "tracestate": "vendor=1"}
    assert [own, {}] == endpoint.fields


async def test_a_trace_goes_on_where_this_process_records_none() -> None:
    """Another process has recorded the request."""
    endpoint, store = NotingEndpoint(Answered(204)), ScriptedStore()
    store.due = [Delivery(replace(ONE.event, trace_context=SAMPLED), 0)]
    sender = WebhookSender(store, endpoint, lambda _: None)
    await sender.run_once()
    await sender.answered()
    assert [{"traceparent": SAMPLED}] == endpoint.fields
