"""How a bus's events go out: which messages are under way together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import pytest
from nats.js.api import PubAck

from stretto.events.log import CommittedEvent
from stretto.nats import publisher
from stretto.nats.publisher import RECIPIENTS_MAX, UNACKNOWLEDGED_BYTES_MAX, NatsBus
from support.nats_process import OURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.nats.requests import Unsent


@pytest.mark.parametrize(
    ("expected", "kilobytes", "recipients"),
    [([256, 44], 0, 1), ([2, 2, 2], 100, 2 * RECIPIENTS_MAX), ([1, 1, 1], 300, 1)],
)
async def test_messages_go_out_in_waves_of_so_many_bytes(
    expected: list[int], kilobytes: int, recipients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next wave waits until this one is acknowledged: pings never wait behind more."""
    waves: list[Sequence[Unsent]] = []

    async def acknowledged(_: object, messages: Sequence[Unsent]) -> list[Any]:
        waves.append(messages)
        return [PubAck(stream="s", seq=1)] * len(messages)

    monkeypatch.setattr(publisher, "acknowledged", acknowledged)
    link: Any = SimpleNamespace(may_send=lambda *_: True)
    bus = NatsBus(cast("Any", None), OURS)
    bus._provided = link
    count = sum(expected) * RECIPIENTS_MAX // max(recipients, RECIPIENTS_MAX)
    users = tuple(map(str, range(recipients)))
    events = [CommittedEvent(UUID(int=n), users, b"x" * 1024 * kilobytes) for n in range(count)]
    assert {} == await bus._publish_over(link, events)
    assert expected == [len(wave) for wave in waves]
    assert all(
        len(wave) == 1 or sum(len(each.body) for each in wave) <= UNACKNOWLEDGED_BYTES_MAX
        for wave in waves
    )
    assert sum(expected) == len({each.headers["Nats-Msg-Id"] for wave in waves for each in wave})
