"""The load of `make ha`, which runs too long for the suite, on a service in this process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.history import CREATED, History
from ha.load import Load

if TYPE_CHECKING:
    from support.api_client import Api


@dataclass(slots=True)
class One:
    """A service that is the only replica."""

    url: str

    def urls(self) -> list[str]:
        """Return where it is."""
        return [self.url]


async def test_the_shipped_client_creates_and_each_try_is_noted(api: Api) -> None:
    """The client asks its session for more than it once did: a load that broke stayed unseen."""
    load = Load(One(api.url), History(), api.session)
    running = asyncio.ensure_future(load.run())
    await load.resumed(since=0)
    load.stop()
    await running
    assert len(load.waits) == len(load.history.operations)
    assert {CREATED} == {operation.status for operation in load.history.operations}
    assert {"created"} == {operation.how for operation in load.history.operations}
