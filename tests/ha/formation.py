"""A formation of pg_auto_failover: a monitor, a primary and two standbys, of which a commit needs one.

All of it listens on loopback addresses and trusts whoever connects from this machine: it holds
nothing but a test's groups, and is removed afterwards.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import asyncpg

from chaos.server import small_disk
from chaos.wire_proxy import WireProxy
from ha.keeper import Keeper
from stretto.postgres.migrate import migrate
from support.ports import free_port
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from ha.place import Place
    from support.database import Connection

    Say = Callable[[str], None]

NAME: Final = "stretto"
LOCAL: Final = "127.0.0.1"
NODES: Final = 3
# A failover by itself takes up to a minute, and a node that comes back may be copied anew.
SETTLED_SECONDS_MAX: Final = 300
LOOK_SECONDS: Final = 0.2
# The log of a node of the disk scenario: some files of 16 MB, and what a base backup needs.
DISK_SIZE: Final = "256m"
STATES: Final = """
    SELECT nodename, reportedstate::text AS reported, goalstate::text AS goal
    FROM pgautofailover.node ORDER BY nodeid"""
QUORUM: Final = "SELECT pgautofailover.set_formation_number_sync_standbys('default', 1)"
SWITCHOVER: Final = "SELECT pgautofailover.perform_failover('default', 0)"
PROBED: Final = "CREATE SCHEMA ha; CREATE TABLE ha.probe (number bigserial)"


@dataclass(slots=True)
class Node:
    """A PostgreSQL that is the primary or a standby."""

    keeper: Keeper
    links: list[WireProxy] = field(default_factory=list)
    """From it to the monitor, and from all but the services to it; none where nothing is cut."""
    disk: Path | None = None
    """Where its WAL lies, if that has a disk of its own."""

    @property
    def name(self) -> str:
        """The name that the monitor knows it by."""
        return self.keeper.name

    def dsn(self, user: str = NAME) -> str:
        """Return its own address, which no link stands before."""
        return f"postgresql://{user}@{LOCAL}:{self.keeper.port}/{NAME}?sslmode=disable"

    def cut(self) -> None:
        """Part it from the monitor and the other nodes: what they send never arrives."""
        for link in self.links:
            link.silence()
            # In a network, keep-alives find out; between processes of one machine they do not.
            link.reset()

    def join(self) -> None:
        """Undo the cut."""
        for link in self.links:
            link.restore()

    def move_wal(self) -> None:
        """Put the WAL of a stopped node on its own disk."""
        assert self.disk is not None
        log, target = self.keeper.data / "pg_wal", self.disk / "pg_wal"
        shutil.rmtree(target, ignore_errors=True)
        # As its own account, with the owners and modes that the server expects.
        assert self.keeper.place.account.run("cp", "-a", log, target).returncode == 0
        shutil.rmtree(log)
        log.symlink_to(target)


@dataclass(slots=True)
class Formation:
    """The monitor, seen by a connection of our own, and the nodes."""

    nodes: list[Node]
    monitor: Keeper
    connection: Connection
    say: Say

    @property
    def dsn(self) -> str:
        """One address of all nodes, as the services get it."""
        hosts = ",".join(f"{LOCAL}:{node.keeper.port}" for node in self.nodes)
        return f"postgresql://{NAME}@{hosts}/{NAME}?sslmode=disable&target_session_attrs=read-write"

    async def settled(self) -> Node:
        """Wait until one node is the primary and all others follow it; return that one."""
        last: list[str] = []

        async def look() -> Node | None:
            await asyncio.sleep(LOOK_SECONDS)
            found = await self.connection.fetch(STATES)
            states = [f"{each['nodename']} {each['reported']}->{each['goal']}" for each in found]
            if states != last:
                last[:] = states
                self.say(", ".join(states))
            kept = [each["reported"] for each in found if each["reported"] == each["goal"]]
            if sorted(kept) != ["primary", *["secondary"] * (NODES - 1)]:
                return None
            name = next(each["nodename"] for each in found if each["reported"] == "primary")
            return next(node for node in self.nodes if node.name == name)

        node = await until(look, SETTLED_SECONDS_MAX)
        assert node is not None
        return node

    async def switch_over(self) -> None:
        """Ask the monitor for another primary, as `pg_autoctl perform switchover` does."""
        await self.connection.execute(SWITCHOVER)

    async def restore_disks(self) -> None:
        """Put each WAL back on its own disk, once all nodes have come back."""
        await self.settled()
        for node in self.nodes:
            if not (node.keeper.data / "pg_wal").is_symlink():
                self.say(f"{node.name} was copied anew: its WAL goes back to its own disk")
                await node.keeper.stop()
                node.move_wal()
                await node.keeper.start()
                await self.settled()


@asynccontextmanager
async def running_formation(
    place: Place, say: Say, *, has_links: bool, has_disks: bool
) -> AsyncIterator[Formation]:
    """Start a monitor and the nodes one after the other, with our tables; end all of them."""
    async with AsyncExitStack() as stack:
        monitor = await stack.enter_async_context(Keeper(place, "monitor", free_port()))
        say("creating the monitor")
        await monitor.run(
            *("create monitor", "--no-ssl", "--skip-pg-hba"),
            pgctl=str(place.pg_ctl),
            pgport=str(monitor.port),
            hostname=LOCAL,
        )
        await monitor.run("config set", "postgresql.listen_addresses", LOCAL)
        await monitor.start()
        connection = await _monitor_connection(monitor)
        stack.callback(connection.terminate)
        formation = Formation([], monitor, connection, say)
        for number in range(NODES):
            say(f"creating node {number + 1}")
            node = await _new_node(stack, formation, number, has_links=has_links)
            if has_disks:
                account = place.account
                node.disk = await stack.enter_async_context(small_disk(DISK_SIZE, account))
                node.move_wal()
            formation.nodes.append(node)
            await node.keeper.start()
        # The monitor refuses it while a node is still joining.
        await formation.settled()
        await connection.execute(QUORUM)
        await _prepare(await formation.settled(), place.account.name)
        yield formation


async def _new_node(
    stack: AsyncExitStack, formation: Formation, number: int, *, has_links: bool
) -> Node:
    """Create a node: the first is the primary, the others are copies."""
    monitor = formation.monitor
    place, port = monitor.place, free_port()
    node = Node(await stack.enter_async_context(Keeper(place, f"node-{number + 1}", port)))
    monitor_port, host = monitor.port, LOCAL
    if has_links:
        # The monitor knows a node by its address alone: the same port at another address.
        host = f"127.0.1.{number + 1}"
        leads_to = f"postgresql://{LOCAL}:{monitor.port}/"
        to_monitor = await stack.enter_async_context(WireProxy(leads_to))
        to_node = await stack.enter_async_context(WireProxy(node.dsn(), host, port))
        node.links = [to_monitor, to_node]
        monitor_port = to_monitor.port
    await node.keeper.run(
        *("create postgres", "--no-ssl", "--skip-pg-hba"),
        pgctl=str(place.pg_ctl),
        pgport=str(port),
        listen=LOCAL,
        hostname=host,
        name=node.name,
        dbname=NAME,
        monitor=f"postgres://autoctl_node@{LOCAL}:{monitor_port}/pg_auto_failover?sslmode=prefer",
    )
    return node


async def _monitor_connection(monitor: Keeper) -> Connection:
    user = monitor.place.account.name
    dsn = f"postgresql://{user}@{LOCAL}:{monitor.port}/pg_auto_failover?sslmode=disable"

    async def connect() -> Connection | None:
        await asyncio.sleep(LOOK_SECONDS)
        with suppress(OSError, asyncpg.PostgresError):
            return await asyncpg.connect(dsn)
        return None

    connection = await until(connect, SETTLED_SECONDS_MAX)
    assert connection is not None
    return connection


async def _prepare(primary: Node, superuser: str) -> None:
    """Make the role, the tables, and what the probe writes to."""
    admin = await asyncpg.connect(primary.dsn(superuser))
    await admin.execute(f"CREATE ROLE {NAME} LOGIN; GRANT CREATE ON DATABASE {NAME} TO {NAME}")
    await admin.close()
    connection = await asyncpg.connect(primary.dsn())
    await migrate(connection, NAME)
    await connection.execute(PROBED)
    await connection.close()
