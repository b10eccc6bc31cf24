"""Component: what runs, and the order in which it starts and stops.

Start: connections, bus, relay, sweeper, webhook, deletion watch, readers and deleter, announcer,
trail recorder, writers, history reader, log tail, hub, commands, the watch of a host's pool, then
the HTTP server. Stop, the other way round:

1. the service drains: `/readyz` is 503, all else is served, and each connection ends with its next
   answer (for `STRETTO_DRAIN_SECONDS`; `server.py`);
2. the server stops listening, and closes the connections on which no request has come;
3. no more commands are taken, and `on_event` gets no more events; commands under way are settled
   and acknowledged, a call under way ends (bounded);
4. the hub closes its sessions (1001) and waits until they have gone (bounded);
5. history reader and log tail stop; sessions that still ask are answered with an error;
6. the creator rejects new requests and lets its flights finish (bounded);
7. the mailbox closes: what is still queued is answered with an error;
8. the watch of a host's pool ends, and the writers give their connections back; a write that is
   still under way is cut off;
9. readers and deleter stop; what still waits for them is answered with an error;
10. relay, sweeper, webhook, deletion watch, announcer and trail recorder stop; what they hold on
    lease is given back, what was noted for trails is added;
11. the bus closes;
12. the pool closes, unless it is the host's;
13. the server waits until all that was read is answered (bounded), and closes the connections that
    are left.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from stretto.assembly.handle import Handle
from stretto.misuse import WrongEventLoop
from stretto.store_errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.creation.age import AttemptAge
    from stretto.creation.creator import GroupCreator
    from stretto.creation.deletion import GroupDeleter
    from stretto.creation.lookup import AttemptLookup
    from stretto.creation.ports import Write, WriteResult
    from stretto.creation.reads import Reads
    from stretto.creation.trail import TrailRecorder
    from stretto.creation.writer import GroupWriter
    from stretto.events.deletion_watch import DeletionWatch
    from stretto.events.history_reader import HistoryReader
    from stretto.events.hub import SessionHub
    from stretto.events.scan import Ask, Stretch
    from stretto.events.subscriptions import Subscriptions
    from stretto.events.tail import Announcer, LogTail
    from stretto.nats.opening import Nats
    from stretto.postgres.connections import Database
    from stretto.postgres.hosts_pool import PoolWatch
    from stretto.postgres.retention import RetentionSweeper
    from stretto.postgres.writes import PostgresWriteStore
    from stretto.runtime.mailbox import Mailbox
    from stretto.runtime.runner import Runner
    from stretto.targets.relay import OutboxRelay
    from stretto.telemetry.tracing import Tracing
    from stretto.webhook.sender import WebhookSender


@dataclass(frozen=True, slots=True, kw_only=True)
class Component(Handle):
    """A running stretto without HTTP: a host uses the methods of `Handle`."""

    creator: GroupCreator
    lookup: AttemptLookup
    deleter: GroupDeleter
    deletion_watch: DeletionWatch
    reads: Reads
    age: AttemptAge
    database: Database
    mailbox: Mailbox[Write, WriteResult]
    hub: SessionHub
    history: Mailbox[Ask, Stretch]
    tail: LogTail
    announcer: Announcer
    subscriptions: Subscriptions
    """Start with the first `on_event`."""
    relay: OutboxRelay | None
    """None without a bus."""
    webhook: WebhookSender | None
    trail: TrailRecorder
    sweeper: RetentionSweeper
    history_reader: HistoryReader
    writers: Sequence[GroupWriter]
    write_stores: Sequence[PostgresWriteStore]
    """The writers' connections."""
    wakes: Sequence[Callable[[], None]]
    """Of the readers of the log, which a writer wakes."""
    pool_watch: PoolWatch | None
    """Of a host's pool."""
    nats: Nats | None
    runner: Runner
    """Runs all of these, and knows which of them do."""
    tracing: Tracing | None

    @property
    def _running(self) -> Component:
        return self

    @property
    def deleters(self) -> Sequence[GroupDeleter]:
        """Those that are hasty and those that are not."""
        slow = self.deleter.slow
        return [self.deleter] if slow is None else [self.deleter, slow]

    def announce(self) -> None:
        """Wake every reader of the log."""
        try:
            self.creator.require_own_loop()
        except RuntimeError:
            # Also in a thread without a loop: that of the readers would not notice.
            raise WrongEventLoop from None
        for wake in (*self.wakes, self.deletion_watch.wake):
            wake()

    async def start(self) -> None:
        """Start what runs, in the order of the module's list.

        Vital is what a request waits for. Groups are created without relay, sweeper, webhook,
        commands and bus as well, and sending the requests elsewhere would not mend those.
        """
        start = self.runner.start
        if self.nats is not None:
            start(self.nats.connection)
            await self.nats.events.ready()
        if self.relay is not None:
            # Before the first request. Where the server takes no writes yet, there is none.
            with suppress(StoreError):
                await self.relay.open()
            start(self.relay)
        start(self.sweeper)
        if self.webhook is not None:
            with suppress(StoreError):
                await self.webhook.open()
            start(self.webhook)
        # Before the first request, as the relay.
        with suppress(StoreError):
            await self.deletion_watch.open()
        start(self.deletion_watch)
        for reader in (*self.reads.readers, *self.deleters):
            start(reader, is_vital=True)
        start(self.announcer)
        start(self.trail)
        for writer, store in zip(self.writers, self.write_stores, strict=True):
            with suppress(StoreError):
                await store.open()
            start(writer, is_vital=True)
        start(self.history_reader, is_vital=True)
        start(self.tail, is_vital=True)
        start(self.hub)
        if self.nats is not None:
            start(self.nats.commands)
        if self.pool_watch is not None:
            start(self.pool_watch)

    async def stop(self) -> None:
        """Take the steps 3 to 11 of the module's list, each whether or not the earlier ones failed.

        Also where the start has not come to its end.
        """
        stop, nats = self.runner.stop, self.nats
        readers = [each for each in (self.relay, self.webhook) if each is not None]
        steps: tuple[Callable[[], Awaitable[None]], ...] = (
            partial(stop, *([nats.commands] if nats else [])),  # 3
            self.subscriptions.stop,  # 3
            partial(stop, self.hub),  # 4
            partial(stop, self.history_reader, self.tail),  # 5
            self.creator.stop,  # 6
            self._close_mailbox,  # 7
            partial(stop, *([self.pool_watch] if self.pool_watch else []), *self.writers),  # 8
            partial(stop, *self.reads.readers, *self.deleters),  # 9
            partial(  # 10
                stop, self.sweeper, self.deletion_watch, self.announcer, self.trail, *readers
            ),
            partial(stop, *([nats.connection] if nats else [])),  # 11
        )
        async with AsyncExitStack() as stack:
            for step in reversed(steps):
                stack.push_async_callback(step)

    async def _close_mailbox(self) -> None:
        self.mailbox.close()
