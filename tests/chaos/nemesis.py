"""The nemesis: deals faults from a shuffled deck, one after the other, and mends each again.

A deck holds every fault once, so that a run over one deck has met them all; the seed orders them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from chaos.wire_proxy import Fault, FaultKind

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from chaos.history import History
    from chaos.world import World

    Card: TypeAlias = Callable[[], Awaitable[None]]

PAUSE_SECONDS_MAX: Final = 0.5
# A planned fault waits so long for its statement, and a held statement for its release.
WIRE_SECONDS: Final = 1.0
# Around the lease of half a second, on both sides.
STOP_SECONDS: Final = (0.2, 2.0)
# By how often they come by; a planned fault that meets none proves nothing.
STATEMENTS: Final = (
    *["claim_and_lead"] * 4,
    *("lead", "unlocked", "look", "fail"),
    *("log_page", "log_page", "lease_bus", "advance_bus"),
)
CHANGES: Final = (
    "ALTER TABLE attempt ADD COLUMN IF NOT EXISTS spare text",
    "CREATE INDEX IF NOT EXISTS spare ON chat_group (name)",
    "ALTER TABLE attempt DROP COLUMN IF EXISTS spare",
    "DROP INDEX IF EXISTS spare",
)
BACKENDS: Final = """SELECT pid FROM pg_stat_activity
                     WHERE application_name = 'stretto' AND backend_type = 'client backend'"""
POINT: Final = "the point"
CLOCK_JUMPS: Final = (-24 * 3600, -60, 0, 60, 24 * 3600)


@dataclass(slots=True)
class Nemesis:
    """Draws from `random`; `stall_seconds` is how long the database stands still."""

    world: World
    history: History
    random: random.Random
    stall_seconds: float
    dealt: Counter[str] = field(default_factory=Counter)
    _planned: list[Fault] = field(default_factory=list)

    @property
    def met(self) -> Counter[str]:
        """Planned faults that have met their statement."""
        happened = (fault for fault in self._planned if fault.happened.is_set())
        return Counter(f"{fault.kind} {fault.statement}" for fault in happened)

    @property
    def attempts_lost(self) -> bool:
        """Whether attempts were truncated."""
        return self.dealt["truncate"] > 0

    def deck(self) -> list[tuple[str, Card]]:
        """Return every fault once, shuffled."""
        cards: list[tuple[str, Card]] = [
            (f"wire: {kind}", partial(self._wire, kind)) for kind in FaultKind
        ]
        cards += [
            ("silence", self._silence),
            ("kill service", partial(self._end_service, signal.SIGKILL)),
            ("restart service", partial(self._end_service, signal.SIGTERM)),
            ("stop service", self._stop_service),
            ("terminate backend", partial(self._hit_backend, signal.SIGTERM)),
            ("kill backend", partial(self._hit_backend, signal.SIGKILL)),
            ("restart fast", partial(self._restart, "fast")),
            ("restart immediate", partial(self._restart, "immediate")),
            ("stall", self._stall),
            ("truncate", self._truncate),
            ("change schema", self._change_schema),
            ("full disk", self._full_disk),
            ("jump clock", self._jump_clock),
            ("fail over", self._fail_over),
            ("fail over, losing commits", self._lose),
            ("restore", self._restore),
            ("recover to a point in time", self._recover),
            ("kill bus", self._kill_bus),
            ("stop bus", self._stop_bus),
            ("bus loses its tail", self._lose_tail),
        ]
        self.random.shuffle(cards)
        return cards

    async def play(self, deck: list[tuple[str, Card]]) -> None:
        """Deal a deck, card by card."""
        for name, card in deck:
            self.history.note(name)
            self.dealt[name] += 1
            await card()
            self.history.note(f"{name}: over")
            await asyncio.sleep(self.random.uniform(0, PAUSE_SECONDS_MAX))

    async def _wire(self, kind: FaultKind) -> None:
        statement = self.random.choice(STATEMENTS)
        proxy = self.world.proxy(self._service())
        fault = proxy.plan(kind, statement, self.random.randint(1, 2))
        self._planned.append(fault)
        with suppress(TimeoutError):
            async with asyncio.timeout(WIRE_SECONDS):
                await fault.happened.wait()
        if kind is FaultKind.HOLD:
            await self._for(STOP_SECONDS)
        fault.released.set()

    async def _silence(self) -> None:
        proxy = self.world.proxy(self._service())
        proxy.silence()
        await self._for(STOP_SECONDS)
        proxy.restore()

    async def _end_service(self, how: signal.Signals) -> None:
        await self.world.end_service(self._service(), how)

    async def _stop_service(self) -> None:
        service = self.world.services[self._service()]
        service.signal(signal.SIGSTOP)
        await self._for(STOP_SECONDS)
        service.signal(signal.SIGCONT)

    async def _hit_backend(self, how: signal.Signals) -> None:
        connection = await self.world.primary.connect()
        pids = [row["pid"] for row in await connection.fetch(BACKENDS)]
        connection.terminate()
        if pids:
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(sorted(pids)), how)

    async def _restart(self, mode: str) -> None:
        await self.world.primary.restart(mode)

    async def _stall(self) -> None:
        self.world.primary.signal(signal.SIGSTOP)
        await asyncio.sleep(self.stall_seconds)
        self.world.primary.signal(signal.SIGCONT)

    async def _truncate(self) -> None:
        await self._execute("TRUNCATE attempt")

    async def _change_schema(self) -> None:
        for change in CHANGES:
            await self._execute(change)

    async def _execute(self, statement: str) -> None:
        """Run a statement that needs a lock on a table under load, until it gets it."""
        done = False
        while not done:
            connection = await self.world.primary.connect()
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await connection.execute(f"SET lock_timeout = '2s'; {statement}")
                done = True
            connection.terminate()

    async def _full_disk(self) -> None:
        """No room for the log: the server panics and stays down until there is some."""
        await asyncio.to_thread(self.world.primary.limit_files, 64 * 1024)
        await self._for(STOP_SECONDS)
        await self.world.primary.restart()

    async def _jump_clock(self) -> None:
        self.world.jump_clock(self.random.choice(CLOCK_JUMPS))

    async def _fail_over(self) -> None:
        # Until the standby has caught up after a restart, it is no standby.
        await self.world.primary.set_synchronous(is_synchronous=True)
        await self.world.fail_over()

    async def _lose(self) -> None:
        """Promote a standby that has fallen behind."""
        await self.world.primary.set_synchronous(is_synchronous=True)
        began = self.history.note("from here on, commits are lost")
        await self.world.standby.fall_behind()
        await self.world.primary.set_synchronous(is_synchronous=False)
        await self._for(STOP_SECONDS)
        await self.world.fail_over(partial(self.history.lose, began))

    async def _restore(self) -> None:
        """Restore a backup into another server, whose transactions are numbered from the start."""
        began = self.history.note("from here on, commits are lost")
        dump = await self.world.primary.dump()
        await self._for(STOP_SECONDS)
        await self.world.restore(dump, partial(self.history.lose, began))

    async def _recover(self) -> None:
        """Recover a base backup to a point in time, from which on ids are given out again."""
        backup = await self.world.back_up()
        await self._for(STOP_SECONDS)
        began = self.history.note("from here on, commits are lost")
        await self.world.primary.mark(POINT)
        await self._for(STOP_SECONDS)
        await self.world.recover(backup, POINT, partial(self.history.lose, began))

    async def _kill_bus(self) -> None:
        await self.world.bus.kill()
        await self._for(STOP_SECONDS)
        await self.world.bus.start()

    async def _stop_bus(self) -> None:
        await self.world.bus.freeze()
        await self._for(STOP_SECONDS)
        self.world.bus.thaw()

    async def _lose_tail(self) -> None:
        copy = await self.world.bus.copy()
        await self._for(STOP_SECONDS)
        self.history.publish(await self.world.bus.put_back(copy))

    def _service(self) -> int:
        return self.random.randrange(len(self.world.services))

    async def _for(self, bounds: tuple[float, float]) -> None:
        await asyncio.sleep(self.random.uniform(*bounds))
