"""HostsBus: a host's bus, whose answers are checked before the relay believes them.

Its code may fail for one event, such as one owner's. So where it fails for several together, each is
published alone. What fails alone, while others go through, is refused: it is tried again, and holds up
none. If none goes through, the fault is not the events': the relay keeps its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from stretto.identifiers import plain
from stretto.observations import ActorCrashed
from stretto.runtime.cancelling import cancellations, in_own_task, is_cancelled
from stretto.runtime.exits import ExitAsError
from stretto.targets.bus import BusUnavailable, raised

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.events.log import CommittedEvent
    from stretto.observations import Observer
    from stretto.targets.bus import EventBus


# As of a veto's detail: the reason is in the log, and in the dead letter.
REASON_CHARACTERS_MAX: Final = 1024


class HostsBus:
    """An `EventBus` that keeps the contract, over one that may break it."""

    def __init__(self, bus: EventBus, observe: Observer) -> None:
        self._bus = bus
        self._observe = observe

    async def publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish the events, together or each alone; return the reasons of those that were refused.

        Raises what the bus raises, if no event goes through: `TypeError` for an answer that breaks the
        contract, and `RuntimeError` for what is no `Exception`, such as a cancellation of its own. Whether
        any event was published is then unknown.
        """
        try:
            return await self._publish(events)
        except BusUnavailable:
            raise
        except Exception:
            if len(events) == 1:
                raise
        return await self._publish_apart(events)

    async def _publish_apart(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        reasons: dict[UUID, str] = {}
        # A list, which is cleared: each error refers to this frame by its traceback.
        bugs: list[Exception] = []
        try:
            for event in events:
                try:
                    reasons |= await self._publish([event])
                except BusUnavailable:
                    raise
                except Exception as error:  # noqa: BLE001 reported, or raised where all fail
                    bugs.append(error)
                    reasons[event.event_id] = raised(error)
            if len(bugs) == len(events):
                raise bugs[-1]
            if bugs:
                self._observe(ActorCrashed("relay", bugs[0]))
        finally:
            bugs.clear()
        return reasons

    async def _publish(self, events: Sequence[CommittedEvent]) -> Mapping[UUID, str]:
        """Publish together, and check the answer.

        An id that is none of theirs, such as a text, would let the relay pass over a refused event.
        Reasons are cut to `REASON_CHARACTERS_MAX`.
        """
        since = cancellations()
        try:
            reasons: object = await in_own_task(self._published(events), "stretto publish")
        except asyncio.CancelledError as error:
            if is_cancelled(since):
                raise
            message = "publish was cancelled by something that it waited for"
            raise RuntimeError(message) from error
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(raised(error)) from error
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
