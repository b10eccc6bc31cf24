"""The runbook's backup and restore: its very commands, into another database."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stretto.embedded.place import bundled_programs
from support.api_client import api_for
from support.command_process import stretto
from support.database import connect, database_at, pend

if TYPE_CHECKING:
    from support.database import Connection

RUNBOOK = (Path(__file__).parents[2] / "docs/operations.md").read_text()
WITHOUT_ATTEMPTS = "--exclude-table-data=stretto.attempt"


def command(program: str) -> str:
    """Return the runbook's one command that runs a program as the owner of the tables."""
    pattern = rf"^ +((?:\w+=\S+ )?{program} .+)$"
    found = re.findall(pattern, RUNBOOK, re.MULTILINE)
    (line,) = (each for each in found if "OWNER_URL" in each)
    assert isinstance(line, str)
    return line


async def run(line: str, folder: Path, url: str) -> None:
    """Run a command of the runbook in a folder; it must succeed."""
    programs = bundled_programs()
    assert programs is not None
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_shell(
        line, cwd=folder, env={**os.environ, "PATH": path, "OWNER_URL": url}
    )
    assert 0 == await process.wait(), line


@pytest.mark.parametrize("more", ["", WITHOUT_ATTEMPTS])
async def test_a_backup_is_restored_as_the_runbook_says(
    more: str, server_url: str, connection: Connection, tmp_path: Path
) -> None:
    """With and without attempts; then every key finds its group again."""
    assert f"`{WITHOUT_ATTEMPTS}`" in RUNBOOK
    dump, restore, migrate = map(command, ("pg_dump", "pg_restore", "stretto migrate"))
    async with api_for(server_url) as api:
        first = await api.create("a")
        assert 201 == first.status
    await pend(connection, "pending")
    await run(f"{dump} {more}", tmp_path, server_url)

    name, role = (f"{kind}_{uuid.uuid4().hex}" for kind in ("restored", "app"))
    other = database_at(server_url, name)
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.execute(f"CREATE ROLE {role}")
    try:
        await run(restore, tmp_path, other)
        await run(migrate.replace("--grant-to app", f"--grant-to {role}"), tmp_path, other)
        restored = await connect(other)
        assert (1, int(not more)) == (
            await restored.fetchval("SELECT count(*) FROM chat_group"),
            await restored.fetchval("SELECT count(*) FROM attempt WHERE status = 'pending'"),
        )
        await restored.close()
        assert 0 == (await stretto("check", DATABASE_URL=other))[0]
        async with api_for(other) as api:
            again = await api.create("a")
            assert (201, first.json) == (again.status, again.json)
    finally:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.execute(f"DROP ROLE {role}")
