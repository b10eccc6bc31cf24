"""Compares the hosts of a database's URL, before one of them is trusted again.

A primary that a standby has replaced takes writes as before, until it is stopped. So that a host serves
does not show that it is the primary: the timelines of all hosts do. They are asked side by side at the
start, and once a connection was lost, as whatever promotes a standby ends those to the old primary.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Coroutine, Iterable

    from stretto.postgres.host_failures import Host

Opened = TypeVar("Opened")

# Clients wait meanwhile. A connection takes some ten round trips: enough for 40 ms each. A host that is silent for
# longer is asked again in the background (`searching`). A part of `standby.ASK_SECONDS`.
COMPARE_SECONDS: Final = 0.4
# A host that swallows packets must not delay each new connection. It is asked again after this time, with the
# next connection: it may be the primary by now.
SILENT_AGAIN_SECONDS: Final = 10.0


class Comparisons:
    """When which hosts are asked. `losses` is how many connections have ended so far."""

    def __init__(self, clock_seconds: Callable[[], float] = time.monotonic) -> None:
        self._clock_seconds = clock_seconds
        self._losses_seen = -1
        """How many there were as the last comparison began in which each host has answered."""
        self._silent_at: dict[Host, float] = {}

    def due(self, hosts: Iterable[Host], losses: int) -> tuple[Host, ...]:
        """Return the hosts to compare now, in their order; none where there is nothing to find out."""
        if losses == self._losses_seen:
            return ()
        silent_since = self._clock_seconds() - SILENT_AGAIN_SECONDS
        due = [host for host in hosts if self._silent_at.get(host, silent_since) <= silent_since]
        return tuple(due) if len(due) > 1 else ()

    def note(self, asked: Iterable[Host], answered: Container[Host], losses: int) -> bool:
        """Note which hosts have answered of those that were asked when there were so many losses; return whether all have.

        Until every host of the URL has, the next connection begins another comparison.
        """
        now = self._clock_seconds()
        for host in asked:
            if host in answered:
                self._silent_at.pop(host, None)
            else:
                self._silent_at[host] = now
        if not self._silent_at:
            self._losses_seen = max(losses, self._losses_seen)
        return all(host in answered for host in asked)


async def ask_all(
    hosts: Iterable[Host],
    connect: Callable[[Host], Coroutine[None, None, Opened | Exception]],
    close: Callable[[Opened], object],
    seconds: float = COMPARE_SECONDS,
) -> tuple[dict[Host, Opened], dict[Host, Exception]]:
    """Return the connections, and the failures, of the hosts that answer within so many seconds.

    All are tried side by side. What was opened is given to `close` where this is cancelled.
    """
    tasks: dict[Host, asyncio.Task[Opened | Exception]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for host in hosts:
                tasks[host] = group.create_task(connect(host), name=f"compare {host}")
            await asyncio.wait(tasks.values(), timeout=seconds)
            for task in tasks.values():
                task.cancel()
    except BaseException:
        for opened in _answers(tasks)[0].values():
            close(opened)
        raise
    return _answers(tasks)


def _answers(
    tasks: dict[Host, asyncio.Task[Opened | Exception]],
) -> tuple[dict[Host, Opened], dict[Host, Exception]]:
    """Return what each task has opened, or failed with; a host's that was cancelled is silent."""
    opened: dict[Host, Opened] = {}
    failures: dict[Host, Exception] = {}
    for host, task in tasks.items():
        if task.cancelled():
            continue
        if isinstance(outcome := task.result(), Exception):
            failures[host] = outcome
        else:
            opened[host] = outcome
    return opened, failures
