"""Opens what speaks to NATS, in one; the client is only imported where there is something to open."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from stretto.protocol.creator import GroupCreator
    from stretto.protocol.events import CommittedEvent, EventBus
    from stretto.protocol.ports import Observer


@dataclass(frozen=True, slots=True)
class Nats:
    """What a process has of NATS: `events` runs, `commands` makes a consumer that is to be entered."""

    events: EventBus
    commands: Callable[[GroupCreator], AbstractAsyncContextManager[object]]


@asynccontextmanager
async def open_nats(
    url: str,
    deliver: Callable[[CommittedEvent], None],
    on_gap: Callable[[], None],
    observe: Observer,
) -> AsyncIterator[Nats]:
    """Connect for as long as the context lasts; a server that is away is no error."""
    # An extra: a service without a bus does not need it.
    from stretto.bus.commands import CommandConsumer  # noqa: PLC0415
    from stretto.bus.connection import NatsConnection  # noqa: PLC0415
    from stretto.bus.nats import NatsBus  # noqa: PLC0415

    async with (
        NatsConnection(url, observe) as connection,
        NatsBus(connection, deliver, on_gap, observe) as events,
    ):
        yield Nats(events, lambda creator: CommandConsumer(connection, creator, observe))
