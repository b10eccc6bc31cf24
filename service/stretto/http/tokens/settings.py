"""How tokens are verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stretto.http.tokens.scopes import OWN, Scope
from stretto.setting import setting

if TYPE_CHECKING:
    from collections.abc import Collection

# The ways to verify tokens: with two of them it would be open which one counts.
TOKEN_WAYS: Final = ("jwt_secret", "jwt_public_key", "jwks_url")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """How tokens are verified: with exactly one of `TOKEN_WAYS`."""

    jwt_secret: str = setting(
        "", "HS256 secret, 32 bytes or more; may be several, a line each", is_secret=True
    )
    jwt_public_key: str = setting("", "PEM key for RS256, ES256 or EdDSA, or several")
    jwks_url: str = setting("", "where the token issuer publishes its keys")
    jwt_audience: str = setting("", "required `aud`")
    jwt_issuer: str = setting("", "required `iss`")
    jwt_require_scopes: bool = setting(
        default=False,
        description="whether tokens must name in `scope` what they allow: stretto:create,"
        " stretto:delete, stretto:read, stretto:events; else one that names none of these allows all",
    )

    @property
    def ways(self) -> list[str]:
        """Those of `TOKEN_WAYS` that are set."""
        return [way for way in TOKEN_WAYS if getattr(self, way)]

    @property
    def trial_scopes(self) -> Collection[Scope]:
        """What a token for trying out must name."""
        return sorted(OWN) if self.jwt_require_scopes else ()
