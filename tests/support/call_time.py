"""The time that a call of `StrettoClient` has, which a test ends at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

from stretto.client import calls

if TYPE_CHECKING:
    import pytest


class CallTime:
    """The time of the call that began last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._scope: asyncio.Timeout | None = None
        monkeypatch.setattr(calls, "timeout", self._begin)

    def _begin(self, seconds: float) -> asyncio.Timeout:
        self._scope = asyncio.timeout(seconds)
        return self._scope

    async def end(self) -> NoReturn:
        """End it; called in the call's own task, where it ends what this waits for."""
        assert self._scope is not None
        self._scope.reschedule(0.0)
        await asyncio.Future()
        raise AssertionError
