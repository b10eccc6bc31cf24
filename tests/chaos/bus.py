"""The NATS of a chaos run, and a consumer that misses nothing that ever stood on it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import orjson

from chaos.listening import Received
from stretto.postgres.deletions import DELETED
from support.nats_process import OURS, NatsProcess, nats_client, stored

if TYPE_CHECKING:
    from pathlib import Path


class Bus(NatsProcess):
    """Can be put back to an older copy of its store: it has then lost its tail."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._seen: set[Received] = set()

    async def copy(self) -> Path:
        """Return a copy of the store as it is now."""
        copy = self.folder.with_name("nats-copy")
        shutil.rmtree(copy, ignore_errors=True)
        await self.kill()
        shutil.copytree(self.folder, copy)
        await self.start()
        return copy

    async def put_back(self, copy: Path) -> list[Received]:
        """Go back to a copy; return what stood on the bus and was not returned before."""
        await self.kill()
        # Where no publisher finds it.
        async with NatsProcess(self.folder) as aside:
            events = await self._read(aside.url)
        shutil.rmtree(self.folder)
        shutil.copytree(copy, self.folder)
        await self.start()
        return events

    async def read(self) -> list[Received]:
        """Return what stands on the bus and was not returned before."""
        return await self._read(self.url)

    async def _read(self, url: str) -> list[Received]:
        async with nats_client(url) as client:
            messages = await stored(client, OURS.event_stream)
        found = {
            Received.of(orjson.loads(message.data))
            for message in messages
            if message.subject in (OURS.event_subject, OURS.subject_of(DELETED))
        }
        fresh = found - self._seen
        self._seen |= fresh
        return list(fresh)
