"""One chaos run: clients against services under a nemesis, then the check of all answers."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import aiohttp

from chaos.checker import Allowances, Checker, report
from chaos.clients import CLIENTS, Clients
from chaos.history import AGAIN, SETTLE, History
from chaos.listeners import RESUMPTIONS, Listeners
from chaos.nemesis import Nemesis
from chaos.rows import Rows, read_rows
from chaos.violation import Violation
from chaos.world import World, running_world
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.bus import Bus

# For the publisher to come to the end of the log.
PUBLISH_SECONDS_MAX: Final = 30
# What a service logs when it has found a bug, or a broken guarantee.
ALARMS: Final = ("guarantee.broken", "actor.crashed")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run has found, and how much it has tried."""

    history: History
    violations: list[Violation]
    faults: Counter[str]
    met: Counter[str]
    failures: Counter[str]

    def lines(self) -> list[str]:
        """Return the figures, a line for each."""
        operations, clients = self.history.operations, self.history.listenings
        statuses = Counter(str(o.status or "no answer") for o in operations)
        how = Counter(o.how for o in operations if o.how)
        unknown = {o.key for o in operations if o.do == "create" and _is_unknown(o.status)}
        settled = {o.key for o in operations if o.do == "create" and not _is_unknown(o.status)}
        return [
            f"requests: {len(operations)} for {len({o.key for o in operations})} keys",
            f"answers: {_listed(statuses)}",
            f"successes: {_listed(how)}",
            f"keys with an unknown outcome: {len(unknown)}, settled: {len(unknown & settled)}",
            f"events: {sum(len(each.events) for each in clients)} to {len(clients)} clients",
            f"positions that were lost: {sum(len(each.lost) for each in clients)}",
            f"events on the bus: {len(self.history.published)}",
            f"faults: {sum(self.faults.values())} ({_listed(self.faults)})",
            f"wire faults that met a statement: {_listed(self.met)}",
            f"reported by the services: {_listed(self.failures)}",
            report(self.history, self.violations),
        ]


async def run_chaos(
    seed: int,
    folder: Path,
    *,
    seconds: float = 0,
    stall_seconds: float = 2,
    clients_max: int = CLIENTS,
    resumptions_max: int = RESUMPTIONS,
) -> Outcome:
    """Play whole decks of faults, at least one, until the time is over; then settle and check."""
    # In debug mode the clients would take twice as much of the processor; the services have it.
    asyncio.get_running_loop().set_debug(False)
    history = History(folder / "history.jsonl")
    choices = random.Random(seed)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        running_world(folder) as world,
        aiohttp.ClientSession(connector=connector) as session,
    ):
        dice = [random.Random(choices.random()) for _ in range(3)]
        clients = Clients(world, history, dice[0], session, clients_max)
        listeners = Listeners(world, history, dice[1], session, resumptions_max)
        nemesis = Nemesis(world, history, dice[2], stall_seconds)
        deadline = time.monotonic() + seconds
        listening = asyncio.create_task(listeners.run(), name="listeners")
        await listeners.begun()
        load = asyncio.create_task(clients.run(), name="clients")
        try:
            while not nemesis.dealt or (time.monotonic() < deadline and not load.done()):
                await nemesis.play(nemesis.deck())
            await _end(load)
            violations = await _settled(world, clients, listeners, nemesis)
        finally:
            await _end(load)
            await _end(listening)
        history.close()
        return Outcome(history, violations, nemesis.dealt, nemesis.met, world.failures())


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _settled(
    world: World, clients: Clients, listeners: Listeners, nemesis: Nemesis
) -> list[Violation]:
    """Let everything settle at services that remember nothing, and check what has become of it."""
    faults = [
        Violation(None, f"a service has ended by itself with {service.process.returncode}")
        for service in world.services
        if service.process.returncode is not None
    ]
    await asyncio.gather(*(world.start_service(number) for number in range(len(world.services))))
    clients.history.note(SETTLE)
    faults += [Violation(key, "not settled in the end") for key in await clients.settle()]
    connection = await world.primary.connect()
    rows = await read_rows(connection)
    await connection.close()
    await heard(world.bus, listeners, rows)
    failures = world.failures()
    return [
        *faults,
        *(
            Violation(None, f"{alarm}: {failures[alarm]}, such as {world.first_line(alarm)}")
            for alarm in ALARMS
            if failures[alarm]
        ),
        *Checker(clients.history, rows, Allowances(nemesis.attempts_lost)).violations(),
    ]


async def heard(bus: Bus, listeners: Listeners, rows: Rows) -> None:
    """Give every event the time to come to every client and to the bus; then resume once more."""
    history = listeners.history
    history.note("every event is due")
    due = {
        each.user: {str(event.event_id) for event in rows.events if each.user in event.recipients}
        for each in history.listenings
    }
    await listeners.settle(due)
    await listeners.resume()
    wanted = {str(event.event_id) for event in rows.events}

    async def are_published() -> bool:
        history.publish(await bus.read())
        return wanted <= {event.id for event in history.published}

    # The checker says which are missing.
    with suppress(TimeoutError):
        await until(are_published, PUBLISH_SECONDS_MAX)


def _is_unknown(status: int | None) -> bool:
    return status is None or status in AGAIN


def _listed(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counted.items())) or "none"
