"""Routes that need no token, and must not keep those with one waiting."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from stretto.http.routes.health import metrics
from stretto.http.service import SERVICE
from stretto.runtime.turns import Turns
from support.loop_turns import counted_turns

if TYPE_CHECKING:
    from aiohttp import web


async def test_metrics_are_written_one_at_a_time() -> None:
    """Each takes milliseconds; hundreds of connections may ask at once, and without a token."""
    written: list[int] = []

    with counted_turns() as turn:

        def exposition() -> bytes:
            written.append(turn())
            return b""

        service = SimpleNamespace(turns=Turns(), metrics=SimpleNamespace(exposition=exposition))
        request = cast("web.Request", SimpleNamespace(app={SERVICE: service}))
        await asyncio.gather(*(metrics(request) for _ in range(5)))

    assert 5 == len(set(written))
