"""The token issuer's published keys (RFC 7517), fetched when needed and kept for a while.

An issuer that is away does not take us with it: known keys go on serving. A token that names an
unknown key makes us look again, but seldom: garbage must not make us hammer the issuer. Such a token
is refused only when the issuer was asked after the token had come; until then nothing is known of it.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp
import jwt
import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from stretto.errors import Overloaded
from stretto.network import network_failure
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT_SECONDS: Final = 600.0
# Keys of an issuer that stays away are trusted for a day, then no longer.
STALE_SECONDS: Final = 24 * 3600.0
# Until an issuer that has answered is asked for an unknown key again: anybody can make us ask, with a
# token that names any key, and a new key's first clients wait so long.
LOOK_AGAIN_SECONDS: Final = 5.0
# The same after a try that has failed.
COOL_DOWN_SECONDS: Final = 30.0
# Unknown keys that are remembered, the oldest is forgotten first: its clients wait for one more look.
UNKNOWN_KEYS_MAX: Final = 1000
FETCH_SECONDS: Final = 3.0
DOCUMENT_BYTES_MAX: Final = 256 * 1024
# RFC 7518, 3.3.
RSA_BITS_MIN: Final = 2048

# What a published key of a kind can be used for; a shared secret ("oct") has no place among them.
_ALGORITHM_OF_KIND: Final = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key, with the one algorithm that it verifies (RFC 8725, 3.1)."""

    algorithm: str
    material: Any
    """A secret's bytes or a public key; equal ones verify the same."""
    kid: str | None = None


class _UnusableError(Exception):
    """The issuer's answer is of no use."""


class KeySet:
    """The keys at one URL; use as `async with`."""

    def __init__(
        self, url: str, clock_seconds: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        """Take a monotonic clock, and a callback for when other keys have been published.

        The callback must not await.
        """
        self._url = url
        self._clock_seconds = clock_seconds
        self._on_change = on_change
        self._keys: tuple[TokenKey, ...] = ()
        self._fetched_at = self._tried_at = -math.inf
        self._fault: Exception | None = None
        """What was wrong with the last try, if anything."""
        self._fetching: asyncio.Task[None] | None = None
        self._fetches = self._last_success = 0
        """How many fetches were begun, and which of them was the last that the issuer answered."""
        self._unknown: dict[int, int] = {}
        """By the hash of an unknown key's id: how many fetches were begun when it first came."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_SECONDS))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))
        await self._session.close()

    async def key(self, kid: str | None) -> TokenKey | None:
        """Return the key of that id, or the only one where a token names none.

        Raises `Overloaded` when no keys can be had at all, and while it is not known whether the
        issuer has this one.
        """
        known = self._find(kid)
        fetches = self._fetches if known is not None else self._note_unknown(kid)
        if known is None or self._age_seconds > KEPT_SECONDS:
            fetching = self._fetch_unless_just_tried()
            # An issuer that was away a moment ago holds up nobody whose key we know.
            if fetching is not None and (known is None or self._fault is None):
                # Not awaited as such: whoever gives up leaves the fetch to the others.
                await asyncio.wait((fetching,))
        known = self._find(kid)
        if known is not None:
            return known
        if not self._keys or self._age_seconds > STALE_SECONDS:
            detail = "The token issuer's keys cannot be fetched."
        elif self._fault is None and self._last_success > fetches:
            return None
        else:
            detail = "The token's key is not known yet; its issuer is asked again soon."
        seconds = max(1, math.ceil(self._cool_down_seconds))
        raise Overloaded(detail, retry_after_seconds=seconds) from self._fault

    @property
    def _age_seconds(self) -> float:
        return self._clock_seconds() - self._fetched_at

    @property
    def _cool_down_seconds(self) -> float:
        pause_seconds = LOOK_AGAIN_SECONDS if self._fault is None else COOL_DOWN_SECONDS
        return self._tried_at + pause_seconds - self._clock_seconds()

    def _find(self, kid: str | None) -> TokenKey | None:
        if self._age_seconds > STALE_SECONDS:
            return None
        if kid is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.kid == kid), None)

    def _note_unknown(self, kid: str | None) -> int:
        """Return how many fetches were begun when a token first named this unknown key.

        A hash, because a client writes ids of any length.
        """
        fetches = self._unknown.setdefault(hash(kid), self._fetches)
        if len(self._unknown) > UNKNOWN_KEYS_MAX:
            del self._unknown[next(iter(self._unknown))]
        return fetches

    def _fetch_unless_just_tried(self) -> asyncio.Task[None] | None:
        """Return the one fetch under way, if any; it belongs to the set, not to who asked first."""
        if self._fetching is None and self._cool_down_seconds <= 0:
            self._tried_at = self._clock_seconds()
            self._fetches += 1
            self._fetching = asyncio.create_task(
                self._fetch(), name="fetch the token issuer's keys"
            )
        return self._fetching

    async def _fetch(self) -> None:
        """Take the issuer's keys; a failure keeps those that we have."""
        try:
            keys = _read_keys(await self._download())
        except (aiohttp.ClientError, TimeoutError, _UnusableError) as error:
            self._fault = error
            # One line per try, so one per cool-down.
            cause = str(error) if isinstance(error, _UnusableError) else network_failure(error)
            logger.warning("issuer.keys_not_fetched", cause=cause, known_keys=len(self._keys))
        else:
            self._fault = None
            self._fetched_at = self._clock_seconds()
            # One at a time: the last that was begun.
            self._last_success = self._fetches
            if keys != self._keys:
                self._keys = keys
                self._on_change()
        finally:
            self._fetching = None

    async def _download(self) -> bytes:
        async with self._session.get(self._url, allow_redirects=False) as response:
            if response.status != 200:
                raise _UnusableError(f"the issuer answered {response.status}")
            body = await response.content.read(DOCUMENT_BYTES_MAX + 1)
            while len(body) <= DOCUMENT_BYTES_MAX and not response.content.at_eof():
                body += await response.content.read(DOCUMENT_BYTES_MAX + 1)
            if len(body) > DOCUMENT_BYTES_MAX:
                raise _UnusableError("the issuer's keys are too large")
            return body


def algorithm_of(key: object) -> str | None:
    """Return what a public key verifies; nothing for one of another kind or too weak."""
    match key:
        case RSAPublicKey() if key.key_size >= RSA_BITS_MIN:
            return "RS256"
        case EllipticCurvePublicKey() if isinstance(key.curve, SECP256R1):
            return "ES256"
        case Ed25519PublicKey():
            return "EdDSA"
        case _:
            return None


def _read_keys(document: bytes) -> tuple[TokenKey, ...]:
    """Return the usable keys, in their order."""
    try:
        parsed = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise _UnusableError("the issuer's answer is not JSON") from error
    entries = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        raise _UnusableError("the issuer's answer is no key set")
    keys = (_read_key(entry) for entry in entries if isinstance(entry, dict))
    return tuple(key for key in keys if key is not None)


def _read_key(entry: dict[str, Any]) -> TokenKey | None:
    """Return one key; nothing for what is malformed, private, weak or not for signatures."""
    kind, kid = entry.get("kty"), entry.get("kid")
    if not isinstance(kind, str) or not isinstance(kid, str | None):
        return None
    algorithm = _ALGORITHM_OF_KIND.get(kind)
    if algorithm is None or entry.get("use", "sig") != "sig":
        return None
    if entry.get("alg", algorithm) != algorithm:
        return None
    try:
        material = jwt.PyJWK(entry, algorithm).key
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError):
        return None
    return TokenKey(algorithm, material, kid) if algorithm_of(material) == algorithm else None
