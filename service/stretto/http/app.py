"""The aiohttp application: routes, and when the service behind them starts and stops.

The service stops on shutdown, before any clean-up: an application that a host mounts is cleaned up
after its parent, and by then a pool that the host provided would be closed.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from aiohttp import web

from stretto.http.request_ids import answer_request_id
from stretto.http.routes import attempts, console, docs, events, groups, health
from stretto.http.service import SERVICE, answer_problems

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from stretto.http.service import Service

ROUTES: Final = (
    web.post("/v1/groups", groups.create_group, expect_handler=groups.expect_creation),
    web.get("/v1/groups", groups.list_groups),
    web.get("/v1/groups/{group_id}", groups.read_group),
    web.delete("/v1/groups/{group_id}", groups.delete_group),
    web.get("/v1/groups/{group_id}/members", groups.list_members),
    # A key may have braces, which a plain name would not match.
    web.get("/v1/attempts/{key:[^/]+}", attempts.read_attempt),
    web.get("/v1/attempts/{key:[^/]+}/history", attempts.read_history),
    # No HEAD: a session has no answer whose headers could be sent alone.
    web.get("/v1/events", events.open_session, allow_head=False),
    web.get("/livez", health.livez),
    web.get("/readyz", health.readyz),
    web.get("/metrics", health.metrics),
    web.get("/openapi.json", docs.openapi),
    web.get("/docs", docs.docs),
    web.get("/docs/start.js", docs.docs_start),
    web.get("/docs/{file}", docs.docs_file),
)


def build_app(
    open_service: Callable[[], AbstractAsyncContextManager[Service]], *, has_console: bool = False
) -> web.Application:
    """Return an application that opens the service when it starts."""
    app = web.Application(middlewares=[answer_problems])
    app.add_routes(ROUTES)
    if has_console:
        app.add_routes(console.ROUTES)

    async def answer_pages(request: web.Request, response: web.StreamResponse) -> None:
        # Not `request.app`: where a host's middleware sends the answer, that is the host's.
        app[SERVICE].cors.prepare(request, response)

    app.on_response_prepare.extend((answer_request_id, answer_pages))
    stack = AsyncExitStack()

    async def running(app: web.Application) -> AsyncIterator[None]:
        try:
            app[SERVICE] = await stack.enter_async_context(open_service())
            yield
        finally:
            # If a later start-up fails, aiohttp cleans up without a shutdown.
            await stack.aclose()

    async def stop(_: web.Application) -> None:
        await stack.aclose()

    app.cleanup_ctx.append(running)
    app.on_shutdown.append(stop)
    return app
