"""What a program loads with the package: what it uses, and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import stretto

IDS = {
    *("stretto", "stretto.domain", "stretto.errors", "stretto.kinds"),
    *("stretto.identifiers", "stretto.members", "stretto.metadata", "stretto.uuids"),
    "stretto.visible",
}
CLIENT = {
    *IDS,
    *("stretto.client", "stretto.client.calls", "stretto.client.connections"),
    "stretto.client.intentions",
    *("stretto.client.replies", "stretto.client.sessions", "stretto.client.stretto_client"),
    "stretto.network",
}
EVERYTHING = "import stretto\nfor name in stretto.__all__: getattr(stretto, name)"
SERVER_OF_AIOHTTP = {
    "aiohttp.web",
    "aiohttp.web_app",
    "aiohttp.web_protocol",
    "aiohttp.web_request",
}
DRIVERS = {"asyncpg", "nats"}
PROCESS = {"pydantic", "typer", "uvloop"}
TELEMETRY = {"prometheus_client", "structlog"}
# What only the service's own process uses, or what only some of them use.
NOT_FOR_HOSTS = {
    *("stretto.cli", "stretto.config", "stretto.environment", "stretto.own_secret"),
    *("stretto.provision", "stretto.reports", "stretto.server", "stretto.supervisor"),
    *(
        "stretto.nats.commands",
        "stretto.nats.connection",
        "stretto.embedded.nats",
        "stretto.nats.publisher",
    ),
    *("stretto.postgres.check", "stretto.embedded.postgres", "stretto.embedded.cluster"),
}
# What a command that works on no database has no use for, and one that serves no clients.
LOOP = {"asyncio", "uvloop"}
SERVER = {*SERVER_OF_AIOHTTP, "aiohttp", "prometheus_client", "stretto.assembly.application"}
KEYS = {"cryptography", "jwt"}
# Of typer some versions use pydantic for a command's arguments.
OF_ARGUMENTS = {"pydantic", "rich"}


ON_THE_DATABASE = ("attempt", "check", "events", "groups", "migrate", "psql", "sweep", "url")
# The words of a command line; what it prints is no module's name.
CHOSEN = """
import os, sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from stretto.__main__ import main
sys.argv = ["stretto", *{arguments!r}]
os.environ["STRETTO_DATA_DIR"] = {folder!r}
with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
    with suppress(SystemExit):
        main()"""


def loaded(code: str) -> set[str]:
    """Return the modules that a fresh interpreter has after the code."""
    script = f"{code}\nimport sys; print(*sys.modules)"
    command = [sys.executable, "-c", script]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("code", "ours"),
    [
        ("import stretto", {"stretto"}),
        ("import stretto.client", CLIENT),
        ("from stretto import StrettoClient", CLIENT),
        ("from stretto import group_id", IDS),
        ("from stretto import GroupRejected", {"stretto", "stretto.errors"}),
        (
            "from stretto import add_members",
            {
                *IDS,
                *("stretto.postgres", "stretto.postgres.changes", "stretto.postgres.queries"),
                *(
                    "stretto.postgres.server_settings",
                    "stretto.start_errors",
                    "stretto.store_errors",
                ),
            },
        ),
        (
            "from stretto import Inbox",
            {
                *("stretto", "stretto.kinds"),
                *("stretto.postgres", "stretto.postgres.inbox", "stretto.postgres.queries"),
            },
        ),
    ],
)
def test_a_program_loads_only_what_it_names(code: str, ours: set[str]) -> None:
    """Neither more of ours nor what that would bring along."""
    modules = loaded(code)
    assert ours == {name for name in modules if name.partition(".")[0] == "stretto"}
    assert set() == modules & (SERVER_OF_AIOHTTP | DRIVERS | PROCESS | TELEMETRY)


def test_a_host_loads_neither_the_process_nor_nats_nor_embedded_servers() -> None:
    """With everything that it can name."""
    assert set() == loaded(EVERYTHING) & (NOT_FOR_HOSTS | PROCESS | {"nats"})


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        ("", SERVER | LOOP | DRIVERS | TELEMETRY | KEYS | OF_ARGUMENTS),
        ("--help", SERVER | LOOP | DRIVERS | TELEMETRY | KEYS | OF_ARGUMENTS),
        ("--version", SERVER | LOOP | DRIVERS | TELEMETRY | KEYS | OF_ARGUMENTS),
        ("openapi", SERVER | LOOP | DRIVERS | TELEMETRY | KEYS | {"rich"}),
        ("size --rate 1", SERVER | LOOP | DRIVERS | TELEMETRY | KEYS),
        ("token alice", SERVER | LOOP | DRIVERS | TELEMETRY),
        *((f"{name} --help", SERVER | KEYS | {"nats"}) for name in ON_THE_DATABASE),
        ("bus --help", SERVER | KEYS),
    ],
)
def test_a_command_loads_only_what_it_uses(command: str, unused: set[str], tmp_path: Path) -> None:
    """An operator, and every test that starts one, waits for all that is loaded."""
    assert set() == loaded(CHOSEN.format(arguments=command.split(), folder=str(tmp_path))) & unused


def test_the_service_loads_what_a_light_command_does_not() -> None:
    """The twin: it needs all of that, so none of these names is misspelt."""
    forbidden = SERVER | LOOP | {"asyncpg"} | TELEMETRY | KEYS | OF_ARGUMENTS
    assert loaded(CHOSEN.format(arguments=["serve", "--help"], folder="")) >= forbidden


def test_what_must_not_be_loaded_can_be() -> None:
    """The twin: none of these names is misspelt, and who asks for them is seen to have them."""
    forbidden = NOT_FOR_HOSTS | SERVER_OF_AIOHTTP | DRIVERS | PROCESS | TELEMETRY
    assert [] == [name for name in forbidden if find_spec(name) is None]
    code = "import stretto.commands.serve, stretto.commands.check, stretto.cli"
    assert loaded(f"{code}, stretto.nats.publisher, stretto.nats.commands") >= forbidden


def test_every_public_name_is_there() -> None:
    """And its own: neither misspelt nor taken from elsewhere."""
    assert [] == [name for name in stretto.__all__ if not hasattr(stretto, name)]
    assert {*stretto.__all__} <= {*dir(stretto)}


def test_type_checkers_see_what_a_program_gets() -> None:
    """They read imports, a program the table."""
    tree = ast.parse(Path(stretto.__file__).read_text())
    seen = {
        alias.asname: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stretto.")
        for alias in node.names
    }
    assert seen == stretto._MODULE_OF


def test_a_name_that_is_not_ours_is_refused() -> None:
    """As from any other module, so that `hasattr` and `from` work."""
    assert not hasattr(stretto, "Nonsense")
    with pytest.raises(ImportError, match="Nonsense"):
        exec("from stretto import Nonsense")
