"""The runbook's backup and restore: its very commands, into another database and to a moment."""

from __future__ import annotations

import asyncio
import re
import uuid
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from chaos.server import own_server
from support.api_client import api_for
from support.command_process import stretto
from support.database import connect, database_at, groups, login_role, pend, seen_by
from support.operator_shell import operator
from support.runbook import COMMANDS, ROOT
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from datetime import datetime
    from pathlib import Path

    from chaos.server import OwnServer
    from support.database import Connection
    from support.operator_shell import Operator

RUNBOOK = (ROOT / "docs/operations.md").read_text()
WITHOUT_ATTEMPTS = "--exclude-table-data=stretto.attempt"
DEADLINE_SECONDS = 60
ARCHIVED = "SELECT last_archived_wal >= $1 FROM pg_stat_archiver"


@pytest.mark.parametrize("more", ["", WITHOUT_ATTEMPTS])
async def test_a_backup_is_restored_as_the_runbook_says(
    more: str, server_url: str, connection: Connection, tmp_path: Path
) -> None:
    """With and without attempts, by roles of their own; then every key finds its group again."""
    assert f"`{WITHOUT_ATTEMPTS}`" in RUNBOOK
    dump, restore, migrate = COMMANDS["backup"]
    async with api_for(server_url) as api:
        first = await api.create("a")
        assert 201 == first.status
    await pend(connection, "pending")

    name, owner, app = (f"{kind}_{uuid.uuid4().hex}" for kind in ("restored", "owner", "app"))
    other = database_at(server_url, name)
    async with (
        login_role(connection, owner),
        login_role(connection, app),
        operator("backup", tmp_path) as one,
    ):
        await connection.execute(f"CREATE DATABASE {name} OWNER {owner}")
        try:
            one.variables["OWNER_URL"] = server_url
            await one.run(dump, {dump: f"{dump} {more}"})
            # With no more rights than it needs.
            one.variables["OWNER_URL"] = seen_by(owner, other)
            await one.run(restore)
            await one.run(migrate, {"to app": f"to {app}"})
            restored = await connect(other)
            assert (1, int(not more)) == (
                await groups(restored),
                await restored.fetchval("SELECT count(*) FROM attempt WHERE status = 'pending'"),
            )
            await restored.close()
            assert 0 == (await stretto("check", DATABASE_URL=seen_by(app, other)))[0]
            async with api_for(seen_by(app, other)) as api:
                again = await api.create("a")
                assert (201, first.json) == (again.status, again.json)
        finally:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def configuration(title: str, folder: Path) -> str:
    """Return the lines that the runbook shows below a comment, with a test's folder."""
    (lines,) = re.findall(rf"^ +# {re.escape(title)}\n((?: +\S.*\n)+)", RUNBOOK, re.MULTILINE)
    return dedent(lines).replace("/backup", f"{folder}/backup")


async def test_a_database_is_recovered_to_a_moment_and_then_to_a_later_one(folder: Path) -> None:
    """What was created until then is there; a key of afterwards names the same group once more.

    The first recovery has begun another timeline, which the second one must not follow.
    """
    async with own_server() as server, operator("point in time", folder) as one:
        recovery = Recovery(server, one, folder)
        await recovery.back_up()
        async with api_for(server.dsn) as api:
            before = await api.create("before")
            connection = await server.connect()
            moment = await connection.fetchval("SELECT clock_timestamp()")
            after = await api.create("after")
            later = await connection.fetchval("SELECT clock_timestamp()")
            last = await api.create("last")
            assert (201, 201, 201) == (before.status, after.status, last.status)
            # Its disk is lost with it.
            switched = await connection.fetchval("SELECT pg_walfile_name(pg_switch_wal())")
            await until(lambda: connection.fetchval(ARCHIVED, switched), DEADLINE_SECONDS)
            await connection.close()
        await server.kill()
        try:
            await recovery.recover(moment)
            assert 1 == await recovery.groups()
            async with api_for(server.dsn) as api:
                assert before.body == (await api.create("before")).body
                again = await api.create("after")
            assert after.json["group_id"] == again.json["group_id"]
            assert after.json["conversation_id"] != again.json["conversation_id"]
            await recovery.stop("fast")
            await recovery.start_as_debian()
            assert 2 == await recovery.groups()
            await recovery.stop("fast")
            recovery.restored.rename(folder / "first")
            more = configuration("postgresql.auto.conf, once more", folder)
            await recovery.recover(later, more)
            assert 2 == await recovery.groups()
            async with api_for(server.dsn) as api:
                assert after.body == (await api.create("after")).body
        finally:
            await recovery.stop("immediate")


class Recovery:
    """The runbook's steps, each by its commands and lines, in a test's folder."""

    def __init__(self, server: OwnServer, one: Operator, folder: Path) -> None:
        self.restored = folder / "restored"
        self._server, self._one, self._folder = server, one, folder
        self._account = server.place.account
        self._account.own(folder)
        one.places = {
            "/backup": f"{folder}/backup",
            "/var/lib/postgresql/restored": str(self.restored),
        }
        one.variables["PATH"] = f"{server.place.bin_dir}:{one.variables['PATH']}"
        one.variables |= {"SUPERUSER_URL": server.dsn, "STRETTO_DATABASE_URL": server.dsn}

    async def back_up(self) -> None:
        """Begin the archive and make a base backup."""
        archive, backup, *_ = COMMANDS["point in time"]
        await self._one.run_as(self._account, archive)
        # What this server gets as arguments stands in this file elsewhere.
        settings = {**self._server.settings, "port": str(self._server.port)}
        with (self._server.place.cluster / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
            file.write(configuration("postgresql.conf, for the archive", self._folder))
        await self._server.restart("fast")
        await self._one.run_as(self._account, backup)
        (base,) = (self._folder / "backup").glob("base-*")
        self._one.places["base-DATE"] = base.name

    async def recover(self, moment: datetime, more: str = "") -> None:
        """Restore the backup, with these further lines, and wait until it takes writes."""
        _, _, copy, signal, start, _, recovers = COMMANDS["point in time"]
        for command in (copy, signal):
            await self._one.run_as(self._account, command)
        lines = configuration("postgresql.auto.conf in that folder", self._folder)
        with (self.restored / "postgresql.auto.conf").open("a") as file:
            file.write(re.sub(r"(?<=_time = ').+(?=')", moment.isoformat(), lines) + more)
        await self._one.run_as(self._account, start)
        await until(lambda: has_recovered(self._one.run(recovers)), DEADLINE_SECONDS)

    async def start_as_debian(self) -> None:
        """Start it with its configuration in another folder."""
        debian = configured_as_debian(self._folder, self.restored)
        self._one.places["/etc/postgresql/15/main"] = str(debian)
        self._account.own(debian)
        await self._one.run_as(self._account, COMMANDS["point in time"][5])

    async def groups(self) -> int:
        """Return how many groups there are; the database is as it must be."""
        assert 0 == (await stretto("check", DATABASE_URL=self._server.dsn))[0]
        connection = await self._server.connect()
        try:
            return await groups(connection)
        finally:
            await connection.close()

    async def stop(self, mode: str) -> None:
        """Stop it by the same programs."""
        command = (self._server.place.bin_dir / "pg_ctl", "stop", "-m", mode, "-D", self.restored)
        await asyncio.to_thread(self._account.run, *command)


def configured_as_debian(folder: Path, restored: Path) -> Path:
    """Move the configuration of a server to a folder of its own; return that."""
    debian = folder / "etc"
    debian.mkdir()
    for name in ("postgresql.conf", "pg_hba.conf", "pg_ident.conf"):
        (restored / name).rename(debian / name)
    line = configuration("postgresql.conf in /etc/postgresql/15/main", folder)
    with (debian / "postgresql.conf").open("a") as file:
        file.write(line.replace("/var/lib/postgresql/restored", str(restored)))
    return debian


async def has_recovered(asking: Awaitable[str]) -> bool:
    """Whether psql has answered that the server is no standby any more."""
    return (await asking).strip() == "f"
