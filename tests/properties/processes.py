"""A service without HTTP, on a real PostgreSQL, that can fall silent at a statement, or die there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import orjson

from properties.model import BODIES, LEASE_SECONDS, Place, Wish
from stretto.codec import created_document
from stretto.creation.age import OutOfRange
from stretto.creation.baton import Baton
from stretto.creation.breakers import OwnerBreakers
from stretto.creation.creator import GroupCreator
from stretto.creation.deletion import GroupDeleter
from stretto.creation.lookup import AttemptLookup
from stretto.creation.settings import CreatorSettings
from stretto.creation.writer import GroupWriter
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    FirstSentOutOfRange,
    GroupDeleted,
    KeyReused,
)
from stretto.events.deletion_watch import DeletionWatch
from stretto.observations import WriteFailed
from stretto.postgres.attempts import PostgresAttemptStore
from stretto.postgres.deletions import PostgresDeletionStore
from stretto.postgres.log import PostgresLogStore
from stretto.postgres.writes import PostgresWriteStore
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Run
from stretto.store_errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.creation.ports import Write, WriteResult
    from stretto.errors import Failure
    from stretto.observations import Observation
    from stretto.postgres.connections import Database


class SilentStore(PostgresWriteStore):
    """A writer's statements, after one of which nothing comes until it may go on."""

    place: Place | None = None
    """Where it falls silent next."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, on_lost=lambda: None)
        self.reached = asyncio.Event()
        self.may_go_on = asyncio.Event()

    @property
    def writes_at_once(self) -> bool:
        """Whether nothing is to happen between claim and lead."""
        return self.place != "claimed"

    async def claim_and_lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        led = await super().claim_and_lead(writes, is_hasty=is_hasty)
        if led:
            await self._pass("committed")
        return led

    async def claim(self, writes: Sequence[Write]) -> set[UUID]:
        won = await super().claim(writes)
        await self._pass("claimed")
        return won

    async def lead(self, writes: Sequence[Write], *, is_hasty: bool = False) -> set[UUID]:
        led = await super().lead(writes, is_hasty=is_hasty)
        if led:
            await self._pass("committed")
        return led

    async def fail(self, write: Write, failure: Failure) -> bool:
        is_failed = await super().fail(write, failure)
        if is_failed:
            await self._pass("failed")
        return is_failed

    async def _pass(self, place: Place) -> None:
        if place == self.place:
            self.place = None
            self.reached.set()
            await self.may_go_on.wait()
            self.reached.clear()
            self.may_go_on.clear()


class Process:
    """One service process, as far as the protocol goes; use as `async with`, or let it crash."""

    def __init__(self, database: Database) -> None:
        mailbox: Mailbox[Write, WriteResult] = Mailbox(10)
        attempts = PostgresAttemptStore(database)
        settings = CreatorSettings(lease_seconds=LEASE_SECONDS)
        self.creator = GroupCreator(mailbox, attempts, settings, self._observe)
        creator = self.creator
        self.lookup = AttemptLookup(attempts, LEASE_SECONDS)
        self.deleter = GroupDeleter(PostgresDeletionStore(database), creator.forget_group, wakes=())
        log = PostgresLogStore(database.upkeep)
        # Time confirms no memory here: the model knows of none.
        self.watch = DeletionWatch(log, creator.forget_group, creator.forget, lambda _: None)
        self._store = SilentStore(database)
        breakers = OwnerBreakers(self._observe)
        self._writer = GroupWriter(
            Baton(mailbox), self._store, self._observe, breakers=breakers, batch_max=10
        )
        self._request: asyncio.Task[str] | None = None
        self._alarms: list[Observation] = []
        self.answers: dict[Wish, bytes] = {}
        """Of each success, the bytes that were answered last."""

    async def __aenter__(self) -> Self:
        await self.creator.__aenter__()
        await self.watch.open()
        self._running = [
            asyncio.create_task(Run(actor, self._observe).turns(), name=actor.name)
            for actor in (self._writer, self.deleter)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.crash()

    async def crash(self) -> None:
        """Be gone: what is under way is not answered, and nothing more is sent."""
        for task in (self._request, *self._running):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        assert self._alarms == []

    async def post(self, wish: Wish, body: int, place: Place | None = None) -> str | None:
        """Send a request; return its outcome, or nothing where the process has fallen silent."""
        self._store.place = place
        self._request = asyncio.create_task(self._post(wish, body), name="request")
        silence = asyncio.create_task(self._store.reached.wait(), name="silence")
        await asyncio.wait({self._request, silence}, return_when=asyncio.FIRST_COMPLETED)
        silence.cancel()
        self._store.place = None
        return self._request.result() if self._request.done() else None

    async def post_late(self, wish: Wish, body: int) -> str:
        """Send a request that is too old to start an attempt; return its outcome."""
        return await self._post(wish, body, is_late=True)

    async def go_on(self) -> str:
        """End the silence; return the outcome of the request."""
        assert self._request is not None
        self._store.may_go_on.set()
        return await self._request

    async def _post(self, wish: Wish, body: int, *, is_late: bool = False) -> str:
        sent = orjson.dumps(BODIES[body])
        try:
            if is_late:
                answer = await self.creator.create_from(
                    wish.owner, wish.key, sent, wait_seconds=0, out_of_range=OutOfRange(0, 1)
                )
            else:
                answer = await self.creator.create(wish.key, wish.group(body), wait_seconds=0)
        except FirstSentOutOfRange:
            return "too_old"
        except KeyReused:
            return "reused"
        except AttemptFailed:
            return "failed"
        except AttemptPending:
            return "pending"
        except GroupDeleted:
            return "deleted"
        self.answers[wish] = created_document(answer.group)
        return answer.status.value

    def _observe(self, event: Observation) -> None:
        match event:
            case WriteFailed(error) if not isinstance(error, Refused):
                self._alarms.append(event)
