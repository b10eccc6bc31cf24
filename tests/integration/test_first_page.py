"""The session of `docs/README.md`, run as a reader pastes it, with the answers that it shows."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from stretto.codec import STATUS
from stretto.embedded.place import bundled_programs
from stretto.errors import StrettoError
from support.api_client import SECRET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.service_process import StartService

PAGE: Final = (Path(__file__).parents[2] / "docs/README.md").read_text()
START: Final = "make run\n"
URL: Final = "http://127.0.0.1:8080"
ENVIRONMENT: Final = ".venv/bin/"
UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
DEADLINE_SECONDS: Final = 60


def blocks() -> list[tuple[str, str]]:
    """Return the page's commands and answers: each block with its language."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def differences(shown: str, printed: str, ids: dict[str, str]) -> list[str]:
    """Compare an answer with the page's, in which `…` is left out; each id stands for one id."""
    expected, lines = shown.splitlines(), printed.splitlines()
    if len(expected) != len(lines):
        return [f"{len(expected)} lines are shown:\n{printed}"]
    wrong = []
    for line, actual in zip(expected, lines, strict=True):
        pattern = re.escape(re.sub(UUID, "<id>", line)).replace("<id>", f"({UUID})")
        found = re.fullmatch(pattern.replace("…", ".+?"), actual)
        pairs = zip(re.findall(UUID, line), found.groups(), strict=True) if found else ()
        if not found or any(ids.setdefault(name, id_) != id_ for name, id_ in pairs):
            wrong.append(f"{line}\n{actual}")
    if len({*ids.values()}) < len(ids):
        wrong.append(f"one id for two: {ids}")
    return wrong


async def session(url: str, commands: list[str], database_url: str) -> list[str]:
    """Run the commands in one shell; return what each of them has printed."""
    programs = bundled_programs()
    assert programs is not None
    path = (Path(sys.executable).parent, programs, os.environ["PATH"])
    settings = {"STRETTO_DATABASE_URL": database_url, "STRETTO_JWT_SECRET": SECRET}
    mark = "----- the next block -----\n"
    script = f"echo -n '{mark}'\n".join(commands).replace(URL, url).replace(ENVIRONMENT, "")
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", script),
        env={**os.environ, **settings, "PATH": os.pathsep.join(map(str, path))},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode().replace("\r", "").split(mark)


async def test_the_session_of_the_first_page_prints_what_it_shows(
    start_service: StartService, database_url: str
) -> None:
    """Every command, in the page's order; the lease is the default."""
    service = await start_service(LEASE_SECONDS="5")
    (_, start), *rest = blocks()
    assert START == start
    assert {"sh", "text"} == {language for language, _ in rest}
    commands = [code for language, code in rest if language == "sh"]
    printed = await session(service.url, commands, database_url)
    shown = [""]
    for language, code in rest[1:]:
        if language == "sh":
            shown.append("")
        else:
            shown[-1] += code
    ids: dict[str, str] = {}
    wrong = [differences(*pair, ids) for pair in zip(shown, printed, strict=True)]
    assert [] == [each for block in wrong for each in block]
    assert len(ids) >= 6


def errors(kind: type[StrettoError] = StrettoError) -> Iterator[type[StrettoError]]:
    """Return every error that a client can get."""
    for each in kind.__subclasses__():
        yield from (each, *errors(each))


def test_the_first_page_says_what_to_do_after_every_error() -> None:
    """As the error itself does; a status that is in no row is a 4xx that is never sent again."""
    rows = re.findall(r"^\| ([^|]*\d{3}[^|]*) \| `([\w-]+)` \|", PAGE, re.MULTILINE)
    said = {status: retry for cell, retry in rows for status in re.findall(r"\b\d{3}\b", cell)}
    answers = {
        (str(STATUS[each.code]), each.retry.value) for each in errors() if each.code in STATUS
    }
    assert {*said} <= {status for status, _ in answers}
    assert 15 < len(answers)
    assert [] == [
        (status, retry) for status, retry in answers if said.get(status, "never") != retry
    ]


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("201", "409"),
        ("a\nb", "a"),
        ("{…} 201", "{} 201"),
        ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"),
        ("00000000-0000-0000-0000-000000000003", "00000000-0000-0000-0000-000000000009"),
    ],
)
def test_another_answer_is_noticed(shown: str, printed: str) -> None:
    """The twin."""
    ids = {"00000000-0000-0000-0000-000000000001": "00000000-0000-0000-0000-000000000009"}
    assert [] != differences(shown, printed, ids)
