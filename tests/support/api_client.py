"""A client for tests: knows the contract's routes, judges nothing, retries nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson
from aiohttp import web

from stretto.assembly.application import AppOptions, create_app
from stretto.assembly.settings import ComponentSettings
from stretto.creation.settings import CreatorSettings
from stretto.domain import UserId
from stretto.http.front.serving import serving
from stretto.http.tokens.making import make_token
from stretto.http.tokens.settings import TokenSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from multidict import CIMultiDictProxy

    from stretto.http.settings import ConnectionLimits, StreamSettings
    from stretto.http.tokens.scopes import Scope
    from stretto.postgres.hook import OnCreate

SECRET = "a secret for tests that is long enough"
TEAM = {"name": "Team", "members": ["bob", "carol"]}


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which must be JSON."""
        return orjson.loads(self.body)


# Longer than any run: some tests make theirs when they are collected.
TOKEN_SECONDS = 3600
# Longer than any attempt of a test stays open.
SETTLED_SECONDS = 20


def token_of(user: str, secret: str = SECRET, *scopes: Scope) -> str:
    """Return a token of that user, which names these scopes."""
    return make_token(secret, UserId(user), lifetime_seconds=TOKEN_SECONDS, scopes=scopes)


class Api:
    """Calls a service at a URL."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def request(
        self, method: str, path: str, *, user: str | None = "alice", **options: Any
    ) -> Reply:
        """Send a request; `user` None sends no token."""
        headers = dict(options.pop("headers", {}))
        if user is not None:
            headers.setdefault("Authorization", f"Bearer {token_of(user)}")
        async with self.session.request(
            method, self.url + path, headers=headers, **options
        ) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str, *, user: str | None = "alice", **options: Any) -> Reply:
        """Read a path."""
        return await self.request("GET", path, user=user, **options)

    async def create(
        self,
        key: str,
        document: object = TEAM,
        *,
        user: str = "alice",
        wait: int | None = None,
        first_sent: str | None = None,
    ) -> Reply:
        """Post a group."""
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        if wait is not None:
            headers["Prefer"] = f"wait={wait}"
        if first_sent is not None:
            headers["Idempotency-First-Sent"] = first_sent
        return await self.request(
            "POST", "/v1/groups", user=user, headers=headers, data=orjson.dumps(document)
        )


@asynccontextmanager
async def connected_api(url: str, tls: ssl.SSLContext | bool = True) -> AsyncIterator[Api]:
    """Open a client for a service that runs already."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, ssl=tls)) as session:
        yield Api(session, url)


async def settled_create(api: Api, key: str, document: object = TEAM) -> Reply:
    """Send the same request until it is answered for good, as a client does."""
    async with asyncio.timeout(SETTLED_SECONDS):
        while True:
            try:
                reply = await api.create(key, document)
            except aiohttp.ClientError:
                continue
            if reply.status not in (409, 503):
                return reply


@asynccontextmanager
async def hosted_api(app: web.Application) -> AsyncIterator[Api]:
    """Serve a host's application as a host does, without our runner, and open a client for it."""
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    try:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with connected_api(f"http://127.0.0.1:{runner.addresses[0][1]}") as api:
            yield api
    finally:
        await runner.cleanup()


@asynccontextmanager
async def api_for(
    database_url: str,
    settings: ComponentSettings | None = None,
    on_create: OnCreate | None = None,
    limits: ConnectionLimits | None = None,
    tokens: TokenSettings | None = None,
    streams: StreamSettings | None = None,
) -> AsyncIterator[Api]:
    """Serve a database in this process and open a client for it."""
    settings = settings or ComponentSettings(creator=CreatorSettings(lease_seconds=0.2))
    options: AppOptions = {
        "dsn": database_url,
        "tokens": tokens or TokenSettings(jwt_secret=SECRET),
        "settings": settings,
    }
    if on_create is not None:
        options["on_create"] = on_create
    if streams is not None:
        options["streams"] = streams
    app = create_app(**options)
    async with (
        serving(app, host="127.0.0.1", port=0, limits=limits) as port,
        connected_api(f"http://127.0.0.1:{port}") as api,
    ):
        yield api
