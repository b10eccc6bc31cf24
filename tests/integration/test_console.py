"""When `stretto serve` has a console, and when that offers a token."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from support.api_client import SECRET, connected_api
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_SECONDS = 90


async def answers(settings: dict[str, str]) -> tuple[int, int]:
    """Serve; return the status of the console, and of its request for a token."""
    async with ServiceProcess(settings) as service:
        async with connected_api(service.url) as api:
            page = await api.get("/", user=None)
            own = {"Origin": api.url, "Sec-Fetch-Site": "same-origin"}
            token = await api.request("POST", "/console/token", user=None, headers=own)
        service.signal(signal.SIGTERM)
        assert await service.exited() == 0
    return page.status, token.status


async def test_only_a_service_for_trials_has_a_console_unasked_and_gives_tokens(
    folder: Path, database_url: str
) -> None:
    """Of one process, with a database and a secret of its own; never with an operator's secret."""
    own = {"DATA_DIR": str(folder / "data"), "JWT_SECRET": ""}
    others = {"DATABASE_URL": database_url}
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert (200, 200) == await answers(own)
        assert (200, 405) == await answers({**own, "WORKERS": "2"})
        assert (200, 405) == await answers({**own, "JWT_SECRET": SECRET})
        assert (404, 404) == await answers({**own, "CONSOLE": "off"})
        assert (404, 404) == await answers(others)
        assert (200, 405) == await answers({**others, "CONSOLE": "on"})
