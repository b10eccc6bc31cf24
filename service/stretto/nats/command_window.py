"""CommandWindow: the commands that a process has taken from the stream and not settled yet.

JetStream delivers commands in the order of their arrival, and no more than `max_ack_pending` of them
before some are settled. Both are shared by all owners: the backlog of one would delay every command
behind it, and its commands that are put off would take every place. So a process takes commands
ahead, has owners take turns among them, and gives each owner only a share of the places. What has no
place is returned to the caller, which settles it or puts it off.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from stretto.runtime.backoff import Backoff
from stretto.runtime.mailbox import Mailbox

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.js.api import ConsumerConfig

OWNER: Final = "Stretto-Owner"
# Commands taken ahead, as many as creations over HTTP may queue. Those of a process that is killed
# come again only after `ack_seconds`.
QUEUED_MAX: Final = 1024
# A body has at most 256 KiB, of 1,000 members some 20 KiB.
QUEUED_BYTES_MAX: Final = 16 * 2**20
# A process queues, and lets one owner put off, at most this part of `max_ack_pending`: up to eight
# replicas, one owner cannot take all places.
SHARES: Final = 16
# An acknowledgement that says "in progress" may be as late as two of them.
KEPT_PER_ACK_WAIT: Final = 3
# Of a command that is put off; others are handled meanwhile.
DELAY: Final = Backoff(0.5, 30.0)


@dataclass(frozen=True, slots=True, eq=False)
class Command:
    """A delivery of a command."""

    message: Msg
    owner: str
    """Whose share it has: the header as it is, valid or not."""
    size_bytes: int

    @classmethod
    def of(cls, message: Msg) -> Self:
        """Return the command that a message delivers."""
        headers = message.headers or {}
        header_bytes = sum(len(name) + len(value) for name, value in headers.items())
        return cls(message, headers.get(OWNER, ""), len(message.data) + header_bytes)


class PutOff:
    """How many commands of each owner this process has put off, and wait for their redelivery."""

    def __init__(self) -> None:
        self._owners: Counter[str] = Counter()

    def add(self, owner: str, seconds: float) -> None:
        """Count a command until it is delivered again."""
        self._owners[owner] += 1
        asyncio.get_running_loop().call_later(seconds, self._remove, owner)

    def of(self, owner: str) -> int:
        """Return how many commands of the owner wait."""
        return self._owners.get(owner, 0)

    def _remove(self, owner: str) -> None:
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]


class CommandWindow:
    """The commands that came over one connection: queued, or under way."""

    def __init__(self, consumer: ConsumerConfig) -> None:
        """Take the consumer's configuration, whose limits the replicas share."""
        unsettled_max = consumer.max_ack_pending or 0
        # Without a limit on the server, ours are as with many places.
        places = max(1, unsettled_max // SHARES) if unsettled_max > 0 else QUEUED_MAX
        self.put_off_max = places
        """Commands of one owner that this process puts off at a time."""
        self._queue: Mailbox[Command, None] = Mailbox(
            min(QUEUED_MAX, places), lambda command: command.owner
        )
        self._bytes = 0
        self._held: set[Command] = set()

    def offer(self, command: Command) -> list[Command]:
        """Queue a command; return those that have no place.

        These are the newest of the owner with the longest queue, or the command itself.
        """
        self._held.add(command)
        excess: list[Command] = []
        while self._is_full_for(command):
            if not self._queue.would_displace(command.owner):
                return [*excess, command]
            displaced = self._queue.displace().message
            self._bytes -= displaced.size_bytes
            excess.append(displaced)
        self._bytes += command.size_bytes
        self._queue.ask(command)
        return excess

    async def take(self) -> Command:
        """Wait for a command; return the next one, by the owners' turns."""
        (envelope,) = await self._queue.take(1)
        self._bytes -= envelope.message.size_bytes
        return envelope.message

    def release(self, command: Command) -> None:
        """Forget a command that is settled or put off."""
        self._held.discard(command)

    async def keep(self, ack_seconds: float) -> None:
        """Have the server wait for what is queued or under way, again and again."""
        while True:
            await asyncio.sleep(ack_seconds / KEPT_PER_ACK_WAIT)
            for command in tuple(self._held):
                if command in self._held:
                    await command.message.in_progress()

    async def give_back(self) -> None:
        """Have the server deliver again what is left, at once, to any replica."""
        while self._held:
            message = self._held.pop().message
            if not message.is_acked:
                await message.nak()

    def _is_full_for(self, command: Command) -> bool:
        """Whether a command finds no place; an empty queue has one for the largest."""
        return bool(self._queue) and (
            len(self._queue) >= self._queue.messages_max
            or self._bytes + command.size_bytes > QUEUED_BYTES_MAX
        )
