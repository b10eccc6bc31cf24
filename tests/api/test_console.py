"""The console over HTTP: its files, when there is one, and the token that it may offer."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

import stretto
from stretto.assembly.application import create_app
from stretto.http.front.serving import serving
from stretto.http.routes.console import offer_tokens
from support.api_client import SECRET, Api, connected_api

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKENS = stretto.TokenSettings(jwt_secret=SECRET)
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


@asynccontextmanager
async def console_api(
    database_url: str, *, has_console: bool = True, offers: bool = False
) -> AsyncIterator[Api]:
    """Serve a database with a console, or without."""
    app = create_app(dsn=database_url, tokens=TOKENS, console=has_console)
    if offers:
        offer_tokens(app, TOKENS)
    async with (
        serving(app, host="127.0.0.1", port=0) as port,
        connected_api(f"http://127.0.0.1:{port}") as api,
    ):
        yield api


async def test_the_page_and_its_files_are_held_to_a_strict_policy(database_url: str) -> None:
    """All that the page and its scripts name is served, with the type that it has."""
    async with console_api(database_url) as api:
        page = await api.get("/", user=None)
        names = ["", *re.findall(r'"console/([^"]+)"', page.body.decode())]
        for name in names:
            reply = await api.get(f"/console/{name}" if name else "/", user=None)
            names += set(re.findall(r'from "\./([^"]+)"', reply.body.decode())) - {*names}
            kind = {"js": "text/javascript", "css": "text/css"}.get(name.rpartition(".")[2])
            assert (200, f"{kind or 'text/html'}; charset=utf-8") == (
                reply.status,
                reply.headers["Content-Type"],
            )
            policy = reply.headers["Content-Security-Policy"].split("; ")
            assert POLICY == dict(each.split(" ", 1) for each in policy)
            assert ("no-referrer", "nosniff") == (
                reply.headers["Referrer-Policy"],
                reply.headers["X-Content-Type-Options"],
            )
    assert len(names) >= 6


async def test_a_file_is_sent_again_only_if_it_has_changed(database_url: str) -> None:
    """A browser asks each time: a page never runs with the scripts of another version."""
    async with console_api(database_url) as api:
        for path in ("/", "/console/console.js"):
            first = await api.get(path, user=None)
            assert first.headers["Cache-Control"] == "no-cache"
            tag = first.headers["ETag"]
            for known in (tag, f'"other", W/{tag}', "*"):
                again = await api.get(path, user=None, headers={"If-None-Match": known})
                assert (304, b"", tag) == (again.status, again.body, again.headers["ETag"])
            changed = await api.get(path, user=None, headers={"If-None-Match": '"other"'})
            assert (200, first.body) == (changed.status, changed.body)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/console/index.html", 404, "not_found"),
        ("GET", "/console/..%2fopenapi.json", 404, "not_found"),
        ("GET", "/console/", 404, "not_found"),
        ("POST", "/", 405, "method_not_allowed"),
        ("GET", "/console/token", 404, "not_found"),
        ("POST", "/console/token", 405, "method_not_allowed"),
    ],
)
async def test_nothing_else_is_there(
    method: str, path: str, status: int, code: str, database_url: str
) -> None:
    """Errors are problem documents; without an offer, no route gives a token."""
    async with console_api(database_url) as api:
        reply = await api.request(method, path, user=None)
        assert (status, code) == (reply.status, reply.json["code"])
        assert b'id="offer" hidden' in (await api.get("/", user=None)).body


@pytest.mark.parametrize("path", ["/", "/console/console.js", "/console/console.css"])
async def test_there_is_no_console_that_was_not_asked_for(path: str, database_url: str) -> None:
    """Nor a route that gives tokens."""
    async with console_api(database_url, has_console=False) as api:
        assert (await api.get(path, user=None)).status == 404
        assert (await api.request("POST", "/console/token", user=None)).status == 404


async def test_a_mounted_console_finds_its_files_below_the_prefix(database_url: str) -> None:
    """They are named relatively; a host has one only if it asks for it."""
    app = web.Application()
    stretto.setup(app, "/chat", dsn=database_url, tokens=TOKENS, console=True)
    stretto.setup(app, "/plain", dsn=database_url, tokens=TOKENS)
    async with (
        serving_host(app) as url,
        connected_api(url) as api,
    ):
        page = await api.get("/chat/", user=None)
        assert page.status == 200
        for name in re.findall(r'"(console/[^"]+)"', page.body.decode()):
            assert (await api.get(f"/chat/{name}", user=None)).status == 200
        for path in ("/", "/plain/", "/plain/console/console.js"):
            assert (await api.get(path, user=None)).status == 404


async def test_a_token_that_the_console_gives_is_good(database_url: str) -> None:
    """To the page on this machine; another client is told where tokens come from."""
    async with console_api(database_url, offers=True) as api:
        page = await api.get("/", user=None)
        assert b'id="offer" hidden' not in page.body
        assert (await api.get("/console/token", user=None)).status in (404, 405)
        own = {"Origin": api.url, "Sec-Fetch-Site": "same-origin"}
        given = await api.request("POST", "/console/token", user=None, headers=own)
        assert given.status == 200
        headers = {"Authorization": f"Bearer {given.json['token']}"}
        assert (await api.get("/v1/groups", user=None, headers=headers)).status == 200
        refused = await api.request("POST", "/console/token", user=None)
        assert (403, "origin_refused") == (refused.status, refused.json["code"])
        assert "stretto token" in refused.json["detail"]


@asynccontextmanager
async def serving_host(app: web.Application) -> AsyncIterator[str]:
    """Serve a host's application by a server of its own; yields the URL."""
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    try:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
