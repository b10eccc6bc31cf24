"""The whole contract, once on the server itself and once through PgBouncer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from support.pgbouncer import PROGRAM, give_settings, running_pgbouncer, url_through

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A machine without PgBouncer can still run the suite; CI may not.
WAYS = ["direct", "pgbouncer"] if PROGRAM or "CI" in os.environ else ["direct"]


@pytest.fixture(scope="session")
def pgbouncer() -> Iterator[Path]:
    """The folder of a PgBouncer that serves every database."""
    with running_pgbouncer(os.environ["TEST_POSTGRES_URL"]) as folder:
        yield folder


@pytest_asyncio.fixture(params=WAYS)
async def database_url(request: pytest.FixtureRequest, server_url: str) -> str:
    """Where the service finds its database."""
    if request.param == "direct":
        return server_url
    folder: Path = request.getfixturevalue("pgbouncer")
    await give_settings(server_url)
    return url_through(folder, server_url)
