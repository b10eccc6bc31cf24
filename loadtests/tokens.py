"""Tokens for the users of a load test, signed with the service's secret."""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Final

import jwt

# The service's STRETTO_JWT_SECRET.
SECRET_VARIABLE: Final = "TOKEN_SECRET"
# Longer than any load test.
TOKEN_SECONDS: Final = 24 * 3600
# More users than one process can simulate.
TOKENS_REMEMBERED_MAX: Final = 10_000


@lru_cache(maxsize=TOKENS_REMEMBERED_MAX)
def token_of(user: str) -> str:
    """Return the user's token."""
    claims = {"sub": user, "exp": int(time.time()) + TOKEN_SECONDS}
    return jwt.encode(claims, os.environ[SECRET_VARIABLE], algorithm="HS256")
