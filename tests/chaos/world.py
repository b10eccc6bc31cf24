"""Everything that a chaos run runs: a primary and its standby, a bus, proxies, and two services."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import orjson

import chaos
from chaos.bus import Bus
from chaos.server import OwnServer, backup_of, own_server, standby_of
from chaos.wire_proxy import WireProxy
from stretto.postgres.connecting import READ_ONLY
from support.command_process import stretto
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

SERVICES: Final = 2
# What a killed or stopped publisher had taken is published soon.
PUBLISHER: Final = {"RELAY_LEASE_SECONDS": "1"}
# A service that ends while it starts is started again so many times.
STARTS_MAX: Final = 3
# A service notices a dead server at once; then it forgets what that one may have lost.
NOTICE_SECONDS: Final = 0.5
# A request for a group of this name is refused by the database, always: its attempt fails.
POISON: Final = "poison"
VETO: Final = f"""
    CREATE FUNCTION veto() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION 'refused'; END$$;
    CREATE TRIGGER veto BEFORE INSERT ON chat_group FOR EACH ROW
        WHEN (NEW.name = '{POISON}') EXECUTE FUNCTION veto()"""


@dataclass(slots=True)
class World:
    """What is running now. A service reaches each of the two database servers by a proxy of its own."""

    stack: AsyncExitStack
    bus: Bus
    servers: list[OwnServer]
    proxies: list[list[WireProxy]]
    clock: Path
    services: list[ServiceProcess] = field(default_factory=list)
    ended: list[ServiceProcess] = field(default_factory=list)
    primary_at: int = 0

    @property
    def primary(self) -> OwnServer:
        """The server that takes writes."""
        return self.servers[self.primary_at]

    @property
    def standby(self) -> OwnServer:
        """The server that follows it."""
        return self.servers[1 - self.primary_at]

    def proxy(self, service: int) -> WireProxy:
        """Return what stands between a service and the primary."""
        return self.proxies[service][self.primary_at]

    def urls(self) -> list[str]:
        """Return where the services are."""
        return [service.url for service in self.services]

    def jump_clock(self, seconds: float) -> None:
        """Set the services' clocks so many seconds before the right time."""
        draft = self.clock.with_suffix(".draft")
        draft.write_text(str(seconds))
        draft.rename(self.clock)

    async def start_service(self, number: int | None = None) -> ServiceProcess:
        """Start a service, in the place of an earlier one or beside them all."""
        proxies = self.proxies[number or 0]
        login, _, _ = urlsplit(self.primary.dsn).netloc.rpartition("@")
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        dsn = urlsplit(self.primary.dsn)._replace(netloc=f"{login}@{hosts}").geturl()
        settings = {"DATABASE_URL": dsn, "NATS_URL": self.bus.url, **PUBLISHER}
        service = await self._started(settings)
        if number is not None and number < len(self.services):
            self.ended.append(self.services[number])
            self.services[number] = service
        elif number is not None:
            self.services.append(service)
        return service

    async def _started(self, settings: dict[str, str]) -> ServiceProcess:
        """Start a service as its supervisor does: again, if it ended because it met no primary."""
        for _ in range(STARTS_MAX - 1):
            try:
                return await self.stack.enter_async_context(ServiceProcess(settings))
            except AssertionError as error:
                if READ_ONLY not in str(error):
                    raise
        return await self.stack.enter_async_context(ServiceProcess(settings))

    async def end_service(self, number: int, how: signal.Signals) -> None:
        """End a service and start another in its place."""
        self.services[number].signal(how)
        await self.services[number].exited()
        await self.start_service(number)

    async def fail_over(self, on_death: Callable[[], object] = lambda: None) -> None:
        """Kill the primary, make its standby the primary, and give that one a standby."""
        dying, self.primary_at = self.primary, 1 - self.primary_at
        await dying.kill()
        await asyncio.sleep(NOTICE_SECONDS)
        on_death()
        await self.primary.promote()
        await self._follow()

    async def back_up(self) -> OwnServer:
        """Return a base backup of the primary."""
        return await self.stack.enter_async_context(backup_of(self.primary))

    async def recover(self, backup: OwnServer, point: str, on_death: Callable[[], object]) -> None:
        """Lose both servers, and recover the primary's backup to a point that it has marked."""
        for server in self.servers:
            await server.kill()
        await asyncio.sleep(NOTICE_SECONDS)
        on_death()
        await backup.recover(point, self.primary.place.cluster / "pg_wal")
        self.servers[self.primary_at] = backup
        await self._follow()

    async def restore(self, dump: Path, on_death: Callable[[], object]) -> None:
        """Lose both servers, and restore a backup into a new one, as the runbook says."""
        for service in self.services:
            service.signal(signal.SIGTERM)
        await asyncio.gather(*(service.exited() for service in self.services))
        for server in self.servers:
            await server.kill()
        on_death()
        restored = await self.stack.enter_async_context(own_server(has_tables=False))
        await restored.restore(dump)
        self.servers[self.primary_at] = restored
        await self._follow()
        adopted = await stretto("bus", "--adopt", DATABASE_URL=restored.dsn, NATS_URL=self.bus.url)
        assert adopted[0] == 0, adopted
        await asyncio.gather(*(self.start_service(number) for number in range(SERVICES)))

    async def _follow(self) -> None:
        """Give the primary a new standby, and lead the services to both."""
        place = 1 - self.primary_at
        self.servers[place] = await self.stack.enter_async_context(standby_of(self.primary))
        for proxies in self.proxies:
            for proxy, server in zip(proxies, self.servers, strict=True):
                proxy.retarget(server.dsn)
        await self.primary.set_synchronous(is_synchronous=True)

    def failures(self) -> Counter[str]:
        """Count what the services have logged, by event and kind."""
        return failures_of([*self.ended, *self.services])

    def first_line(self, event: str) -> str:
        """Return the first line that a service has logged of an event."""
        lines = (line for each in (*self.ended, *self.services) for line in each.log)
        return next((line.decode() for line in lines if b'"%b"' % event.encode() in line), "")


def failures_of(services: Iterable[ServiceProcess]) -> Counter[str]:
    """Count what services have logged, by event and kind."""
    counted: Counter[str] = Counter()
    for line in (line for service in services for line in service.log):
        try:
            event = orjson.loads(line)
        except ValueError:
            continue
        name = " ".join(filter(None, (event["event"], event.get("kind", ""))))
        counted[name] += event.get("folded", 1)
    return counted


@asynccontextmanager
async def running_world(folder: Path) -> AsyncIterator[World]:
    """Start it all, with a synchronous standby; stop it all in the end."""
    async with AsyncExitStack() as stack:
        primary = await stack.enter_async_context(own_server())
        standby = await stack.enter_async_context(standby_of(primary))
        await primary.set_synchronous(is_synchronous=True)
        connection = await primary.connect()
        await connection.execute(VETO)
        await connection.close()
        servers = [primary, standby]
        proxies = [
            [await stack.enter_async_context(WireProxy(server.dsn)) for server in servers]
            for _ in range(SERVICES)
        ]
        # An earlier run's streams belong to another database.
        shutil.rmtree(folder / "nats", ignore_errors=True)
        bus = await stack.enter_async_context(Bus(folder / "nats"))
        world = World(stack, bus, servers, proxies, folder / "clock")
        world.jump_clock(0)
        before = os.environ.get("PYTHONPATH", "")
        # In front of what a caller has set, which may lead to the code that is under test.
        hook = str(Path(chaos.__path__[0], "clock_hook"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (hook, before)))
        os.environ["CLOCK_OFFSET_FILE"] = str(world.clock)
        stack.callback(os.environ.__setitem__, "PYTHONPATH", before)
        stack.callback(os.environ.pop, "CLOCK_OFFSET_FILE")
        await asyncio.gather(*(world.start_service(number) for number in range(SERVICES)))
        yield world
