"""What every part starts from: a server, an empty database, a service, the length of a load."""

from __future__ import annotations

import os
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
from loadtests.bench.machinery import SECRET, BenchError, output_of, python, serving

from stretto.domain import UserId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.embedded.postgres import EmbeddedServer

    Connection = asyncpg.Connection[asyncpg.Record]

ROOT = Path(__file__).parents[2]
OWNER = UserId("user-1")
IN_FLIGHT_MAX = 256


@dataclass(frozen=True, slots=True)
class Bench:
    """The server of the parts, how long they run, and whose code they measure."""

    server: EmbeddedServer
    seconds: float
    scale: float = 1.0
    """Factor for large numbers, below 1 if only the correctness of the parts is checked."""
    tree: Path = ROOT
    """The checkout of the service: its code and its schema."""
    templates: dict[Path, str] = field(default_factory=dict)
    """The database with the schema of each tree, of which the parts get copies."""

    @asynccontextmanager
    async def database(self) -> AsyncIterator[tuple[str, Connection]]:
        """Provide an empty database with the schema; yields its DSN and a connection to it."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        dsn = urlsplit(self.server.dsn)._replace(path=f"/{name}").geturl()
        admin = await asyncpg.connect(self.server.dsn)
        try:
            template = await self._template(admin)
            await admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
            # pgbench connects without our settings.
            await admin.execute(f'ALTER DATABASE "{name}" SET search_path = stretto')
            connection = await asyncpg.connect(dsn)
            try:
                # Pages that an earlier part has left to write must not slow this one.
                await admin.execute("CHECKPOINT")
                yield dsn, connection
            finally:
                await connection.close()
        finally:
            await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            await admin.close()

    async def _template(self, admin: Connection) -> str:
        """Return the template of this tree; a process that migrates takes a second."""
        if self.tree not in self.templates:
            name = f"bench_template_{len(self.templates)}"
            await admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
            await admin.execute(f'CREATE DATABASE "{name}"')
            dsn = urlsplit(self.server.dsn)._replace(path=f"/{name}").geturl()
            migrate = python("-m", "stretto", "migrate")
            await output_of(*migrate, env=self.environment(DATABASE_URL=dsn))
            self.templates[self.tree] = name
        return self.templates[self.tree]

    @asynccontextmanager
    async def service(self, dsn: str, **settings: str) -> AsyncIterator[tuple[int, int]]:
        """Run the service on a database, with these settings; yield its pid and port."""
        settings |= {"DATABASE_URL": dsn, "JWT_SECRET": SECRET, "PORT": "0", "LOG_FORMAT": "json"}
        environment = self.environment(**settings, DRAIN_SECONDS="0")
        command = python("-m", "stretto", "serve")
        async with serving(*command, ready=b"service.started", env=environment) as (process, event):
            yield process.pid, event["port"]

    def environment(self, **settings: str) -> dict[str, str]:
        """Return the environment of a program of this tree, with these settings."""
        named = {f"STRETTO_{name}": value for name, value in settings.items()}
        return {**os.environ, "PYTHONPATH": str(self.tree / "service"), **named}


async def must_have(connection: Connection, created: int, loads: int = 1) -> None:
    """Raise `BenchError` unless so many groups exist: a fast answer may be a wrong one."""
    groups = await connection.fetchval("SELECT count(*) FROM chat_group")
    # At the end of a load some requests are written, but not answered any more.
    if not created <= groups <= created + loads * IN_FLIGHT_MAX:
        message = f"{created} groups should have been created, {groups} exist"
        raise BenchError(message)
