"""An event on its way to live sessions."""

from __future__ import annotations

import weakref

from stretto.events.outgoing import OutgoingEvent
from support.log_events import logged, place


class Watched(str):
    """A user id whose end can be seen."""

    __slots__ = ("__weakref__",)


def test_what_waits_for_a_client_holds_no_recipients() -> None:
    """A thousand of them for each event of a page would fill the memory while a client is slow."""
    event = logged(1, Watched("bob"))
    recipient = weakref.ref(event.event.recipients[0])
    outgoing = OutgoingEvent(event, "2.1-0a1b2c3d")
    del event
    assert (None, b"{}") == (recipient(), outgoing.event.envelope)


def test_a_place_within_a_transaction_covers_its_first_events() -> None:
    """A session that catches up has had them; the rest is to come."""
    outgoing = OutgoingEvent(logged(5), "6.1-0a1b2c3d")
    assert [False, True, True] == [
        outgoing.is_covered_by(where)
        for where in (place(5), place(5).with_parts([logged(5).part]), place(6))
    ]
