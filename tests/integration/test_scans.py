"""Statements over whole tables: how the server plans them, and that none outlives its command."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from stretto.postgres import scans
from stretto.postgres.check import VIOLATIONS_MAX, check_database
from stretto.postgres.queries import QUERIES
from stretto.postgres.scans import scanning
from support.command_process import ended
from support.environment import QUIET, environment
from support.python_program import run_program
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

RETENTION_DAYS: Final = 30
GROUPS: Final = 3000
FILL: Final = f"""
    CREATE TEMP TABLE made AS
        SELECT md5(number::text)::uuid AS id FROM generate_series(1, {GROUPS}) AS number;
    INSERT INTO conversation (conversation_id) SELECT id FROM made;
    INSERT INTO conversation_member (conversation_id, user_id, role)
        SELECT id, user_id, role
        FROM made, (VALUES ('alice', 'owner'), ('bob', 'member')) AS member (user_id, role);
    INSERT INTO chat_group (group_id, owner_id, name, fingerprint, conversation_id)
        SELECT id, 'alice', 'Team', '0123456789abcdef', id FROM made;
    INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, conversation_id,
                         settled_at)
        SELECT id, 'alice', '0123456789abcdef', id, 'succeeded', id, clock_timestamp() FROM made;
    INSERT INTO outbox (slot, history, event_id, subject, conversation_id, recipients, group_name)
        SELECT 0, 0, id, id, id, ARRAY['alice', 'bob'], 'Team' FROM made;
"""
# The tables had few rows when they were last analysed.
SMALL: Final = """
    UPDATE pg_class SET reltuples = 1, relpages = 1000
    WHERE relnamespace = 'stretto'::regnamespace AND relkind IN ('r', 'i')"""
STATISTICS: Final = {
    "none": "DELETE FROM pg_statistic",
    "fresh": "ANALYZE",
    "of small tables": SMALL,
    "of few groups": f"ANALYZE; {SMALL} AND relname = 'chat_group'",
}
# A command, one of whose statements does not end.
ENDLESS: Final = """
import importlib
import sys
from stretto.cli import main
module = importlib.import_module(sys.argv.pop(1))
module.QUERIES = {**module.QUERIES, sys.argv.pop(1): sys.argv.pop(1)}
main()
"""
CHECK: Final = (
    *("stretto.postgres.check", "check_counts", "SELECT pg_sleep(600)"),
    "check",
)
SWEEP: Final = (
    *("stretto.postgres.retention", "sweepable_rows"),
    "SELECT pg_sleep(600) WHERE $1 > 0 AND $2::timestamptz IS NULL",
    *("sweep", "--dry-run"),
)
RUNNING: Final = """SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND pid <> pg_backend_pid()
                      AND state = 'active' AND query ~ 'pg_sleep'"""


@pytest.mark.parametrize("statistics", STATISTICS)
async def test_no_check_joins_by_loops_whatever_the_statistics_are(
    connection: Connection, statistics: str
) -> None:
    """A loop over a whole table would take a time that grows with the square of the groups."""
    await connection.execute(FILL)
    await connection.execute(STATISTICS[statistics])
    plans = {}
    async with scanning(connection):
        for name in (name for name in QUERIES if name.startswith("check_")):
            count = sum(f"${number}" in QUERIES[name] for number in (1, 2, 3))
            arguments = (VIOLATIONS_MAX, RETENTION_DAYS, None)[:count]
            rows = await connection.fetch(f"EXPLAIN {QUERIES[name]}", *arguments)
            plans[name] = "\n".join(row[0] for row in rows)
    assert {"check_groups", "check_changes"} < plans.keys()
    assert {} == {name: plan for name, plan in plans.items() if "Nested Loop" in plan}
    report = await check_database(connection, RETENTION_DAYS)
    assert (GROUPS, []) == (report.groups, report.violations)


@asynccontextmanager
async def endless(
    command: tuple[str, ...], connection: Connection, database_url: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command that does not end; yields its process once the server is at its statement."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ENDLESS, *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**QUIET, STRETTO_DATABASE_URL=database_url),
    )
    try:
        await until(lambda: connection.fetchval(RUNNING))
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize("command", [CHECK, SWEEP], ids=["check", "sweep"])
async def test_a_killed_command_leaves_no_statement_behind(
    command: tuple[str, ...], connection: Connection, database_url: str
) -> None:
    """The server looks for its client every second."""
    async with endless(command, connection, database_url) as process:
        process.kill()
        await until(lambda: connection.fetchval(f"SELECT ({RUNNING}) = 0"))


async def test_a_terminated_command_cancels_its_statement(
    connection: Connection, database_url: str
) -> None:
    """As `timeout` and systemd end it: the statement has ended before the process, by the signal."""
    async with endless(CHECK, connection, database_url) as process:
        process.send_signal(signal.SIGTERM)
        code, _, errors = await ended(process)
        assert 0 == await connection.fetchval(RUNNING)
    assert (-signal.SIGTERM, "") == (code, errors)


# A command that gets a second signal while its task, which the first one has cancelled, still tidies up.
TERMINATED: Final = """
import asyncio
import signal
import sys
from stretto.commands import running
running.ORDER_SECONDS = float(sys.argv[1])
async def main():
    with running._ended_in_order():
        signal.raise_signal(signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            ends = asyncio.get_running_loop().time() + 0.1
            while asyncio.get_running_loop().time() < ends:
                await asyncio.sleep(0)
            signal.raise_signal(signal.SIGTERM)
            await asyncio.sleep(0)
            print("tidied up", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize(("expected", "order_seconds"), [(b"tidied up\n", 60), (b"", 0)])
async def test_a_signal_that_repeats_the_first_one_lets_a_command_end_in_order(
    expected: bytes, order_seconds: int
) -> None:
    """`timeout` signals its command, and then the process group; a later one ends it at once."""
    ended_by = await run_program(TERMINATED, str(order_seconds), seconds=30)
    assert (-signal.SIGTERM, expected, b"") == ended_by


async def test_a_server_that_cannot_look_for_its_client_is_checked(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the setting, as it refuses this value."""
    monkeypatch.setattr(scans, "WATCH_SECONDS", -1)
    assert [] == (await check_database(connection, RETENTION_DAYS)).violations
