"""The token issuer's published keys (RFC 7517), fetched at the start and when needed.

Known keys stay in use while they are fetched again, and while the issuer does not answer, or publishes none
that we can use. A failed fetch is repeated by the next request after a pause, which grows while fetches fail.

A token that names an unknown key, or does not fit the key that it names, leads to another fetch,
but seldom: forged tokens must not flood the issuer with requests. A token with an unknown key is
refused only after a fetch that began later than a token first named that key; until then the key may
be new. From then on it is refused at once where the last fetch has just been: a key that was named before
it was published is found by the next fetch, up to `LOOK_AGAIN_SECONDS` late. So it is with a token that
does not fit a known key, from the first one on: it is far more often forged than new.

Few requests wait for a fetch at a time: while the issuer is slow, tokens of anyone's making would else
hold all connections. The others are not judged, and their clients are asked to try again.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final, Self

import aiohttp

from stretto.errors import Overloaded
from stretto.http.tokens.keys import TokenKey, UnusableError, read_keys
from stretto.network import network_failure
from stretto.runtime.backoff import Backoff
from stretto.runtime.bounded_answers import BoundedConnector
from stretto.runtime.lookups import loop_with_own_lookups
from stretto.runtime.turns import Turns
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

KEPT_SECONDS: Final = 600.0
# Only beyond this age a request with a known key waits for the fetch: the key may be withdrawn by now.
DOUBTED_SECONDS: Final = 2 * KEPT_SECONDS
# For so long, keys are trusted while their issuer does not answer, or publishes no usable one.
STALE_SECONDS: Final = 24 * 3600.0
# From an answer of the issuer to the next fetch for an unknown or a replaced key. Any client can
# cause such a fetch with a token of its own making; the first clients of a new key wait so long.
LOOK_AGAIN_SECONDS: Final = 5.0
# The same after failed fetches. The first pause is short: one lost answer must not keep clients out. The
# longest spares an issuer that stays away.
RETRY: Final = Backoff(0.5, 30.0)
# Ids of keys that are remembered, unknown ones too. The oldest is forgotten first: if its key is
# unknown, its clients wait a fetch longer.
KEY_IDS_MAX: Final = 1000
# Keys that are tried for one token. A wrong token costs one verification for each.
KEYS_TRIED_MAX: Final = 8
FETCH_SECONDS: Final = 3.0
# Requests that go on in one turn of the loop once a fetch has ended: each verifies its token then.
# Others, such as health checks, are served in between.
REQUESTS_PER_TURN: Final = 32
# Requests that wait for a fetch at a time: enough for the users who come within a fetch just after the
# issuer has a new key. Each holds a connection for as long as the fetch takes.
WAITING_MAX: Final = 256
# The same, of the connections of a process that has few: the rest is for clients whose keys are known.
WAITING_SHARE: Final = 0.125
DOCUMENT_BYTES_MAX: Final = 256 * 1024
# The same with what stands around its chunks, if it comes in chunks.
ANSWER_BYTES_MAX: Final = DOCUMENT_BYTES_MAX * 5 // 4
# Reasons in one line of the log; the number of dropped keys is logged too.
_REASONS_LOGGED: Final = 8
_NOT_KNOWN: Final = "The token's key is not known yet; the issuer's keys are fetched again soon."
# What a fetch raises; a resolver raises the third one. All else is logged with its traceback.
_EXPECTED: Final = (aiohttp.ClientError, TimeoutError, UnicodeError, UnusableError)


class KeySet:
    """The keys at one URL; use as `async with`."""

    def __init__(
        self,
        url: str,
        clock_seconds: Callable[[], float],
        on_change: Callable[[Collection[TokenKey]], None],
    ) -> None:
        """Take a monotonic clock, and a synchronous callback for when the published keys change.

        The callback takes the keys that are withdrawn.
        """
        self._url = url
        self._clock_seconds = clock_seconds
        self._on_change = on_change
        self._keys: tuple[TokenKey, ...] = ()
        self._dropped: tuple[str, ...] = ()
        """Why published keys are not used, as it was logged last."""
        self._fetched_at = self._next_fetch_at = -math.inf
        self._failure: Exception | None = None
        """The error of the last fetch, if it failed."""
        self._failures = 0
        """How many fetches have failed in a row."""
        self._fetching: asyncio.Task[None] | None = None
        self._turns = Turns(REQUESTS_PER_TURN)
        self._waiting, self._waiting_max = 0, WAITING_MAX
        """How many requests wait for a fetch, and how many may."""
        self._fetches = self._last_success = 0
        """How many fetches have begun, and the number of the last one that succeeded."""
        self._named: dict[int, int] = {}
        """By the hash of a key's id: how many fetches had begun when a token first named it."""

    async def __aenter__(self) -> Self:
        """Begin to fetch the keys, without waiting: an issuer that is away holds up no start."""
        self._session = aiohttp.ClientSession(
            connector=BoundedConnector(
                body_bytes_max=ANSWER_BYTES_MAX,
                resolver=aiohttp.ThreadedResolver(loop_with_own_lookups()),
            ),
            timeout=aiohttp.ClientTimeout(total=FETCH_SECONDS),
        )
        self._fetch_unless_just_tried()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait((self._fetching,))
        await self._session.close()

    def bound_waits(self, connections_max: int) -> None:
        """Let no more requests wait for a fetch than leave most of so many connections to others."""
        self._waiting_max = max(1, min(WAITING_MAX, int(connections_max * WAITING_SHARE)))

    async def keys(self, kid: str | None, algorithm: str | None) -> tuple[TokenKey, ...]:
        """Return the keys that may have signed a token of that id and algorithm; empty if none may.

        Raises `Overloaded` if no key can be fetched at all, and while it is not known, also where too
        many wait, whether the issuer has such a key.
        """
        known = self._find(kid, algorithm)
        # Of a known key too: once it is withdrawn, its tokens are refused without another fetch.
        fetches = self._note_named(kid)
        if not known or self._age_seconds > KEPT_SECONDS:
            fetching = self._fetch_unless_just_tried()
            # For a known key not after a failed fetch, nor where too many wait.
            may_wait = self._failure is None and self._waiting < self._waiting_max
            is_doubted = self._age_seconds > DOUBTED_SECONDS and may_wait
            if fetching is not None and (is_doubted or not known):
                await self._end_of(fetching)
        known = self._find(kid, algorithm)
        if known:
            return known
        if not self._keys or self._age_seconds > STALE_SECONDS:
            raise self._not_judged("The token issuer's keys cannot be fetched.") from self._failure
        if self._failure is None and self._last_success > fetches:
            return ()
        raise self._not_judged() from self._failure

    def has_keys(self) -> bool:
        """Return whether a key was ever fetched; begin to fetch them, without waiting, if none was."""
        if not self._keys:
            self._fetch_unless_just_tried()
        return bool(self._keys)

    def refresh(self) -> None:
        """Begin to fetch the keys if they are old, without waiting."""
        if self._age_seconds > KEPT_SECONDS:
            self._fetch_unless_just_tried()

    async def replacements(
        self, kid: str | None, algorithm: str | None, tried: tuple[TokenKey, ...]
    ) -> tuple[TokenKey, ...]:
        """Return the issuer's present keys as `keys` does, without those that were tried.

        For a token that fits none of the known keys. Within the cool-down the issuer is not asked:
        anyone can sign a token wrongly. Raises `Overloaded` where too many wait for its answer: a client
        with a new key must not throw its token away.
        """
        fetching = self._fetch_unless_just_tried()
        if fetching is not None:
            await self._end_of(fetching)
        return tuple(key for key in self._find(kid, algorithm) if key not in tried)

    @property
    def _age_seconds(self) -> float:
        return self._clock_seconds() - self._fetched_at

    @property
    def _cool_down_seconds(self) -> float:
        return self._next_fetch_at - self._clock_seconds()

    def _find(self, kid: str | None, algorithm: str | None) -> tuple[TokenKey, ...]:
        """Return the keys of that id; for a token that names none, all, those without one first.

        Keys of different kinds may share an id (RFC 7517, 4.5): the algorithm chooses among them.
        If it fits none, one is returned nevertheless: the id is known, so the token is refused
        at once. A token need not name its key (RFC 7515, 4.1.4), and an issuer whose tokens never do
        has several keys while it replaces one.
        """
        if self._age_seconds > STALE_SECONDS:
            return ()
        named = tuple(key for key in self._keys if key.kid == kid)
        if kid is None:
            named += tuple(key for key in self._keys if key.kid is not None)
        fitting = tuple(key for key in named if key.algorithm == algorithm)
        return fitting[:KEYS_TRIED_MAX] or named[:1]

    def _note_named(self, kid: str | None) -> int:
        """Return how many fetches had begun when a token first named this key.

        Only a hash is kept, because a client chooses the id's length.
        """
        fetches = self._named.setdefault(hash(kid), self._fetches)
        if len(self._named) > KEY_IDS_MAX:
            del self._named[next(iter(self._named))]
        return fetches

    def _fetch_unless_just_tried(self) -> asyncio.Task[None] | None:
        """Return the fetch in progress, if any; it belongs to the set, not to its first caller."""
        # One that is done was cancelled before it began (`runtime/shared.py`).
        is_fetching = self._fetching is not None and not self._fetching.done()
        if not is_fetching and self._cool_down_seconds <= 0:
            self._fetches += 1
            self._fetching = asyncio.create_task(
                self._fetch(), name="fetch the token issuer's keys"
            )
        return self._fetching

    async def _end_of(self, fetching: asyncio.Task[None]) -> None:
        """Wait until a fetch has ended, and then for a turn; raises `Overloaded` where many wait."""
        if self._waiting >= self._waiting_max:
            raise self._not_judged() from self._failure
        self._waiting += 1
        try:
            # Not awaited itself: a cancelled request must not cancel the others' fetch.
            await asyncio.wait((fetching,))
            await self._turns.take(self)
        finally:
            self._waiting -= 1

    def _not_judged(self, detail: str = _NOT_KNOWN) -> Overloaded:
        """Return the error of a request whose token may be good, and may be forged."""
        # There is no cool-down while a fetch is under way.
        return Overloaded(detail, retry_after_seconds=math.ceil(max(1, self._cool_down_seconds)))

    async def _fetch(self) -> None:
        """Replace our keys by the issuer's; a failure or a set without a usable key keeps ours."""
        pause_seconds = LOOK_AGAIN_SECONDS
        try:
            keys = self._usable_keys(await self._download())
        except Exception as error:  # noqa: BLE001 it is logged
            self._failure = error
            pause_seconds = RETRY.seconds(self._failures)
            self._failures += 1
            # One line per fetch, so one per cool-down.
            logger.warning(
                "issuer.keys_not_fetched",
                cause=_in_words(error),
                known_keys=len(self._keys),
                exc_info=None if isinstance(error, _EXPECTED) else error,
            )
        else:
            self._failure = None
            self._failures = 0
            self._fetched_at = self._clock_seconds()
            # There is one fetch at a time: this is the last that has begun.
            self._last_success = self._fetches
            # In another order they are the same.
            before, now = frozenset(self._keys), frozenset(keys)
            self._keys = keys
            if now != before:
                self._on_change(before - now)
        finally:
            self._next_fetch_at = self._clock_seconds() + pause_seconds
            self._fetching = None

    def _usable_keys(self, document: bytes) -> tuple[TokenKey, ...]:
        """Return the published keys that serve; log once why others do not, until that changes."""
        keys, dropped = read_keys(document)
        if dropped and dropped != self._dropped:
            reasons = list(dropped[:_REASONS_LOGGED])
            # No warning: a key for encryption beside the others is no error.
            logger.info(
                "issuer.keys_dropped", dropped=len(dropped), usable=len(keys), reasons=reasons
            )
        self._dropped = dropped
        if not keys:
            first = dropped[0] if dropped else "the set is empty"
            raise UnusableError(f"the issuer publishes no usable key ({first})")
        return keys

    async def _download(self) -> bytes:
        async with self._session.get(self._url, allow_redirects=False) as response:
            if response.status != 200:
                raise UnusableError(f"the issuer answered {response.status}")
            body = await response.content.read(DOCUMENT_BYTES_MAX + 1)
            while len(body) <= DOCUMENT_BYTES_MAX and not response.content.at_eof():
                body += await response.content.read(DOCUMENT_BYTES_MAX + 1)
            if len(body) > DOCUMENT_BYTES_MAX:
                raise UnusableError("the issuer's keys are too large")
            return body


def _in_words(error: Exception) -> str:
    if isinstance(error, UnusableError):
        return str(error)
    return network_failure(error) if isinstance(error, _EXPECTED) else "an error of our own"
