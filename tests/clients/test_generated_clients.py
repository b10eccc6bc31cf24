"""The programs of docs/generated-clients.md: generated, type-checked and run as the page says."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from openapi.document import PATH as DOCUMENT
from stretto.domain import group_id
from support.api_client import token_of
from support.programs import CLIENTS

if TYPE_CHECKING:
    from support.service_process import StartService

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs/generated-clients.md").read_text()
# What stands in the page for a service of the reader's.
SERVICE: Final = "http://127.0.0.1:8080"
PROGRAMS: Final = CLIENTS / "bin", CLIENTS / "node_modules/.bin"
# Declarations of ours, written by hand.
DECLARATIONS: Final = [*map(str, (ROOT / "clients").rglob("*.d.ts"))]
TSC: Final = ("tsc", "--strict", "--noEmit", "--target", "es2022", "--module", "nodenext")
DEADLINE_SECONDS: Final = 90
SETTINGS: Final = """
[mypy]
strict = true
# There the generator's last step, ruff, makes `object` of `Any`, whatever the document says.
[mypy-stretto_client.client]
disable_error_code = arg-type
"""
# The page's function, called as its reader would.
RUN: Final = """
declare const process: { argv: string[] };
console.log(await create(process.argv[2]!, process.argv[3]!, process.argv[4]!));
"""
# What the types must not let through.
WRONG: Final = {
    'name: "Team"': 'title: "Team"',
    'role: "admin"': 'role: "owner"',
    'params: { header: { "Idempotency-Key": key } },': "",
    "data.group_id": "data.groupId",
    '"never" = error.retry': '"later" = error.retry',
    '"/v1/groups"': '"/v1/teams"',
}


async def run(folder: Path, *command: str | Path, is_well: bool = True) -> str:
    """Run a command in the folder; return its output."""
    path = os.pathsep.join((*map(str, PROGRAMS), os.environ["PATH"]))
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PATH": path, "PYTHONPATH": "", "MYPY_CACHE_DIR": str(folder / "cache")},
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        output, _ = await process.communicate()
    assert is_well == (process.returncode == 0), output.decode()
    return output.decode()


def program_of(language: str) -> str:
    """Return the page's program in a language."""
    (program,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(program)


async def generate(generator: str, source: str, folder: Path) -> str:
    """Run the page's command on a service or a file; return its output."""
    (command,) = re.findall(rf"^    (?:npx )?({generator} .*)$", PAGE, re.MULTILINE)
    assert SERVICE in command
    return await run(folder, *command.replace(f"{SERVICE}/openapi.json", source).split())


async def mypy(folder: Path, *, is_well: bool = True) -> str:
    """Check the client and the program that uses it, in the environment that has its libraries."""
    (folder / "mypy.ini").write_text(SETTINGS)
    command = (sys.executable, "-m", "mypy", "--python-executable", CLIENTS / "bin/python")
    return await run(folder, *command, "stretto_client", "create.py", is_well=is_well)


async def test_the_client_in_python_checks_and_creates_a_group(
    start_service: StartService, tmp_path: Path
) -> None:
    """Without a warning of its generator; with the same key, the same group."""
    service = await start_service()
    assert "WARNING" not in await generate(
        "openapi-python-client", f"{service.url}/openapi.json", tmp_path
    )
    program = tmp_path / "create.py"
    program.write_text(program_of("python"))
    assert "Success" in await mypy(tmp_path)
    arguments = (CLIENTS / "bin/python", program, service.url, token_of("alice"), "k")
    for _ in range(2):
        assert f"{group_id('alice', 'k')}\n" == await run(tmp_path, *arguments)
    other = program.with_name("other.py")
    other.write_text(program.read_text().replace('"Team"', '"Another"'))
    arguments = (CLIENTS / "bin/python", other, service.url, token_of("alice"), "k")
    assert "(retry: new-key)" in await run(tmp_path, *arguments, is_well=False)
    program.write_text(program.read_text().replace("group_id", "groupId"))
    assert "groupId" in await mypy(tmp_path, is_well=False)


async def test_the_types_for_typescript_check_a_program_that_creates_a_group(
    start_service: StartService, tmp_path: Path
) -> None:
    """It runs as it stands; declarations of ours are checked with it."""
    service = await start_service()
    await generate("openapi-typescript", f"{service.url}/openapi.json", tmp_path)
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    program = tmp_path / "create.mts"
    text = program_of("ts") + RUN
    program.write_text(text)
    await run(tmp_path, *TSC, program, *DECLARATIONS)
    arguments = ("node", program, service.url, token_of("alice"), "k")
    for _ in range(2):
        assert f"{group_id('alice', 'k')}\n" == await run(tmp_path, *arguments)
    program.write_text(text.replace('"Team"', '"Another"'))
    assert "(retry: new-key)" in await run(tmp_path, *arguments, is_well=False)


async def test_a_wrong_program_in_typescript_is_noticed(tmp_path: Path) -> None:
    """The twin: each change is an error of its own file."""
    await generate("openapi-typescript", str(DOCUMENT), tmp_path)
    (tmp_path / "node_modules").symlink_to(CLIENTS / "node_modules")
    text = program_of("ts")
    names = []
    for number, (old, new) in enumerate(WRONG.items()):
        assert text.count(old) == 1, old
        names.append(f"wrong{number}.mts")
        (tmp_path / names[-1]).write_text(text.replace(old, new))
    errors = await run(tmp_path, *TSC, *names, is_well=False)
    assert names == sorted(
        {line.partition("(")[0] for line in errors.splitlines() if ": error" in line}
    )
