"""What happens to a primary. Each scenario brings it about at once, and returns what undoes it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import asyncpg

from chaos.server import fill
from stretto.postgres.driver_connection import watchdog
from stretto.postgres.driver_errors import DRIVER_ERRORS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ha.formation import Formation, Node

    Undo: TypeAlias = Callable[[], Awaitable[None]]
    Strike: TypeAlias = Callable[[Formation, Node], Awaitable[Undo]]

# More files of WAL than its disk could hold.
SWITCHES_MAX: Final = 20
SWITCH_SECONDS: Final = 5.0
FILL_WAL: Final = "SELECT pg_logical_emit_message(false, 'ha', 'full')"
SWITCH_WAL: Final = "SELECT pg_switch_wal()"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A failure of the primary, and what its nodes need for it."""

    what: str
    strike: Strike
    has_links: bool = False
    has_disks: bool = False
    """Each node's WAL lies on a small disk, which only root may mount."""


async def kill(_: Formation, primary: Node) -> Undo:
    """Kill pg_autoctl, the postmaster and all below them; start pg_autoctl again afterwards."""
    await primary.keeper.kill()
    return primary.keeper.start


async def switch_over(formation: Formation, _: Node) -> Undo:
    """Have the monitor give the role to another node; the old primary follows by itself."""
    await formation.switch_over()
    return _nothing


async def freeze(_: Formation, primary: Node) -> Undo:
    """Stop the processes: nothing answers, and no connection breaks, as with a dead machine."""
    frozen = primary.keeper.freeze()

    async def thaw() -> None:
        primary.keeper.thaw(frozen)

    return thaw


async def part(_: Formation, primary: Node) -> Undo:
    """Cut the node off from the monitor and the other nodes; the services still reach it."""
    primary.cut()

    async def join() -> None:
        primary.join()

    return join


async def fill_disk(formation: Formation, primary: Node) -> Undo:
    """Leave no room for the WAL, and use up the file that is begun: the server panics."""
    assert primary.disk is not None
    filler = await asyncio.to_thread(fill, primary.disk)
    admin = await asyncpg.connect(primary.dsn(primary.keeper.place.account.name))
    with suppress(*DRIVER_ERRORS):
        for _ in range(SWITCHES_MAX):
            with watchdog(admin, SWITCH_SECONDS):
                await admin.execute(FILL_WAL)
                await admin.execute(SWITCH_WAL)
    admin.terminate()

    async def make_room() -> None:
        filler.unlink()
        await formation.restore_disks()

    return make_room


async def _nothing() -> None:
    pass


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "kill": Scenario("the primary and its pg_autoctl are killed", kill),
    "switchover": Scenario("an operator asks for another primary", switch_over),
    "freeze": Scenario("the primary and its pg_autoctl stop answering", freeze),
    "partition": Scenario("the primary is cut off from all but the services", part, has_links=True),
    "disk": Scenario("the disk of the primary's WAL is full", fill_disk, has_disks=True),
}
