"""One PostgreSQL for the whole run, one database of its own for every test.

The server is started by the process that distributes the tests, and its address is handed to the
workers in an environment variable; set it yourself to run the suite against another server.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings

from stretto.assembly.opening import open_component
from stretto.assembly.settings import ComponentSettings
from stretto.creation.settings import CreatorSettings
from stretto.embedded.postgres import embedded_postgres
from stretto.postgres.migrate import migrate
from support.api_client import Api, api_for
from support.database import TEMPLATE, connect, database_at, own_database
from support.landed import REVISION, is_here
from support.live_service import LiveService, live_service
from support.ports import free_port
from support.programs import find_program
from support.service_process import service_starter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from stretto.assembly.component import Component
    from stretto.observations import Observation
    from support.database import Connection
    from support.service_process import StartService

SERVER = "TEST_POSTGRES_URL"
DATA_DIR = Path(__file__).parents[1] / ".pytest-postgres"
# What can still be read in the name of a test.
ID_BYTES_MAX = 32

# No test is about time: on a busy machine an example takes as long as it takes.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# A machine without these programs can still run the rest of the suite; CI may not.
PROGRAMS = {
    "api/test_pgbouncer.py": ["pgbouncer"],
    "browser/test_chat.py": ["chromium"],
    "browser/test_client.py": ["chromium"],
    "browser/test_client_runs.py": ["chromium"],
    "browser/test_console.py": ["chromium"],
    "browser/test_cors_in_browser.py": ["chromium"],
    "browser/test_events_in_browser.py": ["chromium"],
    "clients/test_generated_clients.py": ["openapi-python-client", "openapi-typescript", "tsc"],
    "faults/test_alerts.py": ["prometheus"],
    "faults/test_creations_in_pieces.py": ["haproxy", "nginx"],
    "faults/test_dashboard.py": ["prometheus"],
    "integration/test_first_page.py": ["curl"],
    "integration/test_mutual_tls.py": ["haproxy", "initdb", "nginx"],
    "integration/test_runbook.py": ["curl", "openssl", "pgbouncer", "promtool"],
    "unit/test_deploying.py": ["kubectl", "systemctl"],
    "unit/test_monitoring.py": ["promtool"],
}
# A shallow clone lacks the version that is upgraded.
UPGRADES = ["faults/test_upgrade.py", "integration/test_migrated_schema.py"]
_missing = {
    file: absent
    for file, programs in PROGRAMS.items()
    if (absent := [program for program in programs if find_program(program) is None])
}
collect_ignore = [] if "CI" in os.environ else [*_missing]
if not is_here():
    _missing |= {file: [f"revision {REVISION}"] for file in UPGRADES}
    collect_ignore += UPGRADES

_server = pytest.StashKey[tuple[asyncio.Runner, AsyncExitStack]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the server, and make the database that every test gets a copy of."""
    # A run in the background ignores it, and so would be every process that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("asyncio").addFilter(is_no_delay)
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    runner, stack = asyncio.Runner(), AsyncExitStack()
    if SERVER not in os.environ:
        os.environ[SERVER] = runner.run(_start_server(stack))
    runner.run(_make_template(os.environ[SERVER]))
    config.stash[_server] = runner, stack


def is_no_delay(record: logging.LogRecord) -> bool:
    """Leave out how long a turn of a loop took: in debug mode a busy machine logs that in any test."""
    return not str(record.msg).startswith("Executing %s took")


def pytest_report_header() -> list[str]:
    """Say what is not run, and what it needs."""
    return [
        f"without {', '.join(_missing[file])}: tests/{file} is not run" for file in collect_ignore
    ]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name long bytes by their length: their content may differ from process to process."""
    return f"{len(val)}_bytes" if isinstance(val, bytes) and len(val) > ID_BYTES_MAX else None


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the server, if we have started it."""
    if _server in config.stash:
        runner, stack = config.stash[_server]
        runner.run(stack.aclose())
        runner.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report how much was explored: a number that has shrunk should be seen."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == "explored":
                terminalreporter.write_line(value)


async def _start_server(stack: AsyncExitStack) -> str:
    """Start a server of our own: one of another run has that run's load."""
    for number in itertools.count():
        starting = embedded_postgres(DATA_DIR / str(number), notify=print)
        server = await stack.enter_async_context(starting)
        if server.owned:
            return server.dsn
    raise AssertionError


async def _make_template(server: str) -> None:
    admin = await asyncpg.connect(server)
    try:
        for row in await admin.fetch("SELECT datname FROM pg_database WHERE datname ~ '^test_'"):
            if not Path("/proc", row["datname"].split("_")[1]).exists():
                await admin.execute(f'DROP DATABASE IF EXISTS "{row["datname"]}" WITH (FORCE)')
        await admin.execute(f'CREATE DATABASE "{TEMPLATE}"')
    finally:
        await admin.close()
    connection = await connect(database_at(server, TEMPLATE))
    try:
        await migrate(connection, "stretto")
    finally:
        await connection.close()


@pytest_asyncio.fixture
async def server_url() -> AsyncIterator[str]:
    """A database with the schema, of this test alone, on the server itself."""
    async with own_database(os.environ[SERVER]) as url:
        yield url


@pytest.fixture
def database_url(server_url: str) -> str:
    """Where the service finds that database."""
    return server_url


@pytest_asyncio.fixture
async def connection(server_url: str) -> AsyncIterator[Connection]:
    """A connection of the test itself."""
    connection = await connect(server_url)
    yield connection
    connection.terminate()


@pytest.fixture
def unused_tcp_port() -> int:
    """A port for a server that the test starts, or for none: instead of pytest-asyncio's own."""
    return free_port()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's account can enter, unlike pytest's own ones under root."""
    made = Path(tempfile.mkdtemp(prefix="stretto-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def events() -> list[Observation]:
    """What the component under test has reported to its observer."""
    return []


@pytest_asyncio.fixture
async def component(database_url: str, events: list[Observation]) -> AsyncIterator[Component]:
    """A running component with a lease that tests can outlive."""
    settings = ComponentSettings(creator=CreatorSettings(lease_seconds=0.2))
    async with open_component(database_url, settings=settings, observe=events.append) as component:
        yield component


@pytest_asyncio.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    """The service over HTTP, in this process."""
    async with api_for(database_url) as api:
        yield api


@pytest_asyncio.fixture
async def live(database_url: str) -> AsyncIterator[LiveService]:
    """The same, with its sessions and its hub; the test relays."""
    async with live_service(database_url) as live:
        yield live


@pytest_asyncio.fixture
async def start_service(database_url: str) -> AsyncIterator[StartService]:
    """Starts real service processes on the test's database."""
    async with service_starter(database_url) as start:
        yield start
