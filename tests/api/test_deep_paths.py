"""A path of thousands of segments costs no more than others: aiohttp looks a path up for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from stretto.http.front.runner import SEGMENTS_MAX
from support.raw_client import PING, raw_clients

if TYPE_CHECKING:
    from support.api_client import Api

DEADLINE_SECONDS = 30


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that the router was asked for."""
    paths: list[str] = []
    resolve = web.UrlDispatcher.resolve

    async def resolve_and_note(
        router: web.UrlDispatcher, request: web.Request
    ) -> web.UrlMappingMatchInfo:
        paths.append(request.rel_url.path_safe)
        found = await resolve(router, request)
        assert isinstance(found, web.UrlMappingMatchInfo)
        return found

    monkeypatch.setattr(web.UrlDispatcher, "resolve", resolve_and_note)
    return paths


@pytest.mark.parametrize("segment", ["a", "", "..", "v1/groups"])
@pytest.mark.parametrize("origin", ["", "http://x"])
async def test_a_deep_path_is_looked_up_as_a_short_one(
    origin: str, segment: str, api: Api, looked_up: list[str]
) -> None:
    """However it is written; no route is so deep, and the connection goes on."""
    path = origin + f"/{segment}" * (8000 // (len(segment) + 1))
    async with asyncio.timeout(DEADLINE_SECONDS), raw_clients(api.url) as raw:
        client = await raw.connect(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status, fields, document = await client.answer()
        assert (404, "not_found") == (status, document["code"])
        assert fields["x-request-id"]
        client.send(PING)
        assert 200 == (await client.answer())[0]
    assert all(each.count("/") <= SEGMENTS_MAX for each in looked_up)


async def test_slashes_elsewhere_make_no_path_deep(api: Api) -> None:
    """The twin: in a key, where they are encoded, and in a query."""
    key = "/".join("k" * 2 * SEGMENTS_MAX)
    assert 201 == (await api.create(key)).status
    assert 200 == (await api.get(f"/v1/attempts/{key.replace('/', '%2F')}")).status
    assert 200 == (await api.get("/livez?" + "/" * 2 * SEGMENTS_MAX)).status
