"""Instances with the webhook on one database, which take their turns when a test says so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from stretto.webhook.endpoint import WebhookEndpoint
from stretto.webhook.rules import WebhookSettings
from stretto.webhook.sender import WebhookSender
from stretto.webhook.store import PostgresWebhookStore
from stretto.webhook.target import LOOK_GAP_SECONDS_MAX
from support.webhook_receiver import receiving

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from stretto.observations import Observation
    from stretto.postgres.connections import Database
    from support.webhook_receiver import Receiver

SECRETS = (b"a secret of an endpoint, long",)
LEASE_SECONDS = 60.0
STEP_SECONDS = LOOK_GAP_SECONDS_MAX - 1


class Instance:
    """A sender with its receiver, which takes its turns when the test says so."""

    def __init__(
        self, sender: WebhookSender, receiver: Receiver, observed: list[Observation]
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.observed = observed

    async def work(self) -> None:
        """Take turns until nothing is due."""
        while await self.sender.run_once() or self.sender._under_way:
            await self.sender.answered()

    async def is_answered(self) -> None:
        """Take turns until an event is answered, and do not settle it yet."""
        while not self.sender._under_way:
            await self.sender.run_once()
        await self.sender.answered()


class World:
    """Starts instances on one database, with clocks that move together: the database's, and theirs."""

    def __init__(self, database: Database, stack: AsyncExitStack) -> None:
        self.now = datetime.now(UTC) + timedelta(minutes=1)
        self.seconds = 0.0
        self.database = database
        self._stack = stack

    async def receiver(self) -> Receiver:
        """Return an endpoint of its own."""
        return await self._stack.enter_async_context(receiving())

    async def start(self, receiver: Receiver) -> Instance:
        """Start an instance that sends to a receiver."""
        settings = WebhookSettings(
            webhook_url=receiver.url, webhook_secret=SECRETS, webhook_allow_private=True
        )
        endpoint = await self._stack.enter_async_context(WebhookEndpoint(settings))
        store = PostgresWebhookStore(self.database, endpoint.url_digest, lambda: self.now)
        observed: list[Observation] = []
        sender = WebhookSender(
            store,
            endpoint,
            observed.append,
            lease_seconds=LEASE_SECONDS,
            clock_seconds=lambda: self.seconds,
        )
        await sender.open()
        return Instance(sender, receiver, observed)

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)
        self.seconds += seconds

    def jump(self, seconds: float) -> None:
        """Set the database's clock; that of an instance stays right."""
        self.now += timedelta(seconds=seconds)

    async def wait(self, seconds: float, *instances: Instance) -> None:
        """Let time pass while these take turns, one after the other."""
        while seconds > 0:
            self.move(min(seconds, STEP_SECONDS))
            seconds -= STEP_SECONDS
            for each in instances:
                await each.work()
