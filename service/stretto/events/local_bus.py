"""LocalBus: publishes events within this process. Whatever is published is delivered at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stretto.events.event import TURN_EVENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from stretto.events.event import CommittedEvent


class LocalBus:
    """An `EventBus` without a network; `deliver` must neither block nor raise."""

    def __init__(self, deliver: Callable[[CommittedEvent], None]) -> None:
        self._deliver = deliver

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Deliver each event; none is ever refused."""
        for number, event in enumerate(events, 1):
            self._deliver(event)
            if number % TURN_EVENTS == 0:
                await asyncio.sleep(0)
        return {}
