"""The shell of an operator who follows the runbook: its commands, with a test's places in them."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from stretto.embedded.place import bundled_programs
from support.environment import environment
from support.runbook import COMMANDS
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from stretto.embedded.account import Account

STOP_SECONDS: Final = 20


class Operator:
    """Runs the commands of a scenario in a folder, with these variables and places."""

    def __init__(self, scenario: str, folder: Path, stack: AsyncExitStack) -> None:
        programs = bundled_programs()
        assert programs is not None
        path = (Path(sys.executable).parent, programs, os.environ["PATH"], "/usr/sbin")
        self.variables = environment(PATH=os.pathsep.join(map(str, path)))
        self.places: dict[str, str] = {}
        """What stands in the test for what stands in the runbook."""
        self.left = [*COMMANDS[scenario]]
        self._known = COMMANDS[scenario]
        self._folder = folder
        self._stack = stack
        self._started = 0

    @property
    def settings(self) -> dict[str, str]:
        """The service's settings among the variables, without their prefix."""
        pairs = self.variables.items()
        return {name[8:]: value for name, value in pairs if name.startswith("STRETTO_")}

    async def run(self, command: str, words: Mapping[str, str] | None = None, code: int = 0) -> str:
        """Run a command to its end, which must be this code; return what it has said."""
        return await self._shell(self.placed(command, words or {}), code)

    async def run_as(self, account: Account, command: str) -> str:
        """Run a command as the account of the database's server."""
        shell = ("bash", "-euo", "pipefail", "-c", self.placed(command, {}))
        done = await asyncio.to_thread(account.run, *shell, **self.variables)
        assert done.returncode == 0, done.stdout
        return done.stdout

    async def export(self, command: str) -> None:
        """Have a line set variables for the commands that follow, by the shell's own rules."""
        shown = await self._shell(f"set -a; {self.placed(command, {})}; env -0")
        pairs = (each.partition("=") for each in shown.split("\0"))
        self.variables |= {
            name: value for name, _, value in pairs if name.startswith(("STRETTO_", "OTEL_"))
        }

    async def serve(self, command: str) -> str:
        """Start the service; return its URL once it serves."""
        log = await self.start(command)

        def port() -> int:
            lines = [line for line in log.read_bytes().splitlines() if b'"service.started"' in line]
            return int(orjson.loads(lines[0])["port"]) if lines else 0

        try:
            return f"http://127.0.0.1:{await until(port)}"
        except TimeoutError:
            raise AssertionError(log.read_text()) from None

    async def start(self, command: str) -> Path:
        """Start what runs until it is interrupted, when the scenario ends; return its log."""
        self._started += 1
        log = self._folder / f"started-{self._started}.log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *("bash", "-c", f"exec {self.placed(command, {}).removesuffix('&')}"),
                cwd=self._folder,
                env=self.variables,
                stdout=file,
                stderr=file,
            )
        self._stack.push_async_callback(_end, process)
        return log

    async def _shell(self, text: str, code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", text),
            cwd=self._folder,
            env=self.variables,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert code == process.returncode, output.decode()
        return output.decode()

    def placed(self, command: str, words: Mapping[str, str]) -> str:
        """Return a command with the places of the test; it counts as run."""
        assert command in self._known, command
        if command in self.left:
            self.left.remove(command)
        for old, new in {**words, **self.places}.items():
            command = command.replace(old, new)
        return command


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@asynccontextmanager
async def operator(scenario: str, folder: Path) -> AsyncIterator[Operator]:
    """Yield the operator of a scenario, who has to run every command of it."""
    async with AsyncExitStack() as stack:
        one = Operator(scenario, folder, stack)
        yield one
        assert [] == one.left, "these were not run"


def by_psql(statement: str, url: str) -> dict[str, str]:
    """Return the command that sends a statement to a server, in the statement's place."""
    return {statement: f"psql -v ON_ERROR_STOP=1 {shlex.quote(url)} <<'END'\n{statement}\nEND"}
