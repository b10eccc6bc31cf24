"""Authenticates callers: verifies bearer tokens (RFC 6750, RFC 7519) and remembers verified ones.

An error says in general words what is wrong with a token, and never repeats the token.
"""

from __future__ import annotations

import re
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from stretto.domain import USER_ID_CHARACTERS_MAX, UserId
from stretto.errors import InsufficientScope, Unauthenticated
from stretto.http.tokens.claims import ClaimsReader, is_of_another_key, key_named_by, read_only
from stretto.http.tokens.jwks import KeySet
from stretto.http.tokens.keys import TokenKey, public_keys, secret_keys
from stretto.http.tokens.refusals import Refusals
from stretto.http.tokens.scopes import Scope, scopes_in
from stretto.http.tokens.settings import TOKEN_WAYS
from stretto.http.tokens.times import end_of
from stretto.start_errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from stretto.http.tokens.settings import TokenSettings

TOKEN_CHARACTERS_MAX: Final = 8192
# A token may have no end, or its key may be withdrawn: it is verified again after so long.
VERIFIED_SECONDS_MAX: Final = 300.0
VERIFIED_MAX: Final = 10_000

# The characters of RFC 6750, 2.1; a token with any other is not parsed.
_BEARER = re.compile(r"bearer ([A-Za-z0-9._~+/-]+=*)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Verified:
    """The claims of a verified token."""

    owner: UserId
    key: TokenKey
    """What verified it."""
    until: float
    """When it must be verified again, in seconds of the monotonic clock."""
    ends_at: float
    """When it ends, in seconds since the epoch; infinity, if it names no end."""
    scopes: frozenset[Scope]
    """What it allows."""
    claims: Mapping[str, Any] | None = None
    """All that it says, where the host's code is to see that: read-only at every depth."""

    def require(self, scope: Scope) -> None:
        """Raise `InsufficientScope` unless the token allows this."""
        if scope not in self.scopes:
            raise InsufficientScope(scope)


_UNKNOWN: Final[tuple[str, Verified | None]] = "", None


class Authenticator:
    """Finds by a request's token whose it is, and what it may do; use as `async with`."""

    def __init__(
        self,
        settings: TokenSettings,
        clock_seconds: Callable[[], float] = time.time,
        monotonic_seconds: Callable[[], float] = time.monotonic,
        *,
        keeps_claims: bool = False,
    ) -> None:
        """Raise `ConfigurationError` for settings that cannot verify a token.

        The first clock is compared with a token's times; the second, never set back, measures ages.
        """
        self._keeps_claims = keeps_claims
        self._settings = settings
        self._clock_seconds = clock_seconds
        self._monotonic_seconds = monotonic_seconds
        self._claims = ClaimsReader(settings.jwt_audience, settings.jwt_issuer)
        self._keys = _fixed_keys(settings)
        self._key_set: KeySet | None = None
        self.on_withdrawn: Callable[[Collection[TokenKey]], None] = lambda _: None
        """Is called with the keys that the issuer publishes no longer."""
        self._verified: dict[str, tuple[str, Verified]] = {}
        """By the part of a token that its signature signs; with the token as it was verified.

        A signature has many spellings (unused bits of base64, a second one of ECDSA), the signed
        part has one: so a token has one entry, however it is spelled.
        """
        self._refusals = Refusals(monotonic_seconds)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._settings.jwks_url:
            url = self._settings.jwks_url
            key_set = KeySet(url, self._monotonic_seconds, self._keys_changed)
            self._key_set = await self._stack.enter_async_context(key_set)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _keys_changed(self, withdrawn: Collection[TokenKey]) -> None:
        """Forget all tokens: those that a withdrawn key has verified must be verified again."""
        self._verified.clear()
        self._refusals.clear()
        self.on_withdrawn(withdrawn)

    def bound_waits(self, connections_max: int) -> None:
        """Have few of so many connections wait for the issuer of tokens at a time."""
        if self._key_set is not None:
            self._key_set.bound_waits(connections_max)

    def refresh_keys(self) -> None:
        """Begin to fetch an issuer's keys if they are old: for sessions, which send no token again."""
        if self._key_set is not None:
            self._key_set.refresh()

    def has_keys(self) -> bool:
        """Return whether a key is known; begin to fetch an issuer's keys if none is.

        Also where the issuer has been away for so long that its keys are trusted no longer: a process
        that said no then would be taken out of service together with all others.
        """
        return self._key_set is None or self._key_set.has_keys()

    async def verify(self, authorization: str | None) -> Verified:
        """Return the claims of an Authorization header's token.

        Raises `Unauthenticated`, and `Overloaded` while the issuer's keys cannot be fetched, or too
        many requests wait for them.
        """
        if authorization is None:
            raise Unauthenticated
        known = self.recall(authorization)
        if known is not None:
            return known
        token = _bearer(authorization)
        signed = _signed(token)
        try:
            verified = await self._verify(token)
        except Unauthenticated:
            self._refusals.add(token)
            # It names its owner no longer. With a forged signature it is not the one that was verified.
            if self._verified.get(signed, _UNKNOWN)[0] == token:
                del self._verified[signed]
            raise
        # Removed first, so that a token that is verified again becomes the youngest.
        self._verified.pop(signed, None)
        if len(self._verified) >= VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[signed] = token, verified
        return verified

    def recall(self, authorization: str) -> Verified | None:
        """Return the claims of this header's token, if it is remembered and need not be verified again."""
        known = self._remembered(authorization)
        if known is None or self._monotonic_seconds() >= known.until:
            return None
        return known

    def owner_of(self, authorization: str) -> UserId | None:
        """Return whose this header's token is, also while it has to be verified again.

        It says whose turn it is and whose connection, and allows nothing: else all that a user sends each
        five minutes would wait with the requests of strangers.
        """
        known = self._remembered(authorization)
        return None if known is None else known.owner

    def _remembered(self, authorization: str) -> Verified | None:
        """Return the claims of this header's token, if it was verified, and has neither ended nor been refused."""
        scheme, _, token = authorization.partition(" ")
        spelled, known = self._verified.get(_signed(token), _UNKNOWN)
        if known is None or spelled != token or scheme.lower() != "bearer":
            return None
        return known if self._clock_seconds() < known.ends_at else None

    def is_refused(self, authorization: str) -> bool:
        """Return whether this header's token is known not to be valid, at little cost."""
        token = authorization.partition(" ")[2].strip()
        # Another one cannot be encoded.
        if not token.isascii() or token in self._refusals:
            return True
        return bool(self._keys) and all(key.is_forged(token) for key in self._keys)

    async def _verify(self, token: str) -> Verified:
        # No await after this until it is remembered: no change of the keys can come in between.
        claims, key = await self._verified_claims(token)
        try:
            owner = UserId(claims.get("sub"))
        except ValueError as error:
            raise Unauthenticated(
                f"The token's subject (sub) must have 1 to {USER_ID_CHARACTERS_MAX} printable ASCII"
                " characters, without a blank at either end."
            ) from error
        ends_at = end_of(claims, self._clock_seconds())
        until = self._monotonic_seconds() + VERIFIED_SECONDS_MAX
        scopes = scopes_in(claims, are_required=self._settings.jwt_require_scopes)
        kept = read_only(claims) if self._keeps_claims else None
        return Verified(owner, key, until, ends_at, scopes, kept)

    async def _verified_claims(self, token: str) -> tuple[dict[str, Any], TokenKey]:
        """Return a token's claims, and the key that has signed it: ours, or one of the issuer's."""
        if self._keys:
            return self._claims.read_by_any(token, self._keys)
        assert self._key_set is not None, "a key set is opened by `async with`"
        kid, algorithm = key_named_by(token)
        keys = await self._key_set.keys(kid, algorithm)
        if not keys:
            raise Unauthenticated("The token is signed with a key that its issuer does not have.")
        try:
            return self._claims.read_by_any(token, keys)
        except Unauthenticated as error:
            if not is_of_another_key(error):
                raise
            # An issuer need not give a new id to a new key.
            replacements = await self._key_set.replacements(kid, algorithm, keys)
            if not replacements:
                raise
        return self._claims.read_by_any(token, replacements)


def _bearer(authorization: str) -> str:
    scheme_characters = len("Bearer ")
    if len(authorization) > scheme_characters + TOKEN_CHARACTERS_MAX:
        raise Unauthenticated(f"The token has more than {TOKEN_CHARACTERS_MAX} characters.")
    found = _BEARER.fullmatch(authorization)
    if found is None:
        raise Unauthenticated
    return found[1]


def _signed(token: str) -> str:
    """Return the part of a token that its signature signs (RFC 7515, 5.1)."""
    return token.rpartition(".")[0]


def _fixed_keys(settings: TokenSettings) -> tuple[TokenKey, ...]:
    """Return the keys of the settings; none if the issuer publishes the keys."""
    if len(settings.ways) != 1:
        raise ConfigurationError(f"tokens need exactly one of {', '.join(TOKEN_WAYS)}")
    if settings.jwks_url:
        return ()
    if settings.jwt_secret:
        return secret_keys(settings.jwt_secret)
    return public_keys(settings.jwt_public_key)
