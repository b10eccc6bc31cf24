"""Tokens by an issuer's published keys: what the issuer's faults and those of others may do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import jwt
import orjson
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from stretto.errors import Overloaded, Unauthenticated
from stretto.http.tokens.authenticator import VERIFIED_SECONDS_MAX, Authenticator, TokenSettings
from stretto.http.tokens.jwks import (
    COOL_DOWN_SECONDS,
    KEPT_SECONDS,
    LOOK_AGAIN_SECONDS,
    UNKNOWN_KEYS_MAX,
)

if TYPE_CHECKING:
    from pytest_aiohttp import AiohttpServer

OLD, NEW = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
EC_KEY = ec.generate_private_key(ec.SECP256R1())
P384_KEY = ec.generate_private_key(ec.SECP384R1())
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
SMALL_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=1024)


class Issuer:
    """Publishes keys on a clock of its own, counts who asks, and is slow or away on command."""

    def __init__(self) -> None:
        self.keys: list[Any] = [published(OLD, kid="k")]
        self.asked = 0
        self.status = 200
        self.now = 0.0
        self.wall_now = 1e9
        self.reached, self.answers = asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def answer(self, _: web.Request) -> web.Response:
        self.asked += 1
        self.reached.set()
        await self.answers.wait()
        headers = {"Location": "/keys"} if self.status == 302 else None
        return web.json_response({"keys": self.keys}, status=self.status, headers=headers)

    async def authenticator(self, aiohttp_server: AiohttpServer) -> Authenticator:
        """Return one, to be entered, that asks this issuer."""
        app = web.Application()
        app.router.add_get("/keys", self.answer)
        url = str((await aiohttp_server(app)).make_url("/keys"))
        settings = TokenSettings(jwks_url=url)
        return Authenticator(settings, lambda: self.wall_now, lambda: self.now)


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


@pytest.mark.parametrize("key", [OLD, EC_KEY, RSA_KEY])
async def test_a_key_of_each_kind_verifies_what_it_signed(
    key: Any, aiohttp_server: AiohttpServer
) -> None:
    """With the algorithm of its kind."""
    issuer = Issuer()
    issuer.keys = [published(key, kid="k", use="sig", alg=algorithm_name(key))]
    async with await issuer.authenticator(aiohttp_server) as known:
        assert await known.owner(bearer(key, "k")) == "alice"


async def test_another_key_under_the_same_id_ends_what_was_verified_with_the_old_one(
    aiohttp_server: AiohttpServer,
) -> None:
    """An issuer need not give a new id to a new key."""
    issuer = Issuer()
    async with await issuer.authenticator(aiohttp_server) as known:
        old = bearer(OLD, "k")
        assert await known.owner(old) == "alice"
        issuer.keys = [published(NEW, kid="k")]
        issuer.now += COOL_DOWN_SECONDS
        with pytest.raises(Unauthenticated):
            await known.owner(bearer(OLD, "makes us look again"))
        with pytest.raises(Unauthenticated):
            await known.owner(old)
        assert await known.owner(bearer(NEW, "k")) == "alice"


@pytest.mark.parametrize(
    ("unusable", "key"),
    [
        (published(SMALL_RSA_KEY, kid="k"), SMALL_RSA_KEY),
        (published(RSA_KEY, private=True, kid="k"), RSA_KEY),
        (published(P384_KEY, kid="k", alg="ES256"), P384_KEY),
        (published(RSA_KEY, kid="k", alg="HS256"), RSA_KEY),
        (published(RSA_KEY, kid="k", alg=["RS256"]), RSA_KEY),
        (published(OLD, kid="k", use="enc"), OLD),
        (published(OLD, kid=["k"]), OLD),
        (published(OLD, kid="k", kty=["OKP"]), OLD),
        (published(OLD, kid="k", x=5), OLD),
        ("no key", OLD),
    ],
)
async def test_one_unusable_key_does_not_spoil_the_others(
    unusable: object, key: Any, aiohttp_server: AiohttpServer
) -> None:
    """Nor does it count where a token names no key."""
    issuer = Issuer()
    issuer.keys = [unusable, published(NEW, kid="good")]
    async with await issuer.authenticator(aiohttp_server) as known:
        assert await known.owner(bearer(NEW, None)) == "alice"
        issuer.now += LOOK_AGAIN_SECONDS
        with pytest.raises(Unauthenticated):
            await known.owner(bearer(key, "k"))


async def test_of_two_keys_without_an_id_none_is_guessed(aiohttp_server: AiohttpServer) -> None:
    """Though both could be tried."""
    issuer = Issuer()
    issuer.keys = [published(OLD), published(NEW)]
    async with await issuer.authenticator(aiohttp_server) as known:
        for key in (OLD, NEW):
            with pytest.raises(Unauthenticated):
                await known.owner(bearer(key, None))


@pytest.mark.parametrize("garbage", ["x", "a.b.c", "\udcff.a.b", "e30.e30.", "eyJraWQiOjV9.e30."])
async def test_garbage_never_asks_the_issuer_twice(
    garbage: str, aiohttp_server: AiohttpServer
) -> None:
    """Nor does it meet anything but a refusal."""
    issuer = Issuer()
    async with await issuer.authenticator(aiohttp_server) as known:
        for _ in range(5):
            with pytest.raises(Unauthenticated):
                await known.owner(f"Bearer {garbage}")
    assert issuer.asked <= 1


async def test_requests_that_are_given_up_leave_the_fetch_to_the_others(
    aiohttp_server: AiohttpServer,
) -> None:
    """Fifty ask, most leave, and the issuer is asked once."""
    issuer = Issuer()
    issuer.answers.clear()
    async with await issuer.authenticator(aiohttp_server) as known:
        asking = [asyncio.create_task(known.owner(bearer(OLD, "k"))) for _ in range(50)]
        await issuer.reached.wait()
        for task in asking[:-1]:
            task.cancel()
        await asyncio.wait(asking[:-1])
        issuer.answers.set()
        assert await asking[-1] == "alice"
    assert issuer.asked == 1


async def test_an_issuer_that_hangs_holds_up_nobody_whose_key_is_known(
    aiohttp_server: AiohttpServer,
) -> None:
    """Once it has failed; it is still asked, and closing ends that."""
    issuer = Issuer()
    async with await issuer.authenticator(aiohttp_server) as known:
        await known.owner(bearer(OLD, "k"))
        issuer.status = 500
        issuer.now += KEPT_SECONDS + 1
        assert await known.owner(bearer(OLD, "k")) == "alice"
        issuer.answers.clear()
        issuer.reached.clear()
        issuer.now += VERIFIED_SECONDS_MAX
        assert await known.owner(bearer(OLD, "k")) == "alice"
        assert not issuer.reached.is_set()
        await issuer.reached.wait()
    assert "fetch the token issuer's keys" not in {task.get_name() for task in asyncio.all_tasks()}
    assert issuer.asked == 3
    issuer.answers.set()


async def test_whoever_meets_no_keys_is_told_when_they_are_looked_for_again(
    aiohttp_server: AiohttpServer,
) -> None:
    """And why stands behind the error, for the operator."""
    issuer = Issuer()
    issuer.status = 302
    async with await issuer.authenticator(aiohttp_server) as known:
        for waited_seconds in (0, 20):
            issuer.now = waited_seconds
            with pytest.raises(Overloaded) as refused:
                await known.owner(bearer(OLD, "k"))
            assert COOL_DOWN_SECONDS - waited_seconds == refused.value.retry_after_seconds
            assert "302" in str(refused.value.__cause__)
        issuer.now, issuer.status = 30, 200
        assert await known.owner(bearer(OLD, "k")) == "alice"
    assert issuer.asked == 2


async def test_a_wall_clock_that_is_set_back_keeps_no_old_keys(
    aiohttp_server: AiohttpServer,
) -> None:
    """A withdrawn key would be trusted, and a new one refused, as long as the clock was set back."""
    issuer = Issuer()
    issuer.keys = [published(OLD, kid="old")]
    async with await issuer.authenticator(aiohttp_server) as known:
        old = bearer(OLD, "old")
        assert await known.owner(old) == "alice"
        issuer.wall_now -= 3600
        issuer.keys = [published(NEW, kid="new")]
        issuer.now += LOOK_AGAIN_SECONDS
        assert await known.owner(bearer(NEW, "new")) == "alice"
        with pytest.raises(Unauthenticated):
            await known.owner(old)


async def test_a_token_is_verified_again_though_the_wall_clock_is_set_back(
    aiohttp_server: AiohttpServer,
) -> None:
    """Its key may be withdrawn, which only another look at the issuer's keys shows."""
    issuer = Issuer()
    async with await issuer.authenticator(aiohttp_server) as known:
        old = bearer(OLD, "k")
        assert await known.owner(old) == "alice"
        issuer.wall_now -= 3600
        issuer.keys = [published(NEW, kid="new")]
        issuer.now += KEPT_SECONDS + 1
        with pytest.raises(Unauthenticated):
            await known.owner(old)


async def test_an_unknown_key_is_refused_only_by_an_issuer_asked_since(
    aiohttp_server: AiohttpServer,
) -> None:
    """Garbage that came just before must not have good tokens of a new key thrown away."""
    issuer = Issuer()
    async with await issuer.authenticator(aiohttp_server) as known:
        with pytest.raises(Unauthenticated):
            await known.owner(bearer(OLD, "garbage"))
        issuer.keys.append(published(NEW, kid="new"))
        issuer.now += 1
        with pytest.raises(Overloaded) as refused:
            await known.owner(bearer(NEW, "new"))
        assert LOOK_AGAIN_SECONDS - 1 == refused.value.retry_after_seconds
        issuer.now += LOOK_AGAIN_SECONDS - 1
        assert await known.owner(bearer(NEW, "new")) == "alice"


async def test_while_the_issuer_is_away_an_unknown_key_is_not_judged(
    aiohttp_server: AiohttpServer,
) -> None:
    """Nor one that the issuer did not have before it went away."""
    issuer = Issuer()
    async with await issuer.authenticator(aiohttp_server) as known:
        assert await known.owner(bearer(OLD, "k")) == "alice"
        issuer.now += LOOK_AGAIN_SECONDS
        with pytest.raises(Unauthenticated):
            await known.owner(bearer(NEW, "new"))
        issuer.now, issuer.status = issuer.now + LOOK_AGAIN_SECONDS, 500
        for waited_seconds in (0, 20):
            issuer.now += waited_seconds
            with pytest.raises(Overloaded) as refused:
                await known.owner(bearer(NEW, "new"))
            assert COOL_DOWN_SECONDS - waited_seconds == refused.value.retry_after_seconds
            assert "500" in str(refused.value.__cause__)


async def test_all_clients_with_a_withdrawn_key_hear_so_after_one_look(
    aiohttp_server: AiohttpServer,
) -> None:
    """They need new tokens now; to come again would not help them."""
    issuer = Issuer()
    async with await issuer.authenticator(aiohttp_server) as known:
        assert await known.owner(bearer(OLD, "k")) == "alice"
        issuer.keys = [published(NEW, kid="new")]
        with pytest.raises(Overloaded):
            await known.owner(bearer(OLD, "withdrawn"))
        issuer.now += LOOK_AGAIN_SECONDS
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await known.owner(bearer(OLD, "withdrawn"))
    assert issuer.asked == 2


async def test_garbage_takes_a_bounded_memory(aiohttp_server: AiohttpServer) -> None:
    """However many keys it names."""
    issuer = Issuer()
    async with await issuer.authenticator(aiohttp_server) as known:
        assert await known.owner(bearer(OLD, "k")) == "alice"
        assert known._key_set is not None
        for number in range(UNKNOWN_KEYS_MAX + 9):
            with pytest.raises(Overloaded):
                await known._key_set.key(f"garbage {number}")
        assert UNKNOWN_KEYS_MAX == len(known._key_set._unknown)
