"""The store of a relay, in memory: a log, the row of its reader, and deliveries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stretto.events.log import LogPage
from support.log_events import place, present

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from stretto.domain import UserId
    from stretto.events.log import LoggedEvent
    from stretto.events.place import Place
    from stretto.targets.delivery import Delivery, PutOff


class ScriptedStore:
    """A log, and the row of its reader, in memory. The first reads fail as the test says."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.events: list[LoggedEvent] = []
        self.start = 0
        self.place: Place = place(1)
        self.token: UUID | None = None
        self.leases = 0
        self.refused: list[tuple[UUID, str]] = []
        self.due: list[Delivery] = []
        self.sent: list[UUID] = []
        self.put_off: list[PutOff] = []
        self.looked = asyncio.Event()

    async def open(self) -> None:
        pass

    async def lease(self, token: UUID, seconds: float) -> Place | None:
        self.leases += 1
        self.token = self.token or token
        return self.place if self.token == token else None

    async def advance(self, token: UUID, place: Place) -> bool:
        if token == self.token:
            self.place = place
        return token == self.token

    async def give_back(self, token: UUID) -> None:
        if token == self.token:
            self.token = None

    async def present(self) -> Place:
        raise AssertionError

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        if self.errors:
            raise self.errors.pop(0)
        self.looked.set()
        end = self.events[-1].position + 1 if self.events else 1
        now = present(end, start=self.start)
        rows = [each for each in self.events if not begin.covers(1, each.position)]
        is_full, rows = len(rows) >= events_max, rows[:events_max]
        after = now.after(begin, rows[-1].history, rows[-1].position) if is_full else now.place
        return LogPage(begin, rows, after, now, is_full)

    async def oldest_seconds(self) -> float | None:
        return 1.0 if self.due else None

    async def take(
        self,
        deliveries_max: int,
        lease_seconds: float,
        under_way: object = None,
        only: object = None,
        without: object = (),
    ) -> Sequence[Delivery]:
        due, self.due = self.due, []
        return due

    async def refuse(self, reasons: Mapping[LoggedEvent, str]) -> None:
        self.refused += [(each.event.event_id, reason) for each, reason in reasons.items()]

    async def settle(self, sent: Collection[UUID], put_off: Collection[PutOff]) -> list[UUID]:
        self.sent += sent
        self.put_off += put_off
        return [each.event_id for each in put_off if each.dead_reason is not None]
