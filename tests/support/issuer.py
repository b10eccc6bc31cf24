"""An issuer of tokens that publishes its keys, and tokens that are signed with them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import jwt
import orjson
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from stretto.http.tokens.authenticator import Authenticator
from stretto.http.tokens.settings import TokenSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.domain import UserId

OLD, NEW = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def algorithm_name(key: Any) -> str:
    """Return what a key of that kind signs with."""
    if isinstance(key, rsa.RSAPrivateKey):
        return "RS256"
    return "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "EdDSA"


def published(key: Any, *, private: bool = False, **more: object) -> dict[str, Any]:
    """Return a key as its issuer publishes it."""
    algorithm = jwt.get_algorithm_by_name(algorithm_name(key))
    return {**algorithm.to_jwk(key if private else key.public_key(), as_dict=True), **more}


def bearer(key: Any, kid: str | None) -> str:
    """Return alice's token, signed even with what PyJWT warns of."""
    header = {"alg": algorithm_name(key)} | ({} if kid is None else {"kid": kid})
    parts = [jwt.utils.base64url_encode(orjson.dumps(part)) for part in (header, {"sub": "alice"})]
    signature = jwt.get_algorithm_by_name(header["alg"]).sign(b".".join(parts), key)
    return "Bearer " + b".".join([*parts, jwt.utils.base64url_encode(signature)]).decode()


async def owner_of(known: Authenticator, authorization: str | None) -> UserId:
    """Return whose token this is; raise as the authenticator does."""
    return (await known.verify(authorization)).owner


class Issuer:
    """Publishes keys on clocks of its own, counts who asks, and is slow or away on command."""

    def __init__(self, kid: str) -> None:
        self.keys: list[Any] = [published(OLD, kid=kid)]
        self.asked = 0
        self.status = 200
        self.padding = ""
        self.now = 0.0
        self.wall_now = 1e9
        self.reached, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        self.reached.set()
        await self.answers.wait()
        headers = {"Location": "/keys"} if self.status == 302 else None
        document = {"keys": self.keys, "padding": self.padding}
        return web.json_response(document, status=self.status, headers=headers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Publish the keys; yields their URL."""
        app = web.Application()
        app.router.add_get("/keys", self.answer)
        runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/keys"
        finally:
            await runner.cleanup()

    @asynccontextmanager
    async def authenticator(self) -> AsyncIterator[Authenticator]:
        """Publish the keys; yields an authenticator that has fetched them, unless that hangs."""
        async with self.serving() as url:
            settings = TokenSettings(jwks_url=url)
            async with Authenticator(settings, lambda: self.wall_now, lambda: self.now) as known:
                assert known._key_set is not None
                fetching = known._key_set._fetching
                if fetching is not None and self.answers.is_set():
                    await asyncio.wait((fetching,))
                yield known
