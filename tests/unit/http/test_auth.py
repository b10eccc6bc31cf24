"""Tokens: what is accepted, what is refused, and what of it is remembered."""

from __future__ import annotations

import base64
import hmac
import math
from contextlib import suppress
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from stretto.domain import UserId
from stretto.errors import Unauthenticated
from stretto.http.tokens.authenticator import (
    TOKEN_CHARACTERS_MAX,
    VERIFIED_SECONDS_MAX,
    Authenticator,
)
from stretto.http.tokens.keys import TokenKey
from stretto.http.tokens.making import make_token
from stretto.http.tokens.settings import TokenSettings
from stretto.http.tokens.times import LEEWAY_SECONDS
from stretto.start_errors import ConfigurationError
from support.issuer import EC_KEY, RSA_KEY, owner_of

SECRET = "a secret for tests that is long enough"
NEW_SECRET = SECRET.replace("a secret", "another secret")
NOW = 1_800_000_000
ED_KEY = ed25519.Ed25519PrivateKey.generate()
SSH_KEY = (
    ED_KEY.public_key()
    .public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    .decode()
)
VERIFIES_NOTHING = TokenKey("HS256", b"a key that verifies nothing any more")


def test_a_long_signature_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as it is, for each secret. One that is spelled with padding is compared."""
    monkeypatch.setattr("stretto.http.tokens.keys.base64url_decode", lambda _: b"none")
    key = TokenKey("HS256", SECRET.encode())
    token = bearer().removeprefix("Bearer ")
    assert key.is_forged(token)
    monkeypatch.setattr("stretto.http.tokens.keys.base64url_decode", None)
    assert key.is_forged(f"a.b.{'x' * 8000}")
    monkeypatch.undo()
    assert not key.is_forged(token)
    assert not key.is_forged(f"{token}=")


def pem(key: Any) -> str:
    """Return the public part as an operator would set it."""
    encoded: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded.decode()


def bearer(key: Any = SECRET, algorithm: str = "HS256", **claims: object) -> str:
    """Return an Authorization header with a token of alice's."""
    return "Bearer " + jwt.encode({"sub": "alice", **claims}, key, algorithm)


def authenticator(**settings: Any) -> Authenticator:
    """Return one with a clock that stands still."""
    chosen = (
        settings
        if {*settings} & {"jwt_secret", "jwt_public_key"}
        else {"jwt_secret": SECRET, **settings}
    )
    return Authenticator(TokenSettings(**chosen), clock_seconds=lambda: NOW)


@pytest.mark.parametrize(
    ("settings", "authorization"),
    [
        ({"jwt_secret": SECRET}, bearer()),
        ({"jwt_secret": SECRET}, bearer(exp=NOW + 1)),
        ({"jwt_secret": SECRET}, bearer().replace("Bearer", "bearer")),
        ({"jwt_secret": SECRET}, bearer(nbf=NOW + LEEWAY_SECONDS)),
        ({"jwt_secret": SECRET}, bearer(iat=NOW + LEEWAY_SECONDS)),
        ({"jwt_secret": SECRET}, bearer(iat=NOW + 0.5, exp=NOW + 1.5)),
        ({"jwt_secret": SECRET, "jwt_audience": "chat"}, bearer(aud="chat")),
        ({"jwt_secret": SECRET, "jwt_audience": "chat"}, bearer(aud=["mail", "chat"])),
        ({"jwt_secret": SECRET, "jwt_issuer": "us"}, bearer(iss="us")),
        ({"jwt_public_key": pem(RSA_KEY)}, bearer(RSA_KEY, "RS256")),
        ({"jwt_public_key": pem(EC_KEY)}, bearer(EC_KEY, "ES256")),
        ({"jwt_public_key": pem(ED_KEY)}, bearer(ED_KEY, "EdDSA")),
        ({"jwt_secret": f"{NEW_SECRET} \n\n {SECRET}\n"}, bearer()),
        ({"jwt_secret": f"{NEW_SECRET} \n\n{SECRET}\n"}, bearer(NEW_SECRET)),
        # An only one as each of several: without the line's end, which is that of a file.
        ({"jwt_secret": f"{SECRET} \r\n"}, bearer()),
        ({"jwt_secret": f"{NEW_SECRET}\n\ufeff{SECRET}\n"}, bearer()),
        ({"jwt_secret": f"\ufeff{NEW_SECRET}\r\n\ufeff{SECRET}"}, bearer(NEW_SECRET)),
        ({"jwt_secret": f"\ufeff{SECRET}"}, bearer()),
        ({"jwt_public_key": pem(EC_KEY) + pem(RSA_KEY)}, bearer(EC_KEY, "ES256")),
        ({"jwt_public_key": pem(EC_KEY) + pem(RSA_KEY)}, bearer(RSA_KEY, "RS256")),
    ],
)
async def test_a_valid_token_names_its_owner(settings: dict[str, str], authorization: str) -> None:
    """By a secret or a public key, with audience and issuer where they are wanted."""
    assert await owner_of(authenticator(**settings), authorization) == "alice"


def part(document: dict[str, object]) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(orjson.dumps(document)).rstrip(b"=").decode()


def unsigned() -> str:
    """Return a token that claims to need no signature."""
    return f"Bearer {part({'alg': 'none', 'typ': 'JWT'})}.{part({'sub': 'alice'})}."


def signed(key: str, claims: bytes = b'{"sub":"alice"}', **header: object) -> str:
    """Return a token (HS256) as PyJWT itself refuses to make one."""
    body = base64.urlsafe_b64encode(claims).rstrip(b"=").decode()
    signing_input = f"{part({'alg': 'HS256', 'typ': 'JWT', **header})}.{body}"
    signature = hmac.digest(key.encode(), signing_input.encode(), "sha256")
    return f"Bearer {signing_input}." + base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def tampered(place: int) -> str:
    """Return a valid token with one character changed in that part."""
    parts = bearer().removeprefix("Bearer ").split(".")
    changed = "A" if parts[place][5] != "A" else "B"
    parts[place] = parts[place][:5] + changed + parts[place][6:]
    return "Bearer " + ".".join(parts)


@pytest.mark.parametrize(
    ("settings", "authorization"),
    [
        ({}, None),
        ({}, ""),
        ({}, "Bearer"),
        ({}, "Bearer "),
        ({}, "Basic YTpi"),
        ({}, "Bearer a.b.c"),
        ({}, bearer(note="x" * TOKEN_CHARACTERS_MAX)),
        ({}, "Bearer  " + bearer().removeprefix("Bearer ")),
        ({}, bearer() + " "),
        ({}, bearer() + "\n"),
        ({}, bearer() + "\udcff"),
        ({}, bearer() + ".x"),
        ({}, tampered(0)),
        ({}, tampered(1)),
        ({}, tampered(2)),
        ({}, bearer("another secret that is long enough too")),
        ({}, unsigned()),
        ({"jwt_public_key": pem(RSA_KEY)}, unsigned()),
        ({"jwt_public_key": pem(RSA_KEY)}, signed(pem(RSA_KEY))),
        ({"jwt_public_key": pem(RSA_KEY)}, bearer()),
        ({"jwt_public_key": pem(RSA_KEY)}, bearer(ED_KEY, "EdDSA")),
        ({"jwt_public_key": pem(RSA_KEY) + pem(EC_KEY)}, bearer(ED_KEY, "EdDSA")),
        ({"jwt_secret": f"{SECRET}\n{NEW_SECRET}"}, bearer(f"{SECRET}\n{NEW_SECRET}")),
        ({}, bearer(exp=NOW)),
        ({}, bearer(exp=NOW - 1)),
        ({}, bearer(exp="soon")),
        ({}, bearer(exp=str(NOW + 60))),
        ({}, bearer(exp=None)),
        ({}, bearer(nbf=True)),
        ({}, bearer(scope={"stretto:read": 1})),
        ({}, bearer(exp=10**400)),
        ({}, bearer(exp=float("nan"))),
        ({}, bearer(exp=float("inf"))),
        ({}, bearer(nbf=NOW + LEEWAY_SECONDS + 1)),
        ({}, bearer(iat=NOW + LEEWAY_SECONDS + 1)),
        ({}, signed(SECRET, crit=["x"], x=1)),
        # "MUST NOT be the empty list" (RFC 7515, 4.1.11).
        ({}, signed(SECRET, crit=[])),
        ({}, signed(SECRET, crit=None)),
        ({}, signed(SECRET, crit=["b64"], b64=True)),
        ({}, signed(SECRET, b"[" * 5000)),
        ({}, signed(SECRET, b'"alice"')),
        ({}, signed(SECRET, b"{}")),
        ({}, signed(SECRET, b'{"sub":5}')),
        ({}, signed(SECRET, b'{"sub":null}')),
        ({"jwt_audience": "chat"}, bearer()),
        ({"jwt_audience": "chat"}, bearer(aud="mail")),
        # A token that names an audience is not meant for a service that has none.
        ({}, bearer(aud="mail")),
        ({}, bearer(aud=[])),
        ({"jwt_issuer": "us"}, bearer()),
        ({"jwt_issuer": "us"}, bearer(iss="them")),
        ({}, bearer(sub="")),
        ({}, bearer(sub="ü")),
        ({}, bearer(sub="u" * 129)),
    ],
)
async def test_a_token_that_is_not_in_order_is_refused(
    settings: dict[str, str], authorization: str | None
) -> None:
    """Without repeating it, or a part of it."""
    with pytest.raises(Unauthenticated) as refused:
        await owner_of(authenticator(**settings), authorization)
    for piece in (authorization or "").removeprefix("Bearer ").split("."):
        assert len(piece) < 6 or piece not in str(refused.value)


@pytest.mark.parametrize("crit", [[], None, ["exp"]])
async def test_a_critical_extension_is_refused_whatever_the_library_makes_of_it(
    crit: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions of PyJWT let all of them pass."""
    monkeypatch.setattr(jwt.PyJWS, "_validate_crit", lambda *_: None)
    with pytest.raises(Unauthenticated):
        await owner_of(authenticator(), signed(SECRET, crit=crit))


@pytest.mark.parametrize(
    ("word", "settings", "authorization"),
    [
        ("expired", {}, bearer(exp=NOW)),
        ("(nbf)", {}, bearer(nbf=NOW + 60)),
        ("(alg)", {"jwt_public_key": pem(RSA_KEY)}, bearer(ED_KEY, "EdDSA")),
        ("signature", {}, bearer("another secret that is long enough too")),
        ("(aud)", {"jwt_audience": "chat"}, bearer()),
        ("(iss)", {"jwt_issuer": "us"}, bearer(iss="them")),
        ("(sub)", {}, bearer(sub="ü")),
    ],
)
async def test_a_refusal_says_what_to_mend(
    word: str, settings: dict[str, str], authorization: str
) -> None:
    """In words that a client's author understands."""
    with pytest.raises(Unauthenticated) as refused:
        await owner_of(authenticator(**settings), authorization)
    assert word in refused.value.detail


@pytest.mark.parametrize(("age_seconds", "accepted"), [(0, True), (59, True), (60, False)])
async def test_a_token_that_we_made_is_accepted_while_it_lives(
    age_seconds: int, accepted: bool
) -> None:
    """With the audience and the issuer that it was made for."""
    token = make_token(
        SECRET,
        UserId("alice"),
        lifetime_seconds=60,
        audience="chat",
        issuer="us",
        clock_seconds=lambda: NOW - age_seconds,
    )
    known = authenticator(jwt_audience="chat", jwt_issuer="us")
    if accepted:
        assert await owner_of(known, f"Bearer {token}") == "alice"
    else:
        with pytest.raises(Unauthenticated):
            await owner_of(known, f"Bearer {token}")


async def test_the_first_of_several_secrets_signs() -> None:
    """So that a rotation is over once the tokens of the other one have ended."""
    token = make_token(f"{NEW_SECRET}\n{SECRET}", UserId("alice"), lifetime_seconds=60)
    assert "alice" == jwt.decode(token, NEW_SECRET, ["HS256"])["sub"]


async def test_a_token_that_is_verified_anew_takes_no_other_ones_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own is free by then."""
    monkeypatch.setattr("stretto.http.tokens.authenticator.VERIFIED_MAX", 2)
    now = float(NOW)
    known = Authenticator(TokenSettings(jwt_secret=SECRET), lambda: NOW, lambda: now)
    first, second = bearer(jti="first"), bearer(jti="second")
    await owner_of(known, first)
    await owner_of(known, second)
    now += VERIFIED_SECONDS_MAX
    await owner_of(known, second)
    spelled = [token for token, _ in known._verified.values()]
    assert [first, second] == [f"Bearer {token}" for token in spelled]


async def test_a_verified_token_is_remembered_until_it_expires() -> None:
    """Verifying costs more than a whole replay; an expired token is never let in by memory."""
    now = float(NOW)
    known = Authenticator(TokenSettings(jwt_secret=SECRET), clock_seconds=lambda: now)
    authorization = bearer(exp=NOW + 60)
    assert await owner_of(known, authorization) == UserId("alice")
    known._keys = (VERIFIES_NOTHING,)
    assert await owner_of(known, authorization) == UserId("alice")
    now += 60
    with pytest.raises(Unauthenticated):
        await owner_of(known, authorization)


def spellings(token: str) -> set[str]:
    """Return tokens that a lenient reader takes for this one: its signature spelled differently."""
    rest, _, signature = token.rpartition(".")
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = digits.index(signature[-1])
    ends = {signature[:-1] + digits[last ^ bits] for bits in range(4)}
    return {
        *(f"{rest}.{end}" for end in ends),
        f"{rest}.{signature}=",
        f"{rest}.{signature.replace('-', '+').replace('_', '/')}",
    }


async def test_one_token_takes_one_place_however_it_is_spelled() -> None:
    """Else one user could drop all others from memory; each spelling is judged by itself."""
    known, now = authenticator(), float(NOW)
    known._clock_seconds = lambda: now
    token = bearer().removeprefix("Bearer ")
    accepted = 0
    for spelled in sorted(spellings(token)):
        for scheme in ("Bearer", "bearer", "BEARER"):
            with suppress(Unauthenticated):
                assert "alice" == await owner_of(known, f"{scheme} {spelled}")
                assert known.recall(f"{scheme} {spelled}") is not None
                accepted += 1
    assert accepted > 3
    assert len(known._verified) == 1


async def test_what_was_verified_is_recalled_for_that_very_token_alone() -> None:
    """Another signature, another scheme or no scheme is not the token that was verified."""
    known = authenticator()
    authorization = bearer()
    await owner_of(known, authorization)
    token = authorization.removeprefix("Bearer ")
    assert known.recall(authorization) is not None
    forged = token.rpartition(".")[0]
    for other in (token, f"Basic {token}", f"Bearer {forged}.x", f"Bearer {forged}", "", "Bearer "):
        assert known.recall(other) is None


async def test_a_token_that_is_to_be_verified_again_names_its_owner() -> None:
    """Until it ends or is refused, or the keys change; it allows nothing before it is verified."""
    clock, now = float(NOW), 0.0
    known = Authenticator(TokenSettings(jwt_secret=SECRET), lambda: clock, lambda: now)
    authorization, forged = bearer(exp=NOW + 60), bearer(exp=NOW + 60)[:-8] + "AAAAAAAA"
    assert known.owner_of(authorization) is None
    for forget in ("end", "refusal", "keys"):
        await owner_of(known, authorization)
        now += VERIFIED_SECONDS_MAX
        with pytest.raises(Unauthenticated):
            await owner_of(known, forged)
        assert known.recall(authorization) is None
        assert (None, "alice") == (known.owner_of(forged), known.owner_of(authorization))
        if forget == "end":
            clock += 60
        elif forget == "keys":
            known._keys_changed([])
        else:
            keys, known._keys = known._keys, (VERIFIES_NOTHING,)
            with pytest.raises(Unauthenticated):
                await owner_of(known, authorization)
            known._keys = keys
        assert known.owner_of(authorization) is None
        clock = float(NOW)


@pytest.mark.parametrize("claims", [{}, {"exp": NOW + 10**6}])
async def test_a_token_is_verified_again_after_a_while(claims: dict[str, Any]) -> None:
    """So a key that is withdrawn counts for minutes, not for ever, whatever end the token has."""
    now = float(NOW)
    known = Authenticator(TokenSettings(jwt_secret=SECRET), lambda: NOW, lambda: now)
    authorization = bearer(**claims)
    await owner_of(known, authorization)
    known._keys = (VERIFIES_NOTHING,)
    now += VERIFIED_SECONDS_MAX - 1
    assert await owner_of(known, authorization) == UserId("alice")
    now += 1
    with pytest.raises(Unauthenticated):
        await owner_of(known, authorization)


@pytest.mark.parametrize(
    ("expected", "claims"),
    [(NOW + 1.5, {"exp": NOW + 1.5}), (NOW + 10**6, {"exp": NOW + 10**6}), (math.inf, {})],
)
async def test_a_token_says_when_it_ends(expected: float, claims: dict[str, Any]) -> None:
    """However long it is remembered; sessions end with it."""
    checked = authenticator()
    for _ in range(2):
        assert expected == (await checked.verify(bearer(**claims))).ends_at


async def test_refused_tokens_are_not_remembered_and_verified_ones_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither garbage nor many users fill the memory."""
    monkeypatch.setattr("stretto.http.tokens.authenticator.VERIFIED_MAX", 3)
    known = authenticator()
    for number in range(10):
        with pytest.raises(Unauthenticated):
            await owner_of(known, f"Bearer garbage{number}")
        await owner_of(known, bearer(jti=str(number)))
    assert len(known._verified) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"jwt_secret": SECRET, "jwks_url": "http://127.0.0.1/keys"},
        {"jwt_secret": "x" * 31},
        {"jwt_secret": pem(RSA_KEY)},
        {"jwt_secret": SSH_KEY},
        {"jwt_secret": f"{SECRET}\n{SSH_KEY}"},
        {"jwt_secret": "\udcff" * 32},
        {"jwt_secret": f"{SECRET}\n{'x' * 31}"},
        {"jwt_secret": "\n".join(SECRET + str(number) for number in range(9))},
        {"jwt_public_key": "no PEM"},
        {"jwt_public_key": pem(RSA_KEY) * 9},
        # A key that is left out would have its tokens refused, and a comment can be guessed.
        {"jwt_public_key": pem(RSA_KEY) + pem(EC_KEY).replace("PUBLIC KEY", "CERTIFICATE")},
        {"jwt_secret": f"{SECRET}\n# The new one, since the tenth of November"},
        {"jwt_public_key": pem(rsa.generate_private_key(public_exponent=65537, key_size=1024))},
        {"jwt_public_key": pem(ec.generate_private_key(ec.SECP384R1()))},
    ],
)
def test_settings_that_cannot_verify_are_refused_at_once(settings: dict[str, Any]) -> None:
    """Not at the first request."""
    with pytest.raises(ConfigurationError):
        Authenticator(TokenSettings(**settings))


async def test_a_tokens_claims_are_kept_where_the_hosts_code_is_to_see_them() -> None:
    """With what is remembered of it; nobody changes them for a later request."""
    header = bearer(tenant="one")
    assert (await authenticator().verify(header)).claims is None
    settings = TokenSettings(jwt_secret=SECRET)
    keeping = Authenticator(settings, clock_seconds=lambda: NOW, keeps_claims=True)
    claims = (await keeping.verify(header)).claims
    assert {"sub": "alice", "tenant": "one"} == claims
    remembered = keeping.recall(header)
    assert remembered is not None
    assert claims is remembered.claims


async def test_nothing_in_a_tokens_claims_can_be_changed() -> None:
    """At any depth: the next request with the token would say it, too."""
    settings = TokenSettings(jwt_secret=SECRET)
    keeping = Authenticator(settings, clock_seconds=lambda: NOW, keeps_claims=True)
    said: dict[str, Any] = {
        "realm": {"roles": ["user", {"of": ["a"]}]},
        "groups": [[1], "x", None, True],
    }
    claims = (await keeping.verify(bearer(**said))).claims
    assert claims is not None
    roles, groups = ("user", {"of": ("a",)}), ((1,), "x", None, True)
    assert {"sub": "alice", "realm": {"roles": roles}, "groups": groups} == claims
    mappings: tuple[Any, ...] = (claims, claims["realm"], claims["realm"]["roles"][1])
    for mapping in mappings:
        with pytest.raises(TypeError):
            mapping["of"] = "another"


async def test_claims_that_are_nested_too_deeply_are_not_kept() -> None:
    """Nor is such a token good; the twin is, where nothing has to be kept of it."""
    nested: dict[str, Any] = {}
    for _ in range(480):
        nested = {"a": nested}
    header = bearer(nested=nested)
    settings = TokenSettings(jwt_secret=SECRET)
    keeping = Authenticator(settings, clock_seconds=lambda: NOW, keeps_claims=True)
    assert "alice" == (await authenticator().verify(header)).owner
    with pytest.raises(Unauthenticated):
        await keeping.verify(header)
