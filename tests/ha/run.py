"""One scenario: a formation, two replicas, creations, sessions and a probe; then the check of all."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import asyncpg

from chaos.bus import Bus
from chaos.checker import Allowances, Checker, report
from chaos.clients import Clients
from chaos.history import History
from chaos.listeners import Listeners
from chaos.rows import read_rows
from chaos.run import ALARMS, heard
from chaos.violation import Violation
from chaos.world import PUBLISHER, failures_of
from ha.formation import running_formation
from ha.load import Load
from ha.measures import Turn, kinds_of, last_of_backlog, longest_pause
from ha.place import make_place
from ha.probe import Probe
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from ha.formation import Formation, Node
    from ha.scenarios import Scenario

    Say = Callable[[str], None]

REPLICAS: Final = 2
# As in production: a lease that ends sooner would hide what a client waits for.
SETTINGS: Final = {"LEASE_SECONDS": "5", **PUBLISHER}
CALM_SECONDS: Final = 3.0
# What a replica does after it has resumed counts as well: it may stumble again.
AFTER_SECONDS: Final = 5.0


@dataclass(slots=True)
class Replicas:
    """The services on a formation."""

    settings: dict[str, str]
    stack: AsyncExitStack
    running: list[ServiceProcess] = field(default_factory=list)
    ended: list[ServiceProcess] = field(default_factory=list)

    def urls(self) -> list[str]:
        """Return where they are."""
        return [service.url for service in self.running]

    async def start(self) -> None:
        """Start all of them, with empty memories, in the place of those that run."""
        for service in self.running:
            service.signal(signal.SIGTERM)
        await asyncio.gather(*(service.exited() for service in self.running))
        self.ended += self.running
        self.running = [
            await self.stack.enter_async_context(ServiceProcess(self.settings))
            for _ in range(REPLICAS)
        ]

    def violations(self) -> list[Violation]:
        """Return what their logs and ends say about bugs."""
        failures = failures_of([*self.ended, *self.running])
        ended = [service.process.returncode for service in self.running]
        return [
            *(
                Violation(None, f"{alarm}: {failures[alarm]}")
                for alarm in ALARMS
                if failures[alarm]
            ),
            *(
                Violation(None, f"a replica has ended with {code}")
                for code in ended
                if code is not None
            ),
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario has measured and found."""

    turns: list[Turn]
    violations: list[Violation]
    history: History
    failures: Counter[str]

    @property
    def found(self) -> Counter[str]:
        """The violations, by what they mean to a client."""
        return kinds_of(self.violations)

    def lines(self) -> list[str]:
        """Return how much was tried, and the violations with their histories."""
        operations = self.history.operations
        statuses = Counter(str(each.status or "no answer") for each in operations)
        events = sum(len(each.events) for each in self.history.listenings)
        return [
            f"requests: {len(operations)} for {len({each.key for each in operations})} keys",
            f"answers: {dict(sorted(statuses.items()))}",
            f"events: {events} to {len(self.history.listenings)} clients",
            f"reported by the services: {dict(sorted(self.failures.items()))}",
            report(self.history, self.violations),
        ]


@dataclass(slots=True)
class Stand:
    """All that a turn looks at."""

    formation: Formation
    replicas: Replicas
    load: Load
    probe: Probe
    history: History
    say: Say

    async def turn(self, scenario: Scenario) -> Turn:
        """Break the primary once, wait until another serves, and have the node come back."""
        primary = await self.formation.settled()
        await asyncio.sleep(CALM_SECONDS)
        self.say(f"{scenario.what}: {primary.name}")
        self.history.note(scenario.what)
        began = time.monotonic()
        undo = await scenario.strike(self.formation, primary)
        engine = await self.probe.moved(primary, began)
        self.say(f"another node takes writes after {engine - began:.1f} s")
        await self.load.resumed(engine)
        await asyncio.sleep(AFTER_SECONDS)
        ended = time.monotonic()
        self.say(f"{primary.name} comes back")
        self.history.note("mended")
        await undo()
        await self.formation.settled()
        return self._measured(began, engine, ended)

    def _measured(self, began: float, engine: float, ended: float) -> Turn:
        now = time.monotonic()
        created = [self.load.created[url] for url in self.replicas.urls()]
        pauses = [longest_pause(times, began, ended) for times in created]
        turn = Turn(
            engine - began,
            tuple(pause.ended - began for pause in pauses),
            last_of_backlog(self.load.waits, engine) - began,
            longest_pause(sorted(chain(*created)), ended, now).seconds,
            max(lag for due, lag in self.load.lags if engine <= due <= ended),
        )
        self.say(
            f"creations resumed {turn.behind:.2f} s after the engine,"
            f" all that had waited were acknowledged {turn.backlog - turn.engine:.1f} s after it;"
            f" this program was late by up to {turn.lag:.2f} s"
        )
        return turn


async def run_scenario(scenario: Scenario, turns: int, folder: Path, say: Say) -> Outcome:
    """Play a scenario so many times on one formation; then settle and check."""
    history = History(folder / "history.jsonl")
    async with AsyncExitStack() as stack:
        place = make_place(Path(stack.enter_context(_new_folder())), folder)
        formation = await stack.enter_async_context(
            running_formation(
                place, say, has_links=scenario.has_links, has_disks=scenario.has_disks
            )
        )
        shutil.rmtree(folder / "nats", ignore_errors=True)
        bus = await stack.enter_async_context(Bus(folder / "nats"))
        settings = {"DATABASE_URL": formation.dsn, "NATS_URL": bus.url, **SETTINGS}
        replicas = Replicas(settings, stack)
        await replicas.start()
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        listeners = Listeners(replicas, history, random.Random(), session)
        load = Load(replicas, history, session)
        async with _beside(listeners.run()):
            await listeners.begun()
            async with (
                Probe(formation.nodes) as probe,
                _beside(load.watch()),
                _beside(load.run()) as creations,
            ):
                stand = Stand(formation, replicas, load, probe, history, say)
                measured = [await stand.turn(scenario) for _ in range(turns)]
                load.stop()
                await creations
            say("checking")
            primary = await formation.settled()
            found = await _settled(primary, replicas, listeners, bus)
        history.close()
        for number, service in enumerate([*replicas.ended, *replicas.running]):
            (folder / f"replica-{number}.log").write_bytes(b"".join(service.log))
        failures = failures_of([*replicas.ended, *replicas.running])
        return Outcome(measured, found, history, failures)


async def _settled(
    primary: Node, replicas: Replicas, listeners: Listeners, bus: Bus
) -> list[Violation]:
    """Send every request again to replicas that remember nothing, and check what has become of it."""
    found = replicas.violations()
    await replicas.start()
    history = listeners.history
    history.note("settle")
    clients = Clients(replicas, history, random.Random(), listeners.session)
    found += [Violation(key, "not settled in the end") for key in await clients.settle()]
    connection = await asyncpg.connect(
        primary.dsn(), server_settings={"search_path": "stretto,public"}
    )
    rows = await read_rows(connection)
    await connection.close()
    await heard(bus, listeners, rows)
    return [*found, *replicas.violations(), *Checker(history, rows, Allowances()).violations()]


@asynccontextmanager
async def _beside(work: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run something until the context ends; raises what has ended it before."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _new_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stretto-ha-", ignore_cleanup_errors=True)
