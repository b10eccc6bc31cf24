"""Which commands watch their commits: those that write, and no others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from stretto.cli import app
from stretto.commands.running import connected
from stretto.environment import read_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Connected(Exception):
    """A command would connect now."""


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        (False, ["check"]),
        (False, ["sweep", "--dry-run"]),
        (True, ["sweep"]),
        (False, ["events"]),
        (True, ["events", "--retry", str(UUID(int=1))]),
        (True, ["events", "--retry-all"]),
        (True, ["events", "--enable-webhook"]),
        (True, ["migrate"]),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else str(given),
)
def test_a_command_says_whether_it_writes(
    expected: bool, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that only reads would report the waiting commit of another session as its own."""

    @asynccontextmanager
    async def unconnected(*_: object, writes: bool, **__: object) -> AsyncIterator[None]:
        raise Connected(writes)
        yield

    for name in ("check", "events", "migrate", "sweep"):
        monkeypatch.setattr(f"stretto.commands.{name}.connected", unconnected)
    with pytest.raises(Connected) as raised:
        app(arguments, standalone_mode=False)
    assert (expected,) == raised.value.args


@pytest.mark.parametrize("writes", [False, True])
async def test_only_a_command_that_writes_watches_its_commits(
    writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch opens a connection of its own every few seconds."""

    @asynccontextmanager
    async def provided(*_: object, **__: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(dsn="")

    for name in ("database_place", "database_connection"):
        monkeypatch.setattr(f"stretto.commands.running.{name}", provided)
    async with connected(read_settings(), writes=writes):
        tasks = {task.get_name() for task in asyncio.all_tasks()}
    assert writes == ("watch of the commits" in tasks)
