"""Tokens by an issuer's published keys: what the issuer's failures and those of others may do."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from stretto.errors import Overloaded, Unauthenticated
from stretto.http.tokens.authenticator import VERIFIED_SECONDS_MAX
from stretto.http.tokens.jwks import (
    DOUBTED_SECONDS,
    KEPT_SECONDS,
    KEY_IDS_MAX,
    LOOK_AGAIN_SECONDS,
)
from stretto.http.tokens.keys import read_keys
from support.issuer import (
    EC_KEY,
    NEW,
    OLD,
    RSA_KEY,
    Issuer,
    algorithm_name,
    bearer,
    owner_of,
    published,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    from stretto.http.tokens.keys import TokenKey

# Nothing here takes as long: what hangs must not hang the suite.
DEADLINE_SECONDS = 60
P384_KEY = ec.generate_private_key(ec.SECP384R1())
SMALL_RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=1024)


@pytest.mark.parametrize("key", [OLD, EC_KEY, RSA_KEY])
async def test_a_key_of_each_kind_verifies_what_it_signed(key: Any) -> None:
    """With the algorithm of its kind."""
    issuer = Issuer("k")
    issuer.keys = [published(key, kid="k", use="sig", alg=algorithm_name(key))]
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(key, "k")) == "alice"


async def test_another_key_under_the_same_id_ends_what_was_verified_with_the_old_one() -> None:
    """An issuer need not give a new id to a new key."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        old = bearer(OLD, "k")
        assert await owner_of(known, old) == "alice"
        issuer.keys = [published(NEW, kid="k")]
        issuer.now += LOOK_AGAIN_SECONDS
        with pytest.raises(Unauthenticated):
            await owner_of(known, bearer(OLD, "makes us look again"))
        with pytest.raises(Unauthenticated):
            await owner_of(known, old)
        assert await owner_of(known, bearer(NEW, "k")) == "alice"


@pytest.mark.parametrize("kid", ["k", None])
@pytest.mark.parametrize("key", [NEW, RSA_KEY])
async def test_a_new_key_under_a_known_id_is_found(key: Any, kid: str | None) -> None:
    """Of the same kind or of another, and where tokens name none; not only once the set is old."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        old = bearer(OLD, kid)
        assert await owner_of(known, old) == "alice"
        issuer.keys = [published(key, kid="k")]
        issuer.now += LOOK_AGAIN_SECONDS
        assert await owner_of(known, bearer(key, kid)) == "alice"
        with pytest.raises(Unauthenticated):
            await owner_of(known, old)
    assert issuer.asked == 2


async def test_wrong_signatures_ask_the_issuer_seldom() -> None:
    """Anyone can make them: within the cool-down they are refused at once, and it is not asked."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
        for _ in range(20):
            with pytest.raises(Unauthenticated, match="signature is wrong"):
                await owner_of(known, bearer(NEW, "k"))
        assert issuer.asked == 1
        issuer.now += LOOK_AGAIN_SECONDS
        for _ in range(20):
            with pytest.raises(Unauthenticated, match="signature is wrong"):
                await owner_of(known, bearer(NEW, "k"))
        assert issuer.asked == 2
        # Its failure is not that of tokens whose key is known.
        issuer.now += LOOK_AGAIN_SECONDS
        issuer.status = 500
        with pytest.raises(Unauthenticated):
            await owner_of(known, bearer(NEW, "k"))
        assert await owner_of(known, bearer(OLD, "k")) == "alice"


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
async def test_one_unusable_key_does_not_spoil_the_others(unusable: object, key: Any) -> None:
    """Nor does it count where a token names no key."""
    issuer = Issuer("k")
    issuer.keys = [unusable, published(NEW, kid="good")]
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(NEW, None)) == "alice"
        issuer.now += LOOK_AGAIN_SECONDS
        with pytest.raises(Unauthenticated):
            await owner_of(known, bearer(key, "k"))


@pytest.mark.parametrize(
    "private",
    [
        published(RSA_KEY, private=True, kid="k"),
        # To find its primes would take the loop for hours.
        {"kty": "RSA", "kid": "k", "n": "_" * 50_000 + "w", "e": "AQAB", "d": "_" * 50_000 + "w"},
        published(EC_KEY, private=True, kid="k"),
        published(OLD, private=True, kid="k"),
    ],
)
def test_a_private_key_is_not_even_made(private: dict[str, Any]) -> None:
    """An issuer publishes it by mistake, or lies; each new key id of anyone's token reads it again."""
    keys, dropped = read_keys(orjson.dumps({"keys": [private, published(NEW, kid="good")]}))
    assert ["good"] == [key.kid for key in keys]
    assert ("key 'k': it is private: whoever has read it can sign with it",) == dropped


@pytest.mark.parametrize("garbage", ["x", "a.b.c", "\udcff.a.b", "e30.e30.", "eyJraWQiOjV9.e30."])
async def test_garbage_never_asks_the_issuer_twice(garbage: str) -> None:
    """Nor does it meet anything but a refusal."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        for _ in range(5):
            with pytest.raises(Unauthenticated):
                await owner_of(known, f"Bearer {garbage}")
    assert issuer.asked <= 1


async def test_requests_that_are_given_up_leave_the_fetch_to_the_others() -> None:
    """Fifty ask, most leave, and the issuer is asked once."""
    issuer = Issuer("k")
    issuer.answers.clear()
    async with issuer.authenticator() as known:
        asking = [asyncio.create_task(owner_of(known, bearer(OLD, "k"))) for _ in range(50)]
        await issuer.reached.wait()
        for task in asking[:-1]:
            task.cancel()
        await asyncio.wait(asking[:-1])
        issuer.answers.set()
        assert await asking[-1] == "alice"
    assert issuer.asked == 1


async def test_an_issuer_that_hangs_holds_up_no_client_whose_key_is_known() -> None:
    """Once it has failed; it is still asked, and closing ends that."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        await owner_of(known, bearer(OLD, "k"))
        issuer.status = 500
        issuer.now += DOUBTED_SECONDS + 1
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
        issuer.answers.clear()
        issuer.reached.clear()
        issuer.now += VERIFIED_SECONDS_MAX
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
        assert not issuer.reached.is_set()
        await issuer.reached.wait()
    assert "fetch the token issuer's keys" not in {task.get_name() for task in asyncio.all_tasks()}
    assert issuer.asked == 3
    issuer.answers.set()


async def test_a_client_whose_key_is_known_waits_for_no_fetch_that_is_under_way() -> None:
    """The issuer may hang. Keys that nobody has asked for in a while are fetched first."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        issuer.answers.clear()
        issuer.reached.clear()
        issuer.now += DOUBTED_SECONDS
        assert "alice" == await owner_of(known, bearer(OLD, "k"))
        await issuer.reached.wait()
        issuer.now += VERIFIED_SECONDS_MAX
        asking = asyncio.create_task(owner_of(known, bearer(OLD, "k")))
        await asyncio.sleep(0)
        assert not asking.done()
        issuer.keys = [published(NEW, kid="new")]
        issuer.answers.set()
        with pytest.raises(Unauthenticated):
            await asking
    assert 2 == issuer.asked


async def test_a_client_that_meets_no_keys_learns_when_they_are_looked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And why stands behind the error, for the operator."""
    monkeypatch.setattr(random, "uniform", max)
    issuer = Issuer("k")
    issuer.status = 302
    async with issuer.authenticator() as known:
        for pause_seconds in (0.5, 1, 2, 4, 8, 16, 30, 30):
            for waited_seconds in (0, pause_seconds / 2):
                issuer.now += waited_seconds
                with pytest.raises(Overloaded) as refused:
                    await owner_of(known, bearer(OLD, "k"))
                left = math.ceil(pause_seconds - waited_seconds)
                assert left == refused.value.retry_after_seconds
                assert "302" in str(refused.value.__cause__)
            issuer.now += pause_seconds / 2
        issuer.status = 200
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
    assert issuer.asked == 9


async def test_a_wall_clock_that_is_set_back_keeps_no_old_keys() -> None:
    """A withdrawn key would be trusted, and a new one refused, as long as the clock was set back."""
    issuer = Issuer("k")
    issuer.keys = [published(OLD, kid="old")]
    async with issuer.authenticator() as known:
        old = bearer(OLD, "old")
        assert await owner_of(known, old) == "alice"
        issuer.wall_now -= 3600
        issuer.keys = [published(NEW, kid="new")]
        issuer.now += LOOK_AGAIN_SECONDS
        assert await owner_of(known, bearer(NEW, "new")) == "alice"
        with pytest.raises(Unauthenticated):
            await owner_of(known, old)


async def test_a_token_is_verified_again_though_the_wall_clock_is_set_back() -> None:
    """Its key may be withdrawn, which only another look at the issuer's keys shows."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        old = bearer(OLD, "k")
        assert await owner_of(known, old) == "alice"
        issuer.wall_now -= 3600
        issuer.keys = [published(NEW, kid="new")]
        issuer.now += DOUBTED_SECONDS + 1
        with pytest.raises(Unauthenticated):
            await owner_of(known, old)


async def test_an_unknown_key_is_refused_only_by_an_issuer_asked_since() -> None:
    """Garbage that came just before must not have good tokens of a new key thrown away."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        issuer.now += LOOK_AGAIN_SECONDS
        with pytest.raises(Unauthenticated):
            await owner_of(known, bearer(OLD, "garbage"))
        issuer.keys.append(published(NEW, kid="new"))
        issuer.now += 1
        with pytest.raises(Overloaded) as refused:
            await owner_of(known, bearer(NEW, "new"))
        assert LOOK_AGAIN_SECONDS - 1 == refused.value.retry_after_seconds
        issuer.now += LOOK_AGAIN_SECONDS - 1
        assert await owner_of(known, bearer(NEW, "new")) == "alice"


async def test_while_the_issuer_is_away_an_unknown_key_is_not_judged() -> None:
    """Nor one that the issuer did not have before it went away."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
        issuer.now += LOOK_AGAIN_SECONDS
        with pytest.raises(Unauthenticated):
            await owner_of(known, bearer(NEW, "new"))
        issuer.now, issuer.status = issuer.now + LOOK_AGAIN_SECONDS, 500
        for _ in range(20):
            with pytest.raises(Overloaded) as refused:
                await owner_of(known, bearer(NEW, "new"))
            assert refused.value.retry_after_seconds == 1
            assert "500" in str(refused.value.__cause__)
        assert issuer.asked == 3


async def test_all_clients_with_a_withdrawn_key_hear_so_after_one_look() -> None:
    """They need new tokens now; to come again would not help them."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
        issuer.keys = [published(NEW, kid="new")]
        with pytest.raises(Overloaded):
            await owner_of(known, bearer(OLD, "withdrawn"))
        issuer.now += LOOK_AGAIN_SECONDS
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await owner_of(known, bearer(OLD, "withdrawn"))
    assert issuer.asked == 2


async def test_keys_that_are_withdrawn_are_reported() -> None:
    """Those alone: not one that stays when others come or go, or when the order changes."""
    issuer = Issuer("old")
    reported: list[Collection[TokenKey]] = []
    async with issuer.authenticator() as known:
        key = (await known.verify(bearer(OLD, "old"))).key
        known.on_withdrawn = reported.append
        old, new = issuer.keys[0], published(NEW, kid="new")
        for keys in ([old, new], [new, old], [new]):
            issuer.keys = keys
            issuer.now += LOOK_AGAIN_SECONDS
            with pytest.raises(Unauthenticated):
                await owner_of(known, bearer(OLD, f"makes us look {issuer.now}"))
    assert [{*()}, {key}] == reported


async def test_sessions_alone_find_that_a_key_is_withdrawn() -> None:
    """Nothing else asks for the keys, so their age does; the hub ends the sessions then."""
    issuer = Issuer("old")
    reported = asyncio.Event()
    async with issuer.authenticator() as known:
        known.on_withdrawn = lambda _: reported.set()
        issuer.keys = [published(NEW, kid="new")]
        issuer.now += KEPT_SECONDS
        known.refresh_keys()
        assert known._key_set is not None
        assert known._key_set._fetching is None
        issuer.now += 1
        known.refresh_keys()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await reported.wait()
        known.refresh_keys()
    assert issuer.asked == 2


async def test_garbage_takes_a_bounded_memory() -> None:
    """However many keys it names."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
        assert known._key_set is not None
        for number in range(KEY_IDS_MAX + 9):
            with pytest.raises(Overloaded):
                await known._key_set.keys(f"garbage {number}", "EdDSA")
        assert KEY_IDS_MAX == len(known._key_set._named)
