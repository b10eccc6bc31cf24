"""Commands that wait for a synchronous standby that is away: they say so."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import stretto
from stretto.commands.running import STANDBY_SECONDS
from stretto.embedded.postgres import embedded_postgres
from stretto.postgres.connections import GRACE_SECONDS, READ_SECONDS
from support.command_process import ended, started
from support.command_process import stretto as run
from support.embedded_servers import FAST, said
from support.standby_names import await_none, await_standby

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_SECONDS = 60


async def test_a_command_says_that_its_commit_waits_for_a_standby(folder: Path) -> None:
    """Once, on stderr; it ends as soon as the standby is there, or is not waited for any more."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        embedded_postgres(folder / "data", notify=said, settings=FAST) as server,
    ):
        await await_standby(server.dsn)
        command = await started("migrate", DATABASE_URL=server.dsn)
        assert command.stderr is not None
        line = await command.stderr.readline()
        assert b"a commit waits for a synchronous standby" in line
        await await_none(server.dsn)
        code, output, errors = await ended(command)
    assert (0, "") == (code, errors)
    assert output.startswith("applied: ")


async def test_commands_that_read_an_outcome_wait_for_a_standby(folder: Path) -> None:
    """Longer than a read of the service; the outcome is shown once the standby is not awaited."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        embedded_postgres(folder / "data", notify=said, settings=FAST) as server,
    ):
        assert 0 == (await run("migrate", DATABASE_URL=server.dsn))[0]
        async with stretto.open_component(server.dsn) as component:
            group = stretto.NewGroup.parse(stretto.UserId("alice"), {"name": "Team", "members": []})
            await component.creator.create(stretto.IdempotencyKey("k"), group)
        await await_standby(server.dsn)
        # The second one settles what it finds.
        commands = [
            await started("attempt", *options, "alice", "k", DATABASE_URL=server.dsn)
            for options in ((), ("--heal",))
        ]
        for command in commands:
            assert command.stderr is not None
            line = await command.stderr.readline()
            assert b"a commit waits for a synchronous standby" in line
        await asyncio.sleep(READ_SECONDS + GRACE_SECONDS - STANDBY_SECONDS + 1)
        await await_none(server.dsn)
        for command in commands:
            code, output, errors = await ended(command)
            assert (0, "") == (code, errors)
            assert '"status": "succeeded"' in output
