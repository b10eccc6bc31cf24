"""How long the hub's stop takes: as long as its sessions need, and no longer than it may."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

from stretto.domain import UserId
from stretto.events.hub import SessionHub
from stretto.events.settings import HubSettings
from stretto.runtime.runner import Runner

if TYPE_CHECKING:
    import pytest

USERS = [UserId("alice"), UserId("alice"), UserId("bob")]


async def test_the_stop_waits_until_the_last_session_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And ends right then."""
    monkeypatch.setattr("stretto.events.hub.STOP_SECONDS", 1000)
    hub = SessionHub(HubSettings(), lambda _: None)
    runner = Runner(lambda _: None)
    runner.start(hub)
    stacks = [ExitStack() for _ in USERS]
    for stack, user in zip(stacks, USERS, strict=True):
        stack.enter_context(hub.session(user, 1e12))
    stopping = asyncio.create_task(runner.stop(hub))
    for left, stack in enumerate(stacks):
        assert len(USERS) - left == len(hub)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not stopping.done()
        stack.close()
    async with asyncio.timeout(20):
        await stopping
    assert {} == hub._sessions


async def test_a_hub_without_sessions_stops_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there never were any, or all have left before."""
    monkeypatch.setattr("stretto.events.hub.STOP_SECONDS", 1000)
    async with asyncio.timeout(20):
        for sessions in (0, 1):
            hub = SessionHub(HubSettings(), lambda _: None)
            async with Runner(lambda _: None).running(hub):
                for _ in range(sessions):
                    with hub.session(USERS[0], 1e12):
                        pass
