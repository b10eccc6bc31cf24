"""Reads the claims of a token, once a key of ours has verified its signature.

The algorithm follows from the kind of key we hold, never from what a token claims (RFC 8725, 3.1).
The times of a token are not read here (`times.py`), nor is what its owner may be called.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import jwt

from stretto.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.http.tokens.keys import TokenKey

_REFUSALS: Final[dict[type[Exception], str]] = {
    jwt.InvalidAlgorithmError: "The token's algorithm (alg) does not fit this service's key.",
    jwt.InvalidAudienceError: "The token is for another audience (aud).",
    jwt.InvalidIssuerError: "The token is from another issuer (iss).",
    jwt.InvalidSignatureError: "The token's signature is wrong.",
}
# What a token of a key that we do not know yet looks like by a key of the same id.
_OF_ANOTHER_KEY: Final = (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError)


class ClaimsReader:
    """Verifies the signature of tokens, and their audience and issuer where these are not empty."""

    def __init__(self, audience: str, issuer: str) -> None:
        self._audience = audience
        self._issuer = issuer

    def read_by_any(
        self, token: str, keys: tuple[TokenKey, ...]
    ) -> tuple[dict[str, Any], TokenKey]:
        """Return the claims, and the key that has signed the token; raise as the last key does."""
        *others, last = keys
        for key in others:
            try:
                return self.read(token, key), key
            except Unauthenticated as error:
                if not is_of_another_key(error):
                    raise
        return self.read(token, last), last

    def read(self, token: str, key: TokenKey) -> dict[str, Any]:
        """Return the claims of a token that this key has signed; raise `Unauthenticated`."""
        try:
            decoded = jwt.decode_complete(
                token,
                key.material,
                algorithms=[key.algorithm],
                audience=self._audience or None,
                issuer=self._issuer or None,
                # `UserId` verifies the subject, and `end_of` the times: by our own rule and clock.
                options={
                    "verify_sub": False,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.MissingRequiredClaimError as error:
            raise Unauthenticated(f"The token lacks a claim ({error.claim}).") from error
        except (jwt.PyJWTError, RecursionError) as error:
            detail = _REFUSALS.get(type(error), "The token is not valid.")
            raise Unauthenticated(detail) from error
        # PyJWT accepts extensions that it knows itself; older versions accept all.
        if "crit" in decoded["header"]:
            raise Unauthenticated("The token needs an extension that is not supported (crit).")
        claims: dict[str, Any] = decoded["payload"]
        # A service without an audience refuses a token that names one, even an empty one
        # (RFC 7519, 4.1.3).
        if "aud" in claims and not self._audience:
            raise Unauthenticated(_REFUSALS[jwt.InvalidAudienceError])
        return claims


def read_only(claims: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the claims so that nothing in them can be changed; arrays become tuples.

    They are remembered with their token: what a host changed would be said by its next request.
    """
    try:
        return MappingProxyType({name: _frozen(value) for name, value in claims.items()})
    except RecursionError as error:
        raise Unauthenticated("The token is not valid.") from error


def _frozen(value: Any) -> Any:
    match value:
        case dict():
            return read_only(value)
        case list():
            return tuple(map(_frozen, value))
        case _:
            return value


def is_of_another_key(error: Unauthenticated) -> bool:
    """Whether the token may be good by another key of the id that it names."""
    return isinstance(error.__cause__, _OF_ANOTHER_KEY)


def key_named_by(token: str) -> tuple[str | None, str | None]:
    """Return the key's id and the algorithm that a token names.

    PyJWT verifies that the id is text. The algorithm only chooses among keys; each has its own.
    """
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, RecursionError) as error:
        raise Unauthenticated("The token is not valid.") from error
    return header.get("kid"), header.get("alg")
