"""Every command that the runbook shows is run by a test, or named with the reason why it is not."""

from __future__ import annotations

import re
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.runbook import (
    COMMANDS,
    LINES,
    NOT_HERE,
    PAGES,
    PROGRAMS,
    ROOT,
    TOO_LONG,
    blocks,
    commands_of,
    inline,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = "\n".join((ROOT / page).read_text() for page in PAGES)
RUN = {command for commands in COMMANDS.values() for command in commands}
KNOWN = {*RUN, *TOO_LONG, *NOT_HERE}


def shown(page: str) -> Iterator[str]:
    """Return the commands of a page: those of its blocks, and those in its sentences."""
    for lines in blocks(page):
        if lines[0] not in LINES:
            yield from commands_of(lines)
    for text in inline(page):
        program, _, rest = text.partition(" ")
        if (rest and program in PROGRAMS) or text.startswith("date +"):
            yield text


def is_part(text: str, command: str) -> bool:
    """Whether a command has all words of a shorter one, in their order, as `stretto events --retry`."""
    words = iter(command.split())
    return all(word in words for word in text.split())


def not_run(page: str) -> list[str]:
    """Return commands of a page that no test runs; one in a sentence may be shortened."""
    in_blocks = {each for lines in blocks(page) for each in lines}
    return [
        text
        for text in shown(page)
        if text not in KNOWN
        and (text in in_blocks or not any(is_part(text, command) for command in KNOWN))
    ]


def test_every_command_of_the_runbook_is_run() -> None:
    """By the scenario that has it; each option that a sentence names is in one of them."""
    assert [] == not_run(PAGE)
    options = {text for text in inline(PAGE) if re.fullmatch(r"--[a-z][\w-]+", text)}
    words = {word for command in KNOWN for word in command.split()}
    assert {"--heal", "--dry-run", "--json", "--history"} <= options
    assert set() == options - words


@pytest.mark.parametrize(
    "more",
    [
        "\n\n    stretto events --retry-none\n",
        "\n\n    pgbackrest restore\n",
        "\n\n    stretto events\n    stretto sweep --all\n",
        "\nRun `stretto check --quick` first.\n",
        '\nRun `stretto psql -c "select 1"` first.\n',
    ],
)
def test_a_command_that_is_not_run_is_noticed(more: str) -> None:
    """The twin."""
    assert 1 == len(not_run(PAGE + more))


def test_nothing_is_run_that_is_not_shown() -> None:
    """But for a command with an option that a sentence names."""
    there = {*shown(PAGE), *inline(PAGE)}
    options = [text for text in there if text.startswith("--")]
    there |= {f"{command} {option}" for command in there for option in options}
    assert [] == sorted(KNOWN - there)


def test_every_scenario_is_a_test() -> None:
    """Of those that run its commands, all of them."""
    text = "".join(path.read_text() for path in (ROOT / "tests").glob("*/test_*.py"))
    assert [*COMMANDS] == [name for name in COMMANDS if f'operator("{name}", ' in text]


@pytest.mark.parametrize("line", LINES)
def test_what_is_no_command_is_read_by_a_test(line: str) -> None:
    """Configuration and drawings: the file that is named has what finds them."""
    assert line in {lines[0] for lines in blocks(PAGE)}
    file, text = LINES[line]
    assert text in (ROOT / "tests" / file).read_text()


def test_the_archive_goes_on_after_a_file_was_cut_off(tmp_path: Path) -> None:
    """It lacks that file's name until all of it is there; it has one twice, and another one never."""
    (shown,) = re.findall(r"^ +archive_command = '(.+)'$", PAGE, re.MULTILINE)
    wal, archive = tmp_path / "pg_wal", tmp_path / "wal"
    archive.mkdir()
    command = shown.replace("/backup/wal", str(archive)).replace("%p", str(wal))

    def archived(name: str, before: str = "") -> bool:
        shell = ["sh", "-c", before + command.replace("%f", name)]
        return subprocess.run(shell, check=False, stderr=subprocess.DEVNULL).returncode == 0

    wal.write_bytes(b"a" * 2**16)
    # A disk on which 8 blocks of 512 bytes are free.
    assert not archived("0001", "ulimit -f 8; ")
    assert (archive / "0001.part").is_file()
    assert not (archive / "0001").exists()
    assert [True] * 3 == [archived("0001"), archived("0001"), archived("0002")]
    wal.write_bytes(b"b" * 2**16)
    assert not archived("0001")
    assert {"0001": b"a" * 2**16, "0002": b"a" * 2**16} == {
        path.name: path.read_bytes() for path in archive.iterdir()
    }


@pytest.mark.parametrize("command", TOO_LONG)
def test_what_takes_minutes_is_a_command_of_make(command: str) -> None:
    """With these variables; nothing is run."""
    subprocess.run(["make", "--dry-run", *shlex.split(command)[1:]], cwd=ROOT, check=True)


@pytest.mark.parametrize("command", NOT_HERE)
def test_what_cannot_be_run_says_where_it_is_checked(command: str) -> None:
    """In files of tests that are there."""
    files = re.findall(r"\w+/test_\w+\.py", NOT_HERE[command])
    assert all((ROOT / "tests" / file).is_file() for file in files)
    assert files or NOT_HERE[command].endswith("the same")
