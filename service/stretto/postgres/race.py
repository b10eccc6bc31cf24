"""Tries the hosts of a database's URL, without waiting for a silent one alone.

A host that has frozen, or that a network is cut off from, neither answers nor refuses. Meanwhile
another host becomes the primary: only asking again finds it.
"""

from __future__ import annotations

import asyncio
from itertools import cycle
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

Host = TypeVar("Host")
Opened = TypeVar("Opened")

# A host that lives answers within some milliseconds, or round trips over an ocean. A host that
# becomes the primary while another is silent is found after this time at most.
SILENT_SECONDS: Final = 0.25


async def race(
    hosts: Sequence[Host],
    connect: Callable[[Host], Coroutine[None, None, Opened | Exception]],
    close: Callable[[Opened], object],
) -> tuple[Host, Opened] | dict[Host, Exception]:
    """Return the first host that gives a connection, with it; else what each host has failed with.

    The hosts are tried in their order: each as soon as the one before has failed, or has been silent
    for `SILENT_SECONDS`. Those that have failed are tried again until each has failed once: so this
    takes no longer than the slowest first try. `connect` bounds its time, and returns its failure. A
    second connection is given to `close`.
    """
    pending: dict[Host, asyncio.Task[Opened | Exception]] = {}
    failures: dict[Host, Exception] = {}
    won: tuple[Host, Opened] | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            for host in cycle(hosts):
                if host not in pending:
                    pending[host] = tasks.create_task(connect(host), name=f"connect to {host}")
                await asyncio.wait(
                    pending.values(),
                    timeout=SILENT_SECONDS,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                won = _take(pending, failures)
                # What has failed once may be silent now: to wait for it would never end where all are.
                if won is not None or failures.keys() >= {*hosts}:
                    break
            for task in pending.values():
                task.cancel()
    except BaseException:
        if won is not None:
            close(won[1])
        raise
    finally:
        for task in pending.values():
            # It was opened in the same turn as another one, or as it was cancelled.
            if not task.cancelled() and not isinstance(late := task.result(), Exception):
                close(late)
    return won if won is not None else failures


def _take(
    pending: dict[Host, asyncio.Task[Opened | Exception]], failures: dict[Host, Exception]
) -> tuple[Host, Opened] | None:
    """Take what is done out of `pending`, until a connection is found."""
    for host, task in [*pending.items()]:
        if task.done():
            del pending[host]
            outcome = task.result()
            if not isinstance(outcome, Exception):
                return host, outcome
            failures[host] = outcome
    return None
