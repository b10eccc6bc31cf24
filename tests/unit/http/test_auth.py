"""Tokens: what is accepted, what is refused, and what of it is remembered."""

from __future__ import annotations

import base64
from typing import Any

import jwt
import orjson
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from stretto.domain import UserId
from stretto.errors import ConfigurationError, Unauthenticated
from stretto.http.auth import LEEWAY_SECONDS, VERIFIED_SECONDS_MAX, Authenticator, TokenSettings

SECRET = "a secret for tests that is long enough"
NOW = 1_800_000_000
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()


def pem(key: Any) -> str:
    """Return the public part as an operator would set it."""
    encoded: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return encoded.decode()


def bearer(key: Any = SECRET, algorithm: str = "HS256", **claims: object) -> str:
    """Return an Authorization header with a token of alice's."""
    return "Bearer " + jwt.encode({"sub": "alice", **claims}, key, algorithm)


def authenticator(**settings: str) -> Authenticator:
    """Return one with a clock that stands still."""
    chosen = settings if {*settings} & {"secret", "public_key"} else {"secret": SECRET, **settings}
    return Authenticator(TokenSettings(**chosen), clock_seconds=lambda: NOW)


@pytest.mark.parametrize(
    ("settings", "authorization"),
    [
        ({"secret": SECRET}, bearer()),
        ({"secret": SECRET}, bearer(exp=NOW + 1)),
        ({"secret": SECRET}, bearer().replace("Bearer", "bearer")),
        ({"secret": SECRET}, bearer(nbf=NOW + LEEWAY_SECONDS)),
        ({"secret": SECRET, "audience": "chat"}, bearer(aud="chat")),
        ({"secret": SECRET, "audience": "chat"}, bearer(aud=["mail", "chat"])),
        ({"secret": SECRET, "issuer": "us"}, bearer(iss="us")),
        ({"public_key": pem(RSA_KEY)}, bearer(RSA_KEY, "RS256")),
        ({"public_key": pem(EC_KEY)}, bearer(EC_KEY, "ES256")),
        ({"public_key": pem(ED_KEY)}, bearer(ED_KEY, "EdDSA")),
    ],
)
async def test_a_valid_token_names_its_owner(settings: dict[str, str], authorization: str) -> None:
    """By a secret or a public key, with audience and issuer where they are wanted."""
    assert await authenticator(**settings).owner(authorization) == "alice"


def part(document: dict[str, object]) -> str:
    """Return a part of a token."""
    return base64.urlsafe_b64encode(orjson.dumps(document)).rstrip(b"=").decode()


def unsigned() -> str:
    """Return a token that claims to need no signature."""
    return f"Bearer {part({'alg': 'none', 'typ': 'JWT'})}.{part({'sub': 'alice'})}."


def confused() -> str:
    """Return a token that is signed with our public key as if it were a secret."""
    head, body = part({"alg": "HS256", "typ": "JWT"}), part({"sub": "alice"})
    import hmac  # noqa: PLC0415 PyJWT itself refuses to make such a token

    signature = hmac.digest(pem(RSA_KEY).encode(), f"{head}.{body}".encode(), "sha256")
    return f"Bearer {head}.{body}." + base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


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
        ({}, "Bearer " + "x" * 9000),
        ({}, tampered(0)),
        ({}, tampered(1)),
        ({}, tampered(2)),
        ({}, bearer("another secret that is long enough too")),
        ({}, unsigned()),
        ({"public_key": pem(RSA_KEY)}, unsigned()),
        ({"public_key": pem(RSA_KEY)}, confused()),
        ({"public_key": pem(RSA_KEY)}, bearer()),
        ({"public_key": pem(RSA_KEY)}, bearer(ED_KEY, "EdDSA")),
        ({}, bearer(exp=NOW)),
        ({}, bearer(exp=NOW - 1)),
        ({}, bearer(exp="soon")),
        ({}, bearer(nbf=NOW + LEEWAY_SECONDS + 1)),
        ({"audience": "chat"}, bearer()),
        ({"audience": "chat"}, bearer(aud="mail")),
        # A token that names an audience is not meant for a service that has none.
        ({}, bearer(aud="mail")),
        ({"issuer": "us"}, bearer()),
        ({"issuer": "us"}, bearer(iss="them")),
        ({}, bearer(sub="")),
        ({}, bearer(sub="ü")),
        ({}, bearer(sub="u" * 129)),
    ],
)
async def test_a_token_that_is_not_in_order_is_refused(
    settings: dict[str, str], authorization: str | None
) -> None:
    """Without repeating it, or a part of it, to anybody."""
    with pytest.raises(Unauthenticated) as refused:
        await authenticator(**settings).owner(authorization)
    for piece in (authorization or "").removeprefix("Bearer ").split("."):
        assert len(piece) < 6 or piece not in str(refused.value)


@pytest.mark.parametrize("claims", [{"sub": 5}, {"sub": None}])
async def test_a_subject_that_is_no_text_is_refused(claims: dict[str, object]) -> None:
    """However well it is signed."""
    token = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}"
    signed = jwt.api_jws.encode(orjson.dumps(claims), SECRET, "HS256")
    assert signed.split(".")[1] == token.split(".")[1]
    with pytest.raises(Unauthenticated):
        await authenticator().owner(f"Bearer {signed}")


async def test_a_verified_token_is_remembered_until_it_expires() -> None:
    """Verifying costs more than a whole replay; an expired token is never let in by memory."""
    now = float(NOW)
    known = Authenticator(TokenSettings(secret=SECRET), clock_seconds=lambda: now)
    authorization = bearer(exp=NOW + 60)
    assert await known.owner(authorization) == UserId("alice")
    known._key = "a key that verifies nothing any more.."
    assert await known.owner(authorization) == UserId("alice")
    now += 60
    with pytest.raises(Unauthenticated):
        await known.owner(authorization)


async def test_a_token_without_an_end_is_verified_again_after_a_while() -> None:
    """So a key that is withdrawn counts for minutes, not for ever."""
    now = float(NOW)
    known = Authenticator(TokenSettings(secret=SECRET), clock_seconds=lambda: now)
    authorization = bearer()
    await known.owner(authorization)
    known._key = "a key that verifies nothing any more.."
    now += VERIFIED_SECONDS_MAX
    with pytest.raises(Unauthenticated):
        await known.owner(authorization)


async def test_refused_tokens_are_not_remembered_and_verified_ones_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither garbage nor many users fill the memory."""
    monkeypatch.setattr("stretto.http.auth.VERIFIED_MAX", 3)
    known = authenticator()
    for number in range(10):
        with pytest.raises(Unauthenticated):
            await known.owner(f"Bearer garbage{number}")
        await known.owner(bearer(jti=str(number)))
    assert len(known._verified) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"secret": SECRET, "jwks_url": "http://127.0.0.1/keys"},
        {"secret": "short"},
        {"public_key": "no PEM"},
        {"public_key": pem(ec.generate_private_key(ec.SECP384R1()))},
    ],
)
def test_settings_that_cannot_verify_are_refused_at_once(settings: dict[str, str]) -> None:
    """Not at the first request."""
    with pytest.raises(ConfigurationError):
        Authenticator(TokenSettings(**settings))
