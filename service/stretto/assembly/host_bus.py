"""HostsBus: a host's bus, whose answers are checked before the relay believes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from stretto.identifiers import plain
from stretto.runtime.cancelling import in_own_task
from stretto.runtime.exits import ExitAsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.targets.bus import EventBus


# As of a veto's detail: the reason is in the log, and in the dead letter.
REASON_CHARACTERS_MAX: Final = 1024


class HostsBus:
    """An `EventBus` that keeps the contract, over one that may break it."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish the events; raises `TypeError` for an answer that breaks the contract.

        Whether any event was published is then unknown, and they are published again. An id that
        is none of theirs, such as a text, would let the relay pass over a refused event. Reasons
        are cut to `REASON_CHARACTERS_MAX`.
        `SystemExit` and `KeyboardInterrupt` are raised as a `RuntimeError`.
        """
        reasons: object = await in_own_task(self._published(events), "stretto publish")
        event_ids = {event.event_id for event in events}
        if isinstance(reasons, Mapping):
            refused = dict(reasons)
            odd = [
                each
                for each in refused.items()
                if each[0] not in event_ids or not isinstance(each[1], str)
            ]
            if not odd:
                return {
                    event_id: plain(reason)[:REASON_CHARACTERS_MAX]
                    for event_id, reason in refused.items()
                }
            kinds = " and ".join(repr(type(each)) for each in odd[0])
            found = f"a mapping with {kinds}, or with the id of another event"
        else:
            found = repr(type(reasons))
        message = (
            "the bus must return the reasons of refused events by their ids from `publish`,"
            f" and {{}} where none was refused, not {found}"
        )
        raise TypeError(message)

    async def _published(self, events: Sequence[CommittedEvent]) -> object:
        with ExitAsError("publish"):
            return await self._bus.publish(events)
