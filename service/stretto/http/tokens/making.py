"""Makes tokens, for trials and tests."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import jwt

from stretto.http.tokens.keys import secrets_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stretto.domain import UserId
    from stretto.http.tokens.scopes import Scope


def make_token(  # noqa: PLR0913 each is a claim
    secret: str,
    user: UserId,
    *,
    lifetime_seconds: int,
    audience: str = "",
    issuer: str = "",
    scopes: Collection[Scope] = (),
    clock_seconds: Callable[[], float] = time.time,
) -> str:
    """Return a token (HS256) for a user, for trials and tests; the first of several secrets signs."""
    now = int(clock_seconds())
    claims: dict[str, Any] = {"sub": str(user), "iat": now, "exp": now + lifetime_seconds}
    if audience:
        claims["aud"] = audience
    if issuer:
        claims["iss"] = issuer
    if scopes:
        claims["scope"] = " ".join(scopes)
    return jwt.encode(claims, secrets_in(secret)[0], algorithm="HS256")
