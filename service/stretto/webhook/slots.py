"""Slots: which requests to the webhook's endpoint are under way, and which of them are slow.

An endpoint may be slow for the events of many owners, or hang. So a slow request leaves its slot to
others and takes one of the slow slots. Its owner's next events wait for slow slots alone, until
the endpoint answers one of them in time. What is slow depends on how long answers usually take:
of an endpoint that takes 5 s for everybody's events, none is slow. Nothing here sends anything or
asks the database.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Final

from stretto.webhook.rules import Answered, Cut, Unanswered, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from stretto.targets.delivery import Delivery
    from stretto.webhook.rules import Answer, Verdict

# Requests under way in a process, beside slow ones. An owner has at most twice as many as are free: 32
# alone, 8 or 9 if those of five owners take long.
UNDER_WAY_MAX: Final = 48
# With fewer free than one owner leaves alone, slots are scarce.
FREE_MIN: Final = UNDER_WAY_MAX // 3
# A request that takes longer is slow: a receiver that stores an event and answers needs far less. Where
# answers usually take long, a request is slow only after so many times as long as they do.
SLOW_SECONDS: Final = 2.0
SLOW_TIMES: Final = 3.0
# Slow requests under way, as many again: where all are slow, no fewer are sent than where none is.
SLOW_MAX: Final = 48
# Where slots are scarce, a request is slow sooner: after 10 times as long as answers usually take, this at
# least and `SLOW_SECONDS` at most, but no sooner than after 1.5 times as long. So of 48 slots a thousand
# owners whose requests hang have each had one after 6 s, and most answers come in time.
SCARCE_SECONDS_MIN: Final = 0.25
SCARCE_TIMES: Final = 10.0
SCARCE_TIMES_MIN: Final = 1.5
# The newest answers of so many owners show how long one usually takes, and of two the quicker one. Those of
# one owner do not: they may be slow for it alone.
USUAL_OWNERS_MAX: Final = 16
USUAL_OWNERS_MIN: Final = 2
# Owners known to be slow. A turn of all others names them, which costs a millisecond. Who is beyond them has
# to be found slow again.
SLOW_OWNERS_MAX: Final = 1000
# Slow owners that a turn of theirs asks for: an idle sender goes round all of them in 8 s.
SLOW_TURN_OWNERS: Final = 128


@dataclass(slots=True, eq=False)
class Request:
    """A delivery on its way to the endpoint."""

    delivery: Delivery
    began_at: float
    is_slow: bool = False
    """Whether it has one of the slow slots."""
    seconds: float = 0.0
    """How long it has taken, once it has ended."""
    limit: asyncio.Timeout | None = None
    """Ends the request before its time; None before it has begun, and once it was cut short."""
    is_cut: bool = False

    @property
    def event_id(self) -> UUID:
        """Of its event."""
        return self.delivery.event.event_id

    @property
    def owner_id(self) -> str:
        """Of its group."""
        return self.delivery.owner_id

    def cut(self) -> bool:
        """End it before its time, if it has begun; return whether it is ended so."""
        if self.limit is None:
            return False
        self.limit.reschedule(asyncio.get_running_loop().time())
        self.limit, self.is_cut = None, True
        return True


class Slots:
    """The requests of a sender that are under way, and the owners that are known to be slow."""

    def __init__(self, clock_seconds: Callable[[], float]) -> None:
        self.requests: dict[asyncio.Task[Answer], Request] = {}
        """Those that are under way or not settled yet, the oldest first."""
        self._clock_seconds = clock_seconds
        self._slow_owners: dict[str, None] = {}
        """The one that has waited longest for a slow slot comes first."""
        self._answer_seconds: dict[str, float] = {}
        """How long the newest answer of each owner took; the owner that was answered last is the last."""

    @property
    def free(self) -> int:
        """How many requests of owners that are not known to be slow may begin."""
        return max(0, UNDER_WAY_MAX - self.under_way(is_slow=False).total())

    @property
    def slow_free(self) -> int:
        """How many requests of slow owners may begin; 0 where there are no such owners."""
        return 0 if not self.slow_owners else SLOW_MAX - self.under_way(is_slow=True).total()

    @property
    def slow_owners(self) -> Sequence[str]:
        """The owners that are known to be slow, the one that has waited longest first."""
        return tuple(self._slow_owners)

    def under_way(self, *, is_slow: bool) -> Counter[str]:
        """Return the requests of each owner that have slow slots, or that have not."""
        requests = self.requests.values()
        return Counter(each.owner_id for each in requests if each.is_slow == is_slow)

    @property
    def slow_turn(self) -> Sequence[str]:
        """The slow owners whose turn it is."""
        return self.slow_owners[:SLOW_TURN_OWNERS]

    def end_slow_turn(self, asked: Sequence[str], served: Collection[str]) -> None:
        """Let all that have had their turn wait behind the others: up to the last that got anything."""
        numbers = [number for number, owner in enumerate(asked, start=1) if owner in served]
        for owner in asked[: max(numbers, default=len(asked))]:
            self._note_slow(owner)

    def relieve(self) -> None:
        """Give slow requests slow slots. If there are no more, and slots are scarce, cut them short."""
        is_scarce = self.free < FREE_MIN
        begun_before = self._clock_seconds() - self._slow_after_seconds(is_scarce=is_scarce)
        slow_free = SLOW_MAX - self.under_way(is_slow=True).total()
        for task, request in self.requests.items():
            if request.is_slow or request.is_cut or task.done() or request.began_at > begun_before:
                continue
            if slow_free > 0:
                request.is_slow = True
                slow_free -= 1
            elif not (is_scarce and request.cut()):
                continue
            self._note_slow(request.owner_id)

    def _slow_after_seconds(self, *, is_scarce: bool) -> float:
        """Return after how long a request is slow."""
        if len(self._answer_seconds) < USUAL_OWNERS_MIN:
            return SLOW_SECONDS
        usual_seconds = median_low(self._answer_seconds.values())
        if not is_scarce:
            return max(SLOW_SECONDS, SLOW_TIMES * usual_seconds)
        seconds = min(SCARCE_TIMES * usual_seconds, SLOW_SECONDS)
        return max(SCARCE_SECONDS_MIN, seconds, SCARCE_TIMES_MIN * usual_seconds)

    def ended(self) -> list[tuple[asyncio.Task[Answer], Delivery, Verdict]]:
        """Return the requests that have ended, and what their answers mean."""
        return [
            (task, request.delivery, judge(_answer_of(task)))
            for task, request in self.requests.items()
            if task.done()
        ]

    def remove(self, task: asyncio.Task[Answer]) -> None:
        """Forget a request that has ended, but not whether its owner is slow."""
        request, answer = self.requests.pop(task), _answer_of(task)
        if isinstance(answer, Answered):
            self._note_answer(request)
        is_slow = request.seconds >= self._slow_after_seconds(is_scarce=False)
        if is_slow or isinstance(answer, Cut):
            self._note_slow(request.owner_id)
        elif isinstance(answer, Answered):
            self._slow_owners.pop(request.owner_id, None)

    def _note_answer(self, request: Request) -> None:
        self._answer_seconds.pop(request.owner_id, None)
        self._answer_seconds[request.owner_id] = request.seconds
        if len(self._answer_seconds) > USUAL_OWNERS_MAX:
            del self._answer_seconds[next(iter(self._answer_seconds))]

    def _note_slow(self, owner_id: str) -> None:
        self._slow_owners.pop(owner_id, None)
        self._slow_owners[owner_id] = None
        if len(self._slow_owners) > SLOW_OWNERS_MAX:
            del self._slow_owners[next(iter(self._slow_owners))]


def _answer_of(task: asyncio.Task[Answer]) -> Answer:
    """Return the answer to a request that has ended; a host may have cancelled its task."""
    return Unanswered("the request was cancelled") if task.cancelled() else task.result()
