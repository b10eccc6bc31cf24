"""StrettoClient: creates groups over HTTP and retries as the contract allows.

A program that only calls a stretto service needs nothing else of this package. One call is one
attempt with one key; every retry of it sends the same key and the same body. An answer that is not
a problem document, such as a proxy's error page, is judged by its status.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import aiohttp
import orjson
import stamina

from stretto.domain import CreatedGroup
from stretto.errors import Failure, KeyInvalid, Picklable, Retry
from stretto.identifiers import IdempotencyKey
from stretto.metadata import Metadata
from stretto.network import network_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

BACKOFF_SECONDS_FIRST: Final = 0.1
BACKOFF_SECONDS_MAX: Final = 2.0
# The service answers within its own wait of 10 s: without an answer in 15 s the connection is lost.
TRY_SECONDS_MAX: Final = 15.0
# A proxy may ask for any wait; the service asks for some seconds.
RETRY_AFTER_SECONDS_MAX: Final = 30

_ADVICE: Final[Mapping[str, Retry]] = {advice.value: advice for advice in Retry}
# These mean "later": with the same key another try is safe.
_PASSING: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
)


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """A group, and whether another request with this key had created it before."""

    group: CreatedGroup
    is_replay: bool


class ClientError(Picklable, Exception):
    """The service has refused the request: `code` says why, `retry` what to do.

    `failure` says why an attempt failed for good (`attempt_failed`), such as a host's own
    rejection.
    """

    def __init__(
        self, code: str, detail: str, retry: Retry, failure: Failure | None = None
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.retry = retry
        self.failure = failure


class _TryAgainError(Exception):
    """No answer came, or one that asks for the same request again."""

    def __init__(self, reason: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class StrettoClient:
    """Calls the service at `base_url` as the user of `token`, over the given session.

    Raises `aiohttp.InvalidURL` for a `base_url` that is neither http nor https. One that is empty or
    begins with a slash is relative to the session's own.
    """

    def __init__(self, session: aiohttp.ClientSession, base_url: str, token: str) -> None:
        if base_url and not base_url.lower().startswith(("http://", "https://", "/")):
            raise aiohttp.InvalidURL(base_url, "base_url must begin with http:// or https://")
        self._session = session
        self._url = base_url.rstrip("/") + "/v1/groups"
        self._authorization = f"Bearer {token}"

    async def create_group(  # noqa: PLR0913 the fields of a request
        self,
        name: str,
        members: Sequence[str | Mapping[str, str]] = (),
        *,
        description: str | None = None,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        key: str | None = None,
        first_sent: float | None = None,
        timeout_seconds: float = 60.0,
    ) -> ClientAnswer:
        """Create a group, retrying until the outcome is known or the time is up.

        A member is a user id, or `{"user_id": "bob", "role": "admin"}`. `metadata` is any JSON object.
        Give the `key` where a crash of this program must not lose it. Keep beside it when it was
        `first_sent`, in seconds since the epoch, and give both: then a call that comes much too late
        creates nothing. Raises `ClientError` for a refusal, and `TimeoutError` when the outcome is
        still unknown: call again with the same key. Raises `TypeError` for members that are one text:
        each of its characters would be a member; and `ValueError` for metadata that no request can
        carry.
        """
        if isinstance(members, (str, bytes, bytearray, Mapping)):
            message = f"members must be a list of user ids, such as ['bob'], not {members!r}"
            raise TypeError(message)
        # An empty key is one that the caller has lost: it is refused. A new one could create a
        # second group.
        if key is None:
            key = str(uuid4())
            first_sent = time.time() if first_sent is None else first_sent
        headers = {
            "Authorization": self._authorization,
            "Idempotency-Key": _key_field(key),
            "Content-Type": "application/json",
        }
        if first_sent is not None:
            headers["Idempotency-First-Sent"] = f"@{first_sent:.0f}"
        document: dict[str, object] = {
            "name": name,
            "description": description,
            "members": list(members),
        }
        if kind is not None:
            document["kind"] = kind
        if metadata is not None:
            # Not by orjson, which writes null for a number that is none.
            document["metadata"] = orjson.Fragment(Metadata(dict(metadata)).encode())
        body = orjson.dumps(document)
        last_error: Exception | None = None

        def backoff(error: Exception) -> bool | float:
            nonlocal last_error
            if not isinstance(error, _TryAgainError):
                return False
            last_error = error
            return error.retry_after_seconds or True

        try:
            async with asyncio.timeout(timeout_seconds):
                async for attempt in stamina.retry_context(
                    on=backoff,
                    attempts=None,
                    timeout=None,
                    wait_initial=BACKOFF_SECONDS_FIRST,
                    wait_max=BACKOFF_SECONDS_MAX,
                    wait_jitter=BACKOFF_SECONDS_FIRST,
                ):
                    with attempt:
                        return await self._send(headers, body)
        except (TimeoutError, _TryAgainError):
            message = (
                f"no outcome within {timeout_seconds} s ({last_error or 'no answer'});"
                " the attempt may still succeed"
            )
            raise TimeoutError(message) from last_error
        raise AssertionError  # the loop returns or raises

    async def _send(self, headers: Mapping[str, str], body: bytes) -> ClientAnswer:
        try:
            async with self._session.post(
                self._url,
                data=body,
                headers=headers,
                # A redirected POST would go on as a GET.
                allow_redirects=False,
                # Answers are judged here, whatever the caller's session does with its own.
                raise_for_status=False,
                timeout=aiohttp.ClientTimeout(total=TRY_SECONDS_MAX),
            ) as response:
                return _read_answer(response.status, response.headers, await response.read())
        except aiohttp.InvalidURL:
            raise
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _TryAgainError(network_failure(error)) from error


def _key_field(key: str) -> str:
    """Return the key as a header field; raises `ClientError` for a key that the service refuses.

    It is not sent as it is: blanks at its ends would be lost, and quotes would be taken off.
    """
    try:
        return IdempotencyKey(key).header_field()
    except KeyInvalid as error:
        raise ClientError(error.code, error.detail, error.retry) from error


def _read_answer(status: int, headers: Mapping[str, str], body: bytes) -> ClientAnswer:
    """Return the group; raises `ClientError`, or `_TryAgainError` while nothing is certain."""
    document = _read_object(body)
    if status == HTTPStatus.CREATED:
        try:
            group = CreatedGroup(
                UUID(str(document.get("group_id"))), UUID(str(document.get("conversation_id")))
            )
        except ValueError as error:
            raise _TryAgainError("201 without a group") from error
        return ClientAnswer(group, is_replay=headers.get("Idempotent-Replayed") == "true")
    code = str(document.get("code", f"http_{status}"))
    retry = _ADVICE.get(str(document.get("retry")))
    if retry is None:
        is_passing = status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        retry = Retry.SAME_KEY if is_passing else Retry.NEVER
    if retry is Retry.SAME_KEY:
        raise _TryAgainError(code, _retry_after_seconds(headers.get("Retry-After", "")))
    detail = str(document.get("detail", "this is not an answer of a stretto service"))
    failure = document.get("failure")
    if isinstance(failure, dict):
        reason = Failure(str(failure.get("code")), str(failure.get("detail")))
        raise ClientError(code, detail, retry, reason)
    raise ClientError(code, detail, retry)


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _retry_after_seconds(field: str) -> float:
    """Return how long to wait; 0, also for a date, leaves it to the client's own back-off."""
    if not (field.isascii() and field.isdigit()) or int(field[:6]) == 0:
        return 0.0
    # Clients that were refused together must not retry together.
    jitter = random.uniform(0, BACKOFF_SECONDS_FIRST)
    return min(int(field[:6]), RETRY_AFTER_SECONDS_MAX) + jitter
