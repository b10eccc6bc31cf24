"""A host's hook that prepares the leader's transaction, on a server that lets it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stretto.store_errors import HookError
from support.hooked_stores import led_by, open_stores, running

if TYPE_CHECKING:
    from chaos.server import OwnServer
    from support.database import Connection


async def test_a_hook_that_prepares_the_transaction_leaves_none_behind(server: OwnServer) -> None:
    """It would keep the attempts of its whole batch locked until somebody ends it."""
    server.settings["max_prepared_transactions"] = "4"
    await server.stop()
    assert await server.start()
    async with open_stores(server.dsn, is_hosts_pool=False) as stores:
        with pytest.raises(HookError, match="PREPARE TRANSACTION"):
            await led_by(stores(running("PREPARE TRANSACTION 'of a hook''s'")), "k")
    beside: Connection = await server.connect()
    try:
        assert not await beside.fetchval("SELECT count(*) FROM pg_prepared_xacts")
    finally:
        await beside.close()
