"""A small chat backend on stretto: groups, messages, a page, on one PostgreSQL database.

    python examples/chat postgresql://chat:secret@localhost/chat 8080

Anybody signs in with a name alone: it is an example.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import asyncpg
import jwt
from aiohttp import web
from groups import Greeter, open_conversations
from messages import TABLE, Messages, NoSuchConversation

import stretto

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SECRET: Final = os.environ.get("TOKEN_SECRET", "a secret that only this example uses")
TOKEN_SECONDS: Final = 3600
WAIT_SECONDS_MAX: Final = 20
# Each writer keeps one connection; the others serve stretto's short reads and the chat's own.
WRITERS: Final = 1
CONNECTIONS_MAX: Final = WRITERS + 9
PAGE: Final = Path(__file__).parent / "page"
CLIENT: Final = Path(__file__).parents[2] / "clients/js/stretto.js"
POLICY: Final = (
    "default-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

POOL: Final = web.AppKey("POOL", asyncpg.Pool)
MESSAGES: Final = web.AppKey("MESSAGES", Messages)


def make_app(dsn: str) -> web.Application:
    """Return the chat: its own routes, and stretto's contract below /chat."""
    app = web.Application()
    app[MESSAGES] = Messages()

    async def open_pool(app: web.Application) -> AsyncIterator[None]:
        await make_tables(dsn)
        async with asyncpg.create_pool(
            dsn,
            min_size=WRITERS,
            max_size=CONNECTIONS_MAX,
            server_settings={"search_path": "stretto"},
        ) as pool:
            app[POOL] = pool
            yield

    app.cleanup_ctx.append(open_pool)
    app.on_response_prepare.append(set_policy)
    app.add_routes(
        [
            web.get("/", show_page),
            web.post("/login", sign_in),
            web.post("/messages/{conversation}", send_message),
            web.get("/messages/{conversation}", read_messages),
            web.get("/stretto.js", show_client),
            web.static("/page", PAGE),
        ]
    )
    stretto.setup(
        app,
        "/chat",
        pool=lambda: app[POOL],
        tokens=stretto.TokenSettings(jwt_secret=SECRET),
        settings=stretto.ComponentSettings(writers=WRITERS),
        on_create=open_conversations,
        bus=Greeter(app[MESSAGES], lambda: app[POOL]),
    )
    return app


async def make_tables(dsn: str) -> None:
    """Create stretto's tables, then the chat's."""
    connection = await asyncpg.connect(dsn, server_settings={"search_path": "stretto"})
    try:
        await stretto.migrate(connection, "stretto")
        await connection.execute(TABLE)
    finally:
        await connection.close()


async def set_policy(_: web.Request, response: web.StreamResponse) -> None:
    """Have browsers load nothing from elsewhere."""
    response.headers.setdefault("Content-Security-Policy", POLICY)


async def show_page(_: web.Request) -> web.FileResponse:
    """`GET /`."""
    return web.FileResponse(PAGE / "index.html")


async def show_client(_: web.Request) -> web.FileResponse:
    """`GET /stretto.js`: the browser client."""
    return web.FileResponse(CLIENT)


async def sign_in(request: web.Request) -> web.Response:
    """`POST /login`: a token for whoever says their name. Put your own users here."""
    user = (await document_of(request)).get("user")
    try:
        sub = stretto.UserId(user)
    except ValueError as error:
        raise problem(web.HTTPBadRequest, str(error)) from error
    claims = {"sub": sub, "exp": int(time.time()) + TOKEN_SECONDS}
    return web.json_response({"token": jwt.encode(claims, SECRET, "HS256")})


async def send_message(request: web.Request) -> web.Response:
    """`POST /messages/{conversation}` with `{"id", "body"}`: the same id is the same message."""
    user, conversation = user_of(request), conversation_of(request)
    document = await document_of(request)
    body = document.get("body")
    if not isinstance(body, str) or not 1 <= len(body) <= 4000 or "\0" in body:
        raise problem(web.HTTPBadRequest, "body must be a text of 1 to 4000 characters")
    try:
        id_ = UUID(str(document.get("id")))
    except ValueError as error:
        raise problem(web.HTTPBadRequest, "id must be a UUID") from error
    try:
        async with request.app[POOL].acquire() as connection:
            offset = await request.app[MESSAGES].write(connection, conversation, id_, user, body)
    except NoSuchConversation as error:
        raise problem(web.HTTPNotFound, "you have no such conversation") from error
    request.app[MESSAGES].wake(conversation)
    return web.json_response({"offset": offset}, status=201)


async def read_messages(request: web.Request) -> web.Response:
    """`GET /messages/{conversation}?from=7&wait=20`: from an offset on; waits for the first one."""
    user, conversation = user_of(request), conversation_of(request)
    try:
        offset = int(request.query.get("from", "0"))
        wait_seconds = min(int(request.query.get("wait", "0")), WAIT_SECONDS_MAX)
    except ValueError as error:
        raise problem(web.HTTPBadRequest, "from and wait must be whole numbers") from error
    messages = await request.app[MESSAGES].read(
        request.app[POOL], conversation, user, offset, wait_seconds
    )
    return web.json_response({"messages": messages})


def user_of(request: web.Request) -> str:
    """Return who asks: the same token as stretto's routes accept."""
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    try:
        claims = jwt.decode(token, SECRET, ["HS256"], options={"require": ["exp", "sub"]})
    except jwt.InvalidTokenError as error:
        raise problem(web.HTTPUnauthorized, "sign in first") from error
    return str(claims["sub"])


def conversation_of(request: web.Request) -> UUID:
    """Return the conversation that the path names."""
    try:
        return UUID(request.match_info["conversation"])
    except ValueError as error:
        raise problem(web.HTTPNotFound, "you have no such conversation") from error


async def document_of(request: web.Request) -> dict[str, Any]:
    """Return the body, which must be a JSON object."""
    try:
        document = await request.json()
    except ValueError as error:
        raise problem(web.HTTPBadRequest, "the body must be JSON") from error
    if not isinstance(document, dict):
        raise problem(web.HTTPBadRequest, "the body must be a JSON object")
    return document


def problem(kind: type[web.HTTPError], detail: str) -> web.HTTPError:
    """Return an answer that says what is wrong."""
    return kind(text=json.dumps({"detail": detail}), content_type="application/problem+json")


def main(arguments: list[str]) -> None:
    """Serve until Ctrl-C; what keeps the chat from starting is said in one line."""
    dsn = arguments[0] if arguments else os.environ.get("STRETTO_DATABASE_URL")
    if not dsn:
        sys.exit("give the URL of a database: README.md says how to get one")
    port = int(arguments[1]) if len(arguments) > 1 else 8080
    try:
        web.run_app(make_app(dsn), host="127.0.0.1", port=port, handler_cancellation=True)
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        sys.exit(f"the chat cannot start: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
