"""PoolWatch: notices that a host closes the pool that its component runs on.

A pool's `close` waits until every connection has come back, and writers keep theirs. A host that
closes the pool before the component would wait for ever: the component stops only afterwards. The
driver tells nobody that a pool is closing, so the watch looks, and has the writers let go. From then
on nothing can be created; what is asked is answered with an error, and the same key may come again.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from stretto.runtime.actor import Actor, Pace

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

# What a host that closes first waits for at most, beside a write that is under way. A look reads one
# attribute.
LOOK_SECONDS: Final = 0.25


class PoolWatch(Actor):
    """Calls each of `releases` time and again while the pool `is_closing`.

    Once is not enough: a writer that is at a write lets go after it.
    """

    pace = Pace(seconds=LOOK_SECONDS)

    def __init__(
        self, is_closing: Callable[[], bool], releases: Sequence[Callable[[], Awaitable[None]]]
    ) -> None:
        super().__init__("pool watch")
        self._is_closing = is_closing
        self._releases = releases

    async def run_once(self) -> int:
        """Look once; return how many writers have let go.

        Raises what a host's own code has raised as its pool took a connection back.
        """
        if not self._is_closing():
            return 0
        # Each one is called, whatever those before it raise.
        async with AsyncExitStack() as stack:
            for release in reversed(self._releases):
                stack.push_async_callback(release)
        return len(self._releases)
