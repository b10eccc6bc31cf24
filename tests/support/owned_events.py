"""Events of owners' groups, as far as a relay over a host's bus looks into them."""

from __future__ import annotations

from uuid import UUID

import orjson

from stretto.events.log import CommittedEvent


def event_of(owner: str, number: int, group: str = "") -> CommittedEvent:
    """Return an event with this number as its id; of a group of its own, if none is named."""
    document = {"subject": group or f"group {number}", "data": {"owner_id": owner}}
    # As of a change, whose recipients need not begin with the owner.
    return CommittedEvent(UUID(int=number), ("a member", owner), orjson.dumps(document))
