"""Who asks: verifies bearer tokens (RFC 6750, RFC 7519) and remembers those that it has verified.

The algorithm follows from the kind of key we hold, never from what a token claims (RFC 8725, 3.1).
What is wrong with a token is told in general words; the token itself is repeated nowhere.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from stretto.domain import UserId
from stretto.errors import ConfigurationError, Unauthenticated
from stretto.http.jwks import KeySet

if TYPE_CHECKING:
    from collections.abc import Callable

# RFC 7518, 3.2 and 3.3.
SECRET_BYTES_MIN: Final = 32
RSA_BITS_MIN: Final = 2048
TOKEN_CHARACTERS_MAX: Final = 8192
# Clocks of issuer and service differ a little.
LEEWAY_SECONDS: Final = 10
# A token without an end, or one whose key is withdrawn, is looked at again after this long.
VERIFIED_SECONDS_MAX: Final = 300.0
VERIFIED_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """How tokens are verified: by exactly one of a secret, a PEM public key, a key set's URL."""

    secret: str = ""
    public_key: str = ""
    jwks_url: str = ""
    audience: str = ""
    issuer: str = ""


@dataclass(frozen=True, slots=True)
class _Verified:
    owner: UserId
    until: float


class Authenticator:
    """Tells the owner of a request from its token; use as `async with`."""

    def __init__(
        self, settings: TokenSettings, clock_seconds: Callable[[], float] = time.time
    ) -> None:
        """Raise `ConfigurationError` for settings that cannot verify a token."""
        self._settings = settings
        self._clock_seconds = clock_seconds
        self._key, self._algorithms = _fixed_key(settings)
        self._key_set: KeySet | None = None
        self._generation = 0
        self._verified: dict[str, _Verified] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._settings.jwks_url:
            key_set = KeySet(self._settings.jwks_url, self._clock_seconds)
            self._key_set = await self._stack.enter_async_context(key_set)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def owner(self, authorization: str | None) -> UserId:
        """Return the owner that an Authorization header's token names.

        Raises `Unauthenticated`, and `Overloaded` while the issuer's keys cannot be had.
        """
        if authorization is None:
            raise Unauthenticated
        known = self._verified.get(authorization)
        if known is not None and self._clock_seconds() < known.until:
            return known.owner
        verified = await self._verify(_bearer(authorization))
        if len(self._verified) >= VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[authorization] = verified
        return verified.owner

    async def _verify(self, token: str) -> _Verified:
        key, algorithms = self._key, self._algorithms
        if self._key_set is not None:
            found = await self._key_set.key(_key_id(token))
            if self._generation != self._key_set.generation:
                # A key may have been withdrawn: what was verified with it counts no longer.
                self._generation = self._key_set.generation
                self._verified.clear()
            if found is None:
                raise Unauthenticated(
                    "The token is signed with a key that its issuer does not have."
                )
            key, algorithms = found, [found.algorithm_name]
        return self._read_claims(token, key, algorithms)

    def _read_claims(self, token: str, key: Any, algorithms: list[str]) -> _Verified:
        now = self._clock_seconds()
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=algorithms,
                audience=self._settings.audience or None,
                issuer=self._settings.issuer or None,
                # Times are checked below, on our own clock.
                options={"verify_exp": False, "verify_nbf": False, "verify_iat": False},
            )
            ends, begins = claims.get("exp"), claims.get("nbf", 0)
            if ends is not None and float(ends) <= now:
                raise Unauthenticated("The token has expired.")
            if float(begins) > now + LEEWAY_SECONDS:
                raise Unauthenticated("The token is not valid yet.")
            owner = UserId(claims.get("sub"))
        except jwt.InvalidAudienceError as error:
            raise Unauthenticated("The token is meant for somebody else (aud).") from error
        except jwt.InvalidIssuerError as error:
            raise Unauthenticated("The token is from another issuer (iss).") from error
        except jwt.PyJWTError as error:
            raise Unauthenticated("The token is not valid.") from error
        except (ValueError, TypeError, OverflowError) as error:
            raise Unauthenticated("The token's claims cannot be used (sub, exp or nbf).") from error
        until = now + VERIFIED_SECONDS_MAX
        return _Verified(owner, until if ends is None else min(float(ends), until))


def make_token(
    secret: str,
    user: UserId,
    *,
    lifetime_seconds: int,
    audience: str = "",
    issuer: str = "",
) -> str:
    """Return a token (HS256) for a user, for trying things out."""
    now = int(time.time())
    claims: dict[str, Any] = {"sub": str(user), "iat": now, "exp": now + lifetime_seconds}
    if audience:
        claims["aud"] = audience
    if issuer:
        claims["iss"] = issuer
    return jwt.encode(claims, secret, algorithm="HS256")


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not 0 < len(token) <= TOKEN_CHARACTERS_MAX:
        raise Unauthenticated
    return token


def _key_id(token: str) -> str | None:
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except jwt.PyJWTError as error:
        raise Unauthenticated("The token is not valid.") from error
    return None if kid is None else str(kid)


def _fixed_key(settings: TokenSettings) -> tuple[Any, list[str]]:
    """Return our key and what may be signed with it; nothing where keys come from the issuer."""
    if sum(map(bool, (settings.secret, settings.public_key, settings.jwks_url))) != 1:
        raise ConfigurationError("tokens need exactly one of a secret, a public key, a key set URL")
    if settings.jwks_url:
        return None, []
    if settings.secret:
        if len(settings.secret.encode()) < SECRET_BYTES_MIN:
            raise ConfigurationError(f"the token secret needs at least {SECRET_BYTES_MIN} bytes")
        return settings.secret, ["HS256"]
    try:
        key = load_pem_public_key(settings.public_key.encode())
    except ValueError as error:
        raise ConfigurationError("the public key cannot be read as PEM") from error
    if isinstance(key, RSAPublicKey) and key.key_size >= RSA_BITS_MIN:
        return key, ["RS256"]
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return key, ["ES256"]
    if isinstance(key, Ed25519PublicKey):
        return key, ["EdDSA"]
    raise ConfigurationError(
        f"the public key must be RSA of {RSA_BITS_MIN} bits or more, P-256 or Ed25519"
    )
