"""The end of a command consumer's workers, step by step."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from stretto.nats.commands import CommandConsumer
from stretto.nats.connection import Link, NatsConnection
from stretto.nats.outage import Outage
from support.nats_process import OURS

if TYPE_CHECKING:
    from stretto.observations import Observation


async def test_the_last_command_may_end_before_the_wait_for_it_begins() -> None:
    """Otherwise the log would name an empty set instead of what has ended the consumer."""
    observed: list[Observation] = []
    nothing = cast("Any", None)
    connection = NatsConnection("nats://127.0.0.1:1", observed.append)
    consumer = CommandConsumer(
        connection, OURS, nothing, nothing, observed.append, outage=Outage(nothing)
    )
    is_handled = asyncio.Event()
    worker = asyncio.create_task(consumer._to_its_end(cast("Any", is_handled.wait())))
    await asyncio.sleep(0)
    is_handled.set()
    await consumer._end_when_idle(Link(nothing, nothing, observed.append), [worker])
    assert worker.done()
