"""PoolWatch: notices that a host closes the pool that its component runs on.

A pool's `close` waits until every connection has come back, and writers keep theirs. A host that
closes the pool before the component would wait for ever: the component stops only afterwards. The
driver tells nobody that a pool is closing, so the watch looks, and has the writers let go. From then
on nothing can be created; what is asked is answered with an error, and the same key may come again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from stretto.protocol.ports import ActorCrashed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stretto.protocol.ports import Observer

# What a host that closes first waits for at most, beside a write that is under way. A look reads one
# attribute.
LOOK_SECONDS: Final = 0.25


class PoolWatch:
    """Calls each of `releases` as long as the pool `is_closing`; `pause` is for tests."""

    def __init__(
        self,
        is_closing: Callable[[], bool],
        releases: Sequence[Callable[[], Awaitable[None]]],
        observe: Observer,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._is_closing = is_closing
        self._releases = releases
        self._observe = observe
        self._pause = pause

    async def run(self) -> None:
        """Look time and again, until cancelled: a write that is under way lets go after it."""
        while True:
            await self.run_once()
            await self._pause(LOOK_SECONDS)

    async def run_once(self) -> int:
        """Look once; return how many writers were asked to let go."""
        if not self._is_closing():
            return 0
        for release in self._releases:
            try:
                await release()
            except Exception as error:  # noqa: BLE001 the host's own code runs as its pool takes back
                self._observe(ActorCrashed("pool watch", error))
        return len(self._releases)
