"""Remembers the tokens that were refused a short time ago."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# A token that is not valid yet may become valid, and a key may become known.
REFUSED_SECONDS: Final = 10.0
REFUSED_MAX: Final = 10_000
_DIGEST_BYTES: Final = 16


class Refusals:
    """Refused tokens by digest: a token has up to 8 KiB."""

    def __init__(self, monotonic_seconds: Callable[[], float]) -> None:
        self._monotonic_seconds = monotonic_seconds
        self._until: dict[bytes, float] = {}

    def add(self, token: str) -> None:
        """Remember a token as it is spelled, in place of the oldest where there are too many."""
        # Not by its signed part: a client that knows that of a good token could have it refused.
        digest = _digest(token)
        self._until.pop(digest, None)
        if len(self._until) >= REFUSED_MAX:
            del self._until[next(iter(self._until))]
        self._until[digest] = self._monotonic_seconds() + REFUSED_SECONDS

    def __contains__(self, token: str) -> bool:
        """Return whether a token was refused a short time ago."""
        until = self._until.get(_digest(token))
        return until is not None and self._monotonic_seconds() < until

    def clear(self) -> None:
        """Forget all."""
        self._until.clear()


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode(), digest_size=_DIGEST_BYTES).digest()
