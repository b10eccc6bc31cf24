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
    *("stretto.identifiers", "stretto.members", "stretto.metadata"),
}
CLIENT = {*IDS, "stretto.client", "stretto.network"}
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
    *("stretto.cli", "stretto.config", "stretto.provision", "stretto.reports"),
    *("stretto.server", "stretto.supervisor"),
    *(
        "stretto.nats.commands",
        "stretto.nats.connection",
        "stretto.embedded.nats",
        "stretto.nats.publisher",
    ),
    *("stretto.postgres.check", "stretto.embedded.postgres", "stretto.embedded.cluster"),
}


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


def test_what_must_not_be_loaded_can_be() -> None:
    """The twin: none of these names is misspelt, and who asks for them is seen to have them."""
    forbidden = NOT_FOR_HOSTS | SERVER_OF_AIOHTTP | DRIVERS | PROCESS | TELEMETRY
    assert [] == [name for name in forbidden if find_spec(name) is None]
    assert loaded("import stretto.cli, stretto.nats.publisher, stretto.nats.commands") >= forbidden


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
