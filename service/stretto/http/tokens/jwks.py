"""The token issuer's published keys (RFC 7517), fetched when needed and kept for a while.

Known keys stay in use while the issuer does not answer. A token that names an unknown key, or does not
fit the key that it names, leads to another fetch, but seldom: forged tokens must not flood the issuer
with requests. A token with an unknown key is refused only after a fetch that began later than the
token came; until then the key may be new. One that does not fit a known key is far more often forged
than new, so it is refused at once where the last fetch has just been.
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
# For so long, keys are trusted while their issuer does not answer.
STALE_SECONDS: Final = 24 * 3600.0
# From an answer of the issuer to the next fetch for an unknown or a replaced key. Any client can
# cause such a fetch with a token of its own making; the first clients of a new key wait so long.
LOOK_AGAIN_SECONDS: Final = 5.0
# The same after a failed fetch.
COOL_DOWN_SECONDS: Final = 30.0
# Unknown keys that are remembered. The oldest is forgotten first: its clients wait a fetch longer.
UNKNOWN_KEYS_MAX: Final = 1000
FETCH_SECONDS: Final = 3.0
DOCUMENT_BYTES_MAX: Final = 256 * 1024
# RFC 7518, 3.3.
RSA_BITS_MIN: Final = 2048

# The algorithm of each kind of published key; a shared secret ("oct") is never published.
_ALGORITHM_OF_KIND: Final = {"RSA": "RS256", "EC": "ES256", "OKP": "EdDSA"}


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key and the one algorithm that it verifies (RFC 8725, 3.1)."""

    algorithm: str
    material: Any
    """A secret's bytes or a public key; equal material verifies the same tokens."""
    kid: str | None = None


class _UnusableError(Exception):
    """The issuer's answer is no usable key set."""


class KeySet:
    """The keys at one URL; use as `async with`."""

    def __init__(
        self, url: str, clock_seconds: Callable[[], float], on_change: Callable[[], None]
    ) -> None:
        """Take a monotonic clock, and a synchronous callback for when the published keys change."""
        self._url = url
        self._clock_seconds = clock_seconds
        self._on_change = on_change
        self._keys: tuple[TokenKey, ...] = ()
        self._fetched_at = self._tried_at = -math.inf
        self._failure: Exception | None = None
        """The error of the last fetch, if it failed."""
        self._fetching: asyncio.Task[None] | None = None
        self._fetches = self._last_success = 0
        """How many fetches have begun, and the number of the last one that succeeded."""
        self._unknown: dict[int, int] = {}
        """By the hash of an unknown key's id: how many fetches had begun when it first came."""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_SECONDS))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))
        await self._session.close()

    async def key(self, kid: str | None) -> TokenKey | None:
        """Return the key of that id, or the only key if a token names none.

        Raises `Overloaded` if no key can be fetched at all, and while it is not known whether the
        issuer has this one.
        """
        known = self._find(kid)
        fetches = self._fetches if known is not None else self._note_unknown(kid)
        if known is None or self._age_seconds > KEPT_SECONDS:
            fetching = self._fetch_unless_just_tried()
            # After a failed fetch, a request whose key is known does not wait for the next one.
            if fetching is not None and (known is None or self._failure is None):
                # Not awaited itself: a cancelled request must not cancel the others' fetch.
                await asyncio.wait((fetching,))
        known = self._find(kid)
        if known is not None:
            return known
        if not self._keys or self._age_seconds > STALE_SECONDS:
            detail = "The token issuer's keys cannot be fetched."
        elif self._failure is None and self._last_success > fetches:
            return None
        else:
            detail = "The token's key is not known yet; the issuer's keys are fetched again soon."
        seconds = max(1, math.ceil(self._cool_down_seconds))
        raise Overloaded(detail, retry_after_seconds=seconds) from self._failure

    async def replacement(self, kid: str | None, known: TokenKey) -> TokenKey | None:
        """Return the issuer's present key of that id; None if it is the known one.

        For a token that does not fit the known key. Within the cool-down the issuer is not asked:
        anyone can sign a token wrongly.
        """
        fetching = self._fetch_unless_just_tried()
        if fetching is not None:
            await asyncio.wait((fetching,))
        found = self._find(kid)
        return None if found == known else found

    @property
    def _age_seconds(self) -> float:
        return self._clock_seconds() - self._fetched_at

    @property
    def _cool_down_seconds(self) -> float:
        pause_seconds = LOOK_AGAIN_SECONDS if self._failure is None else COOL_DOWN_SECONDS
        return self._tried_at + pause_seconds - self._clock_seconds()

    def _find(self, kid: str | None) -> TokenKey | None:
        if self._age_seconds > STALE_SECONDS:
            return None
        if kid is None:
            return self._keys[0] if len(self._keys) == 1 else None
        return next((key for key in self._keys if key.kid == kid), None)

    def _note_unknown(self, kid: str | None) -> int:
        """Return how many fetches had begun when a token first named this unknown key.

        Only a hash is kept, because a client chooses the id's length.
        """
        fetches = self._unknown.setdefault(hash(kid), self._fetches)
        if len(self._unknown) > UNKNOWN_KEYS_MAX:
            del self._unknown[next(iter(self._unknown))]
        return fetches

    def _fetch_unless_just_tried(self) -> asyncio.Task[None] | None:
        """Return the fetch in progress, if any; it belongs to the set, not to its first caller."""
        if self._fetching is None and self._cool_down_seconds <= 0:
            self._tried_at = self._clock_seconds()
            self._fetches += 1
            self._fetching = asyncio.create_task(
                self._fetch(), name="fetch the token issuer's keys"
            )
        return self._fetching

    async def _fetch(self) -> None:
        """Replace our keys by the issuer's; a failure keeps ours."""
        try:
            keys = _read_keys(await self._download())
        except (aiohttp.ClientError, TimeoutError, _UnusableError) as error:
            self._failure = error
            # One line per fetch, so one per cool-down.
            cause = str(error) if isinstance(error, _UnusableError) else network_failure(error)
            logger.warning("issuer.keys_not_fetched", cause=cause, known_keys=len(self._keys))
        else:
            self._failure = None
            self._fetched_at = self._clock_seconds()
            # There is one fetch at a time: this is the last that has begun.
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
    """Return the algorithm of a public key; None if its kind is unknown or it is too weak."""
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
    """Return one key; None if it is malformed, private, weak or not for signatures."""
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
