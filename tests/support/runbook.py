"""The commands that the runbook shows, by the test that runs them.

`docs/operations.md` and `deploy/README.md` are the runbook. A command stands in `runbook.toml` as it
stands there, so that one that is added or changed has to be run before it can be shown.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("docs/operations.md", "deploy/README.md")
# What a text that is shown inline begins with, if it is a command.
PROGRAMS: Final = (
    *("stretto", "make", "promtool", "docker", "kubectl", "systemctl", "date", "curl", "select"),
    *(
        "psql",
        "pg_dump",
        "pg_restore",
        "pg_ctl",
        "pg_basebackup",
        "nats-server",
        "nginx",
        "haproxy",
    ),
)

_DATA: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
COMMANDS: Final[Mapping[str, list[str]]] = _DATA["commands"]
TOO_LONG: Final[list[str]] = _DATA["too_long"]
NOT_HERE: Final[Mapping[str, str]] = _DATA["not_here"]
LINES: Final[Mapping[str, tuple[str, str]]] = _DATA["lines"]


def blocks(text: str) -> Iterator[list[str]]:
    """Return what a page shows as code: lines that are indented by four at least, without comments."""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        if re.match(r" {4,}\S", line):
            lines.append(re.sub(r"  +#.*", "", line.strip()))
        elif lines:
            yield lines
            lines = []


def commands_of(lines: list[str]) -> Iterator[str]:
    """Return the commands of a block: a line each, but for quotes and backslashes that go on."""
    command = ""
    for line in lines:
        command = f"{command} {line}".strip()
        if command.endswith("\\"):
            command = command.removesuffix("\\").rstrip()
        elif command.count('"') % 2 == 0:
            yield command
            command = ""
    assert not command, command


def inline(text: str) -> Iterator[str]:
    """Return what a page shows within its lines, in its sentences."""
    prose = "\n".join(line for line in text.splitlines() if not re.match(r" {4,}\S", line))
    yield from (" ".join(each.split()) for each in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose))
