"""What a reply means: a result, a refusal, or that nothing is certain yet.

A reply that is not a problem document of the service, such as a proxy's error page, is judged by its status: whether to
try again, or to report it. It settles nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import UUID

import orjson

from stretto.domain import CreatedGroup
from stretto.errors import Failure, Picklable, Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

BACKOFF_SECONDS_FIRST: Final = 0.1
# A proxy may ask for any wait; the service asks for some seconds.
RETRY_AFTER_SECONDS_MAX: Final = 30

_ADVICE: Final[Mapping[str, Retry]] = {advice.value: advice for advice in Retry}
# Of the service's problem documents; a proxy may answer with others, and a `code` of its own.
_TYPE_PREFIX: Final = "urn:stretto:problem:"
_FOREIGN: Final = "this is not an answer of a stretto service"
# These mean "later": with the same key another try is safe.
_PASSING: Final = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back over HTTP."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """A group, and whether another request with this key had created it before."""

    group: CreatedGroup
    is_replay: bool


class ClientError(Picklable, Exception):
    """The service has refused the request: `code` says why, `retry` what to do.

    `code` is `http_403` or another number where no service has answered, but a proxy, a firewall or a
    wrong address. What an earlier try has done is not known then, and `retry` is `same-key`: a program
    keeps its intention.

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


class TryAgainError(Exception):
    """No answer came, or one that asks for the same request again."""

    def __init__(self, reason: str, retry_after_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


def read_answer(reply: Reply) -> ClientAnswer:
    """Return the group of a creation; raises `ClientError`, or `TryAgainError`."""
    if reply.status != HTTPStatus.CREATED:
        refuse(reply)
    document = _object(reply.body)
    try:
        group = CreatedGroup(
            UUID(str(document.get("group_id"))), UUID(str(document.get("conversation_id")))
        )
    except ValueError as error:
        raise TryAgainError("201 without a group") from error
    return ClientAnswer(group, is_replay=reply.headers.get("Idempotent-Replayed") == "true")


def foreign(status: int) -> ClientError:
    """Return the error of an answer that no stretto service gives, such as a page of a proxy's."""
    return ClientError(f"http_{status}", _FOREIGN, Retry.SAME_KEY)


def read_document(reply: Reply) -> dict[str, Any]:
    """Return what a route of reading has answered; raises `ClientError`, or `TryAgainError`."""
    if reply.status != HTTPStatus.OK:
        refuse(reply)
    document = _object(reply.body)
    if not document:
        raise TryAgainError("200 without a document")
    return document


def refuse(reply: Reply) -> NoReturn:
    """Raise `ClientError`, or `TryAgainError` while nothing is certain."""
    document = _object(reply.body)
    code = str(document.get("code"))
    if document.get("type") != _TYPE_PREFIX + code:
        document, code = {}, f"http_{reply.status}"
    retry = _ADVICE.get(str(document.get("retry")))
    if retry is None:
        is_passing = reply.status in _PASSING or reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        if not is_passing:
            raise foreign(reply.status)
        retry = Retry.SAME_KEY
    if retry is Retry.SAME_KEY:
        raise TryAgainError(code, _retry_after_seconds(reply.headers.get("Retry-After", "")))
    detail = str(document.get("detail"))
    failure = document.get("failure")
    if isinstance(failure, dict):
        reason = Failure(str(failure.get("code")), str(failure.get("detail")))
        raise ClientError(code, detail, retry, reason)
    raise ClientError(code, detail, retry)


def _object(body: bytes) -> dict[str, Any]:
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
