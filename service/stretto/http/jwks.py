"""The token issuer's published keys (RFC 7517), fetched when needed and kept for a while.

An issuer that is away does not take us with it: known keys go on serving. A token that names an
unknown key makes us look again, but seldom: garbage must not make us hammer the issuer.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, Self

import aiohttp
import jwt
import orjson

from stretto.errors import Overloaded

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_SECONDS: Final = 600.0
# Keys of an issuer that stays away are trusted for a day, then no longer.
STALE_SECONDS: Final = 24 * 3600.0
COOL_DOWN_SECONDS: Final = 30.0
FETCH_SECONDS: Final = 3.0
DOCUMENT_BYTES_MAX: Final = 256 * 1024

# A shared secret has no place in a published document.
ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
_ALGORITHM_OF_KIND: Final = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}


class _UnusableError(Exception):
    """The issuer's answer is of no use."""


class KeySet:
    """The keys at one URL, by their `kid`; use as `async with`."""

    def __init__(self, url: str, clock_seconds: Callable[[], float]) -> None:
        self._url = url
        self._clock_seconds = clock_seconds
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()
        self.generation = 0
        """Changes whenever the keys do."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_SECONDS))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def key(self, kid: str | None) -> jwt.PyJWK | None:
        """Return the key of that id, or the only one where a token names none.

        Raises `Overloaded` when no keys could be had at all.
        """
        age_seconds = self._clock_seconds() - self._fetched_at
        if age_seconds > KEPT_SECONDS or self._find(kid) is None:
            await self._refresh()
        if not self._keys or self._clock_seconds() - self._fetched_at > STALE_SECONDS:
            message = "The token issuer's keys cannot be fetched."
            raise Overloaded(message, retry_after_seconds=round(COOL_DOWN_SECONDS))
        return self._find(kid)

    def _find(self, kid: str | None) -> jwt.PyJWK | None:
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    async def _refresh(self) -> None:
        """Fetch the keys unless somebody has just tried; a failure keeps those we have."""
        async with self._fetching:
            if self._clock_seconds() - self._tried_at < COOL_DOWN_SECONDS:
                return
            keys = None
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, _UnusableError):
                keys = _read_keys(await self._fetch())
            # Not reached when cancelled: the next in line tries then.
            self._tried_at = self._clock_seconds()
            if keys is None:
                return
            self._fetched_at = self._tried_at
            self.generation += keys.keys() != self._keys.keys()
            self._keys = keys

    async def _fetch(self) -> bytes:
        async with self._session.get(self._url, allow_redirects=False) as response:
            if response.status != 200:
                raise _UnusableError(f"the issuer answered {response.status}")
            body = await response.content.read(DOCUMENT_BYTES_MAX + 1)
            while len(body) <= DOCUMENT_BYTES_MAX and not response.content.at_eof():
                body += await response.content.read(DOCUMENT_BYTES_MAX + 1)
            if len(body) > DOCUMENT_BYTES_MAX:
                raise _UnusableError("the issuer's keys are too large")
            return body


def _read_keys(document: bytes) -> dict[str | None, jwt.PyJWK]:
    """Return the usable keys; those that are malformed or not for signatures are left out."""
    try:
        parsed = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise _UnusableError("the issuer's answer is not JSON") from error
    entries = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        raise _UnusableError("the issuer's answer is no key set")
    keys: dict[str | None, jwt.PyJWK] = {}
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        algorithm = entry.get("alg") or _ALGORITHM_OF_KIND.get(str(entry.get("kty")))
        if algorithm not in ALGORITHMS:
            continue
        try:
            keys[entry.get("kid")] = jwt.PyJWK(entry, algorithm)
        except jwt.PyJWTError:
            continue
    return keys
