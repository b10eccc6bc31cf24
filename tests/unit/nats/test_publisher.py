"""How a bus's events go out: which messages are under way together."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from nats.js.api import PubAck

from stretto.events.log import CommittedEvent
from stretto.nats import publisher
from stretto.nats.deployment import ForeignStream
from stretto.nats.publisher import RECIPIENTS_MAX, UNACKNOWLEDGED_BYTES_MAX, NatsBus
from support.nats_process import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.nats.requests import Unsent


class Provided(NatsBus):
    """A bus that counts how often it looks at its stream."""

    looks = 0

    async def _provide_events(self, link: Any) -> Any:
        self.looks += 1


@pytest.mark.parametrize(
    ("expected", "kilobytes", "recipients"),
    [([256, 44], 0, 1), ([2, 2, 2], 100, 2 * RECIPIENTS_MAX), ([1, 1, 1], 300, 1)],
)
async def test_messages_go_out_in_waves_of_so_many_bytes(
    expected: list[int], kilobytes: int, recipients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next wave waits until this one is acknowledged: pings never wait behind more."""
    waves: list[Sequence[Unsent]] = []
    numbers = count(1)

    async def acknowledged(_: object, messages: Sequence[Unsent]) -> list[Any]:
        waves.append(messages)
        return [PubAck(stream=OURS.event_stream, seq=next(numbers)) for _ in messages]

    monkeypatch.setattr(publisher, "acknowledged", acknowledged)
    link: Any = SimpleNamespace(may_send=lambda *_: True)
    bus = Provided(cast("Any", None), OURS)
    number = sum(expected) * RECIPIENTS_MAX // max(recipients, RECIPIENTS_MAX)
    users = tuple(map(str, range(recipients)))
    events = [CommittedEvent(UUID(int=n), users, b"x" * 1024 * kilobytes) for n in range(number)]
    assert {} == await bus._publish_over(link, events)
    assert expected == [len(wave) for wave in waves]
    assert all(
        len(wave) == 1 or sum(len(each.body) for each in wave) <= UNACKNOWLEDGED_BYTES_MAX
        for wave in waves
    )
    assert sum(expected) == len({each.headers["Nats-Msg-Id"] for wave in waves for each in wave})


def acks(*numbers: int, is_duplicate: bool = False) -> list[PubAck | BaseException | None]:
    """Return acknowledgements with these sequence numbers."""
    stream = OURS.event_stream
    return [PubAck(stream=stream, seq=each, duplicate=is_duplicate or None) for each in numbers]


async def test_a_stream_made_anew_is_looked_at_once() -> None:
    """As soon as its numbers begin again; the next ones count upwards like any."""
    bus = Provided(cast("Any", None), OURS)
    looks = []
    for numbers in ((7, 8), (9,), (1, 2), (3,)):
        await bus._require_same_stream(cast("Any", None), acks(*numbers))
        looks.append(bus.looks)
    assert [0, 0, 1, 1] == looks


async def test_a_message_that_is_sent_again_is_no_new_stream() -> None:
    """Its acknowledgement has the number under which it was stored before."""
    bus = Provided(cast("Any", None), OURS)
    for answers in (acks(7, 8), acks(7, is_duplicate=True), [None, ValueError()], acks(9)):
        await bus._require_same_stream(cast("Any", None), answers)
    assert bus.looks == 0


async def test_what_a_stream_of_another_name_has_taken_is_not_published() -> None:
    """Somebody made it on our subjects while ours was away; it need not be new."""
    bus = Provided(cast("Any", None), OURS)
    taken: list[Any] = [PubAck(stream="audit", seq=9, duplicate=True)]
    with pytest.raises(ForeignStream, match="the stream audit takes our events"):
        await bus._require_same_stream(cast("Any", None), taken)


async def test_a_look_that_is_broken_off_has_seen_nothing() -> None:
    """A relay's lease may end meanwhile: what the stream has taken by then is sent again."""

    class BrokenOff(NatsBus):
        async def _provide_events(self, link: Any) -> Any:
            raise asyncio.CancelledError

    bus = BrokenOff(cast("Any", None), OURS)
    link: Any = object()
    bus._seen_over, bus._newest = link, 9
    with pytest.raises(asyncio.CancelledError):
        await bus._require_same_stream(link, acks(1))
    assert bus._seen_over is None
