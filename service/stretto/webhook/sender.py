"""WebhookSender: sends committed events to the webhook's endpoint, each at least once (G8).

It reads the log itself, independently of the bus: neither can delay the other. Events are
enrolled as deliveries, leased, sent concurrently, and settled when their answers come. No
connection and no transaction is held while the endpoint works. If a sender dies, the others take
its deliveries after the lease.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, assert_never

from stretto.events.place import PositionLost
from stretto.observations import (
    ActorCrashed,
    EventDeadLettered,
    PlaceLost,
    WebhookBlocked,
    WebhookDisabled,
    WebhookTried,
)
from stretto.runtime.actor import Actor, Pace
from stretto.store_errors import StoreError
from stretto.targets.delivery import PutOff
from stretto.targets.health import TargetHealth
from stretto.targets.lag import Lag
from stretto.telemetry.trace_context import as_fields
from stretto.webhook.reach import Reach
from stretto.webhook.rules import (
    Blocked,
    Cut,
    Failed,
    Gone,
    Sent,
    Throttled,
    Unanswered,
    Unreached,
    judge,
    put_off,
)
from stretto.webhook.slots import FREE_MIN, SLOW_MAX, UNDER_WAY_MAX, Request, Slots
from stretto.webhook.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stretto.observations import Observer
    from stretto.telemetry.tracing import Tracing
    from stretto.webhook.ports import Endpoint, WebhookStore
    from stretto.webhook.rules import Answer, Verdict

# Events per statement: a few milliseconds of work, and 20 MB at most: each event may have a
# thousand recipients.
ENROLLED_MAX: Final = 100
# How often a busy sender looks into the log, once it has enrolled what was there, and which of its
# requests are slow.
BUSY_ENROL_SECONDS: Final = 0.1
# Nothing is enrolled while so many deliveries are due. Owners take turns with what is enrolled: who
# comes behind more events than these waits for them. They are a copy of so much of the log, 10 MB for
# small groups.
DUE_MAX: Final = 20_000
# Four times as long as a request may take.
LEASE_SECONDS: Final = 60.0
# How often to look without being woken: for deliveries put off, and for expired leases of others.
POLL_SECONDS: Final = 1.0
# How long a wake-up waits for more: a hundred turns a second are enough.
GATHER_SECONDS: Final = 0.01
# At the stop, requests under way get this long; those without an answer then are sent again.
STOP_SECONDS: Final = 1.0


class WebhookSender(Actor):
    """One of any number of senders that share the deliveries."""

    failures = (StoreError,)

    def __init__(
        self,
        store: WebhookStore,
        endpoint: Endpoint,
        observe: Observer,
        *,
        lease_seconds: float = LEASE_SECONDS,
        tracing: Tracing | None = None,
        clock_seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__("webhook")
        self.pace = Pace(seconds=POLL_SECONDS, gather_seconds=GATHER_SECONDS, full=1)
        self._store = store
        self._endpoint = endpoint
        self._observe = observe
        self._lease_seconds = lease_seconds
        self._tracing = tracing
        self._slots = Slots(clock_seconds)
        self._under_way = self._slots.requests
        self._is_open = False
        self._is_blocked: bool | None = None
        """None before the first turn: not known yet."""
        self._enrolled_max = DUE_MAX
        """How many events may be enrolled until it is counted again what is due."""
        self._reach = Reach(endpoint, clock_seconds, try_seconds=POLL_SECONDS)
        self._looks_on = False
        """Whether the last turn has taken nothing, and others may be due behind those that it met."""
        self._clock_seconds = clock_seconds
        self._enrol_due_at = clock_seconds()
        self._next_look: asyncio.TimerHandle | None = None
        self.lag = Lag(store.oldest_seconds, clock_seconds)
        self._target = Target(store, observe, clock_seconds)
        self._health = TargetHealth(self.name, observe)

    @property
    def is_disabled(self) -> bool:
        """Whether the endpoint has answered 410, to whichever instance, and was not enabled since."""
        return self._store.is_disabled

    async def open(self) -> None:
        """Begin at the present, unless a process has begun before. Raises a `StoreError`."""
        if not self._is_open:
            await self._store.open()
            self._is_open = True

    async def run_once(self) -> int:
        """Settle what was answered, send what is due, enrol; return how many events were enrolled.

        One more where others may be due behind those that were looked at. Raises a `StoreError`;
        what was answered is then settled at the next turn.
        """
        await self.open()
        if self._is_blocked is None:
            self._note_blocked(is_blocked=await self._endpoint.is_blocked())
        # First: where nothing can be settled, nothing is known of what waits.
        has_waiting = await self.lag.look()
        await self._target.serve()
        await self._settle()
        self._slots.relieve()
        has_begun = await self._take() > 0
        # Known once a second at most: an event waits.
        if has_waiting:
            self._enrolled_max = DUE_MAX - await self._store.count_due(DUE_MAX)
        elif self._store.target is None:
            # A failover has lost the reader's row, by which what is due is counted: enrolling makes it.
            self._enrolled_max = DUE_MAX
        is_scarce = self._slots.free <= FREE_MIN
        if is_scarce:
            self._look_soon()
        is_busy = is_scarce and has_begun
        if self._enrolled_max <= 0 or (is_busy and self._clock_seconds() < self._enrol_due_at):
            return int(self._looks_on)
        # Also while slots are taken: what comes next may be another owner's.
        enrolled = await self._enrol()
        if enrolled < ENROLLED_MAX:
            self._enrol_due_at = self._clock_seconds() + BUSY_ENROL_SECONDS
        # Answers wake a busy sender: a turn at once would send few at a time.
        return 0 if is_busy else enrolled + self._looks_on

    def _look_soon(self) -> None:
        """Take a turn soon if no answer comes: requests may be slow, and what was enrolled another's."""
        if self._next_look is not None:
            self._next_look.cancel()
        self._next_look = asyncio.get_running_loop().call_later(BUSY_ENROL_SECONDS, self.wake)

    async def _take(self) -> int:
        """Lease what may be sent now, and begin to send it; return how many these are."""
        self._looks_on = False
        most = UNDER_WAY_MAX + SLOW_MAX
        if self._reach.is_away:
            most = int(self._reach.may_try)
        begun = await self._begin(min(most, self._slots.free), is_slow=False)
        # Also of an endpoint that is away: owners whose connections took 5 s count as slow.
        begun += await self._begin(min(most - begun, self._slots.slow_free), is_slow=True)
        if begun:
            self._reach.note_begun()
        return begun

    async def _begin(self, room: int, *, is_slow: bool) -> int:
        if room <= 0:
            return 0
        slots = self._slots
        under_way = None if self._reach.is_away else slots.under_way(is_slow=is_slow)
        only = slots.slow_turn if is_slow else None
        without = () if is_slow else slots.slow_owners
        taken = await self._store.take(room, self._lease_seconds, under_way, only, without)
        if only is not None:
            slots.end_slow_turn(only, {each.owner_id for each in taken})
        self._looks_on |= self._store.has_marked and not taken
        for delivery in taken:
            request = Request(delivery, self._clock_seconds(), is_slow=is_slow)
            task = asyncio.create_task(self._send(request), name="stretto webhook")
            self._under_way[task] = request
            task.add_done_callback(lambda _: self.wake())
        return len(taken)

    async def _enrol(self) -> int:
        try:
            count = await self._store.enrol(ENROLLED_MAX)
        except PositionLost:
            # What was next was swept, since no sender had run, or the webhook was disabled, for as
            # long as events are kept: the next turn goes on where the log begins. Or a failover has lost
            # the reader's row: it goes on where this process was.
            self._observe(PlaceLost(self.name))
            return 1
        self._enrolled_max -= count
        return count

    async def answered(self) -> None:
        """Wait until every request under way has its answer."""
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _send(self, request: Request) -> Answer:
        """Send an event as a part of its request's trace, which goes on at the receiver."""
        event = request.delivery.event
        trace_context = event.trace_context
        span = None
        if self._tracing is not None:
            span = self._tracing.resume("stretto.webhook", trace_context, is_client=True)
        if span is not None:
            trace_context = span.context
        answer: Answer = Unanswered("a bug in stretto, which its log describes")
        try:
            fields = as_fields(trace_context)
            async with asyncio.timeout(None) as request.limit:
                answer = await self._endpoint.send(event.event_id, event.envelope, fields)
        except Exception as error:  # noqa: BLE001 the delivery must be settled anyway
            if request.is_cut:
                answer = Cut("cut short: too many requests take long")
            else:
                self._observe(ActorCrashed("webhook", error))
        request.seconds = self._clock_seconds() - request.began_at
        if span is not None:
            verdict = judge(answer)
            span.end(error=None if isinstance(verdict, Sent) else verdict)
        return answer

    async def _settle(self) -> None:
        """Settle every delivery that has its answer; forget it only after it is settled."""
        done = self._slots.ended()
        if not done:
            return
        # The endpoint's state comes first: else another sender may take what is put off below.
        if any(isinstance(verdict, Gone) for _, _, verdict in done) and await self._store.disable():
            self._observe(WebhookDisabled())
        pauses = [verdict.seconds for _, _, verdict in done if isinstance(verdict, Throttled)]
        if pauses:
            await self._store.pause(max(pauses))
        sent = [each.event.event_id for _, each, verdict in done if isinstance(verdict, Sent)]
        others = [put_off(each, why) for _, each, why in done if not isinstance(why, Sent)]
        dead = await self._store.settle(sent, others)
        for task, _, verdict in done:
            self._slots.remove(task)
            self._reach.note(verdict)
            self._observe(WebhookTried(type(verdict).__name__.lower()))
        self._note_blocked(is_blocked=any(isinstance(why, Blocked) for *_, why in done))
        self._note_health([verdict for *_, verdict in done])
        for each in others:
            if each.event_id in dead:
                self._observe(EventDeadLettered(each.event_id, f"webhook: {each.dead_reason}"))

    def _note_blocked(self, *, is_blocked: bool) -> None:
        """Report that the endpoint may not be called: once, until it has been called again."""
        if is_blocked and not self._is_blocked:
            self._observe(WebhookBlocked())
        self._is_blocked = is_blocked

    def _note_health(self, verdicts: Sequence[Verdict]) -> None:
        """Report why the endpoint has not taken events, or that it takes them again."""
        for verdict in verdicts:
            match verdict:
                case Sent():
                    pass
                case Blocked() | Gone():
                    # Reported by an observation of its own.
                    self._health.is_failing = True
                case Throttled(seconds):
                    self._health.fail(f"asked for a pause of {seconds:g} s")
                case Failed(reason) | Unreached(reason) | Cut(reason):
                    self._health.fail(reason)
                case _:
                    assert_never(verdict)
        if all(isinstance(verdict, Sent) for verdict in verdicts):
            self._health.succeed()

    async def close(self) -> None:
        """Settle what is answered in time; give the rest back, so that none waits for its lease."""
        if not self._under_way:
            return
        _, unanswered = await asyncio.wait(self._under_way, timeout=STOP_SECONDS)
        given_back = [PutOff(self._under_way.pop(task).event_id) for task in unanswered]
        for task in unanswered:
            task.cancel()
        await asyncio.gather(*unanswered, return_exceptions=True)
        with suppress(StoreError):
            await self._store.settle([], given_back)
            await self._settle()
