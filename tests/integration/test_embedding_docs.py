"""What the docs show to hosts runs as it stands: `docs/embedding.md`, and the README's snippets."""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import aiohttp
import asyncpg
import pytest
from aiohttp import web

import stretto
from support.api_client import SECRET, hosted_api, token_of

if TYPE_CHECKING:
    from support.api_client import Api
    from support.database import Connection

ROOT: Final = Path(__file__).parents[2]
DEADLINE_SECONDS: Final = 30


def snippets(page: str) -> list[str]:
    """Return the Python of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


async def run(code: str, names: dict[str, Any]) -> None:
    """Run a snippet, in which `await` may stand anywhere, with and for these names."""
    compiled = compile(code, "a snippet", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    # Called as a function, so that a snippet without `await` is one as well.
    done = FunctionType(compiled, names)()
    if inspect.isawaitable(done):
        await done


def names_for(dsn: str) -> dict[str, Any]:
    """Return what a reader has: a database, a secret, and imports."""
    modules = {"aiohttp": aiohttp, "asyncio": asyncio, "asyncpg": asyncpg, "json": json, "web": web}
    kinds = {"Counter": Counter, "Mapping": Mapping, "Sequence": Sequence, "UUID": UUID}
    return {**modules, **kinds, "stretto": stretto, "dsn": dsn, "secret": SECRET}


async def test_every_snippet_on_embedding_runs(database_url: str, connection: Connection) -> None:
    """One after the other, on a database without tables; then what they have mounted is served."""
    await connection.execute(
        "DROP SCHEMA stretto CASCADE; CREATE TABLE public.counted (owner text);"
        "CREATE TABLE public.audit (event uuid)"
    )
    names = names_for(database_url)
    codes = snippets("docs/embedding.md")
    assert len(codes) > 8
    async with asyncio.timeout(DEADLINE_SECONDS):
        for code in codes:
            await run(code, names)
        assert 2 == await connection.fetchval("SELECT count(*) FROM public.counted")
        async with hosted_api(names["app"]) as api:
            welcomed = await api.request("POST", "/welcome")
            assert 200 == welcomed.status
            assert "Welcome" == await names["seen"].get()
            listed = await api.get("/chat/v1/groups")
            assert "Welcome" == listed.json["groups"][0]["name"]
            client = stretto.StrettoClient(api.session, f"{api.url}/teams", token_of("alice"))
            answers = [await client.create_group("Own", key='"quoted"') for _ in range(2)]
            assert [False, True] == [answer.is_replay for answer in answers]
            assert stretto.group_id("alice", '"quoted"') == answers[0].group.group_id
            with pytest.raises(stretto.ClientError, match="key_reused") as raised:
                await client.create_group("Another", key='"quoted"')
            assert stretto.Retry.NEW_KEY is raised.value.retry


async def test_every_snippet_of_the_readme_runs(api: Api, database_url: str) -> None:
    """The client's on a service, the others in a host."""
    names = names_for(database_url) | {"token": token_of("alice")}
    client, embedded, mounted = snippets("README.md")
    url = "http://127.0.0.1:8080"
    assert url in client
    await run(client.replace(url, api.url), names)
    assert not names["answer"].is_replay
    await run(embedded, names)
    assert "created" == names["answer"].status
    pool = web.AppKey("POOL", asyncpg.Pool)
    app = web.Application()
    await run(mounted, names | {"app": app, "POOL": pool})
    async with asyncpg.create_pool(
        database_url, min_size=0, max_size=8, server_settings={"search_path": "stretto"}
    ) as opened:
        app[pool] = opened
        async with hosted_api(app) as host:
            assert 2 == len((await host.get("/chat/v1/groups")).json["groups"])
