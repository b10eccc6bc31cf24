"""The system's browser, and an origin with pages for it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web
from playwright.async_api import async_playwright, expect

from stretto.http.front.serving import serving
from support.programs import find_program

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from playwright.async_api import Browser

# On a machine whose processors others have, two answers took longer than the usual 5 s.
expect.set_options(timeout=30_000)


@asynccontextmanager
async def chromium(*arguments: str, **options: Any) -> AsyncIterator[Browser]:
    """Run the system's browser."""
    program = find_program("chromium")
    assert program, "these tests need chromium (Debian: apt-get install chromium)"
    async with async_playwright() as playwright:
        # Its sandbox does not work for root, who runs the checks.
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", *arguments], **options
        )
        yield browser
        await browser.close()


@asynccontextmanager
async def origin_with(files: Mapping[str, bytes]) -> AsyncIterator[str]:
    """Serve files by their paths, scripts and pages; yields the origin."""

    async def send(request: web.Request) -> web.Response:
        path = request.path
        if path not in files:
            raise web.HTTPNotFound
        kind = "text/javascript" if path.endswith(".js") else "text/html"
        return web.Response(body=files[path], content_type=kind, charset="utf-8")

    app = web.Application()
    app.router.add_get("/{path:.*}", send)
    async with serving(app, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"
