"""All errors that a caller can get, as one small tree.

Each error has a stable `code`, a default `message`, which is its docstring as well, and advice on
what to do next (`retry`). `stretto.codec` alone maps a code to its HTTP status.

What a store raises is not among them (`store_errors.py`): the creator turns it into errors for
callers. Nor is what keeps a component or a service from starting (`start_errors.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Final, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of each name that a client has chosen: it may be as long as a body.
QUOTED_CHARACTERS_MAX: Final = 64


class Retry(StrEnum):
    """What the client should do with its request now."""

    SAME_KEY = "same-key"
    """Wait, then send the same request with the same key."""
    NEW_KEY = "new-key"
    """This key is spent for this request: take a new one."""
    NEVER = "never"
    """The request itself is wrong: sending it again changes nothing."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed for good, as it is stored and sent to clients."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class FieldError:
    """One violation in a request's body: where (a JSON pointer, RFC 6901) and what."""

    pointer: str
    detail: str


@dataclass(frozen=True, slots=True)
class ParameterError:
    """One violation in a query parameter or a header field: its name and what."""

    parameter: str
    detail: str


class Picklable:
    """An error that crosses processes as it is; by default its constructor would get its text."""

    def __reduce__(self) -> tuple[object, ...]:
        """Have the copy made without a call of the constructor."""
        assert isinstance(self, BaseException)
        return _unpickled, (type(self), self.args), self.__dict__


def _unpickled(kind: type[BaseException], args: tuple[object, ...]) -> BaseException:
    return kind.__new__(kind, *args)


class StrettoError(Picklable, Exception):
    """The request could not be answered."""

    code: ClassVar[str] = "internal_error"
    retry: ClassVar[Retry] = Retry.SAME_KEY
    message: ClassVar[str] = "The request could not be answered."

    def __init_subclass__(cls) -> None:
        """Take the message as the docstring: not the other way, `python -OO` drops docstrings."""
        cls.__doc__ = cls.message

    def __init__(
        self, detail: str | None = None, *, retry_after_seconds: int | None = None
    ) -> None:
        self.detail = detail or self.message
        self.retry_after_seconds = retry_after_seconds
        super().__init__(self.detail)


class InternalError(StrettoError):
    message = "Something unforeseen went wrong in the service; the attempt, if any, is still open."


class KeyMissing(StrettoError):
    message = "The request needs exactly one Idempotency-Key header."
    code = "key_missing"
    retry = Retry.NEVER


class KeyInvalid(StrettoError):
    message = 'An idempotency key has 1 to 255 visible ASCII characters ("!" to "~").'
    code = "key_invalid"
    retry = Retry.NEVER


class RequestInvalid(StrettoError):
    message = "The request is not valid."
    code = "request_invalid"
    retry = Retry.NEVER

    def __init__(
        self, errors: Sequence[FieldError | ParameterError], detail: str | None = None
    ) -> None:
        super().__init__(detail or "; ".join(f"{_where(e)}: {e.detail}" for e in errors))
        self.errors = errors


def _where(error: FieldError | ParameterError) -> str:
    if isinstance(error, ParameterError):
        return f"parameter {error.parameter}"
    return error.pointer or "body"


def shortened(text: str) -> str:
    """Return a client's text as an error repeats it."""
    return text if len(text) <= QUOTED_CHARACTERS_MAX else f"{text[:QUOTED_CHARACTERS_MAX]}…"


def pointer_part(name: str) -> str:
    """Return a field's name as a part of a JSON pointer (RFC 6901, 3)."""
    return shortened(name).replace("~", "~0").replace("/", "~1")


class Unauthenticated(StrettoError):
    message = "The request needs a valid bearer token."
    code = "unauthenticated"
    retry = Retry.NEVER


class InsufficientScope(StrettoError):
    message = "The token does not have the scope that this request needs."
    code = "insufficient_scope"
    retry = Retry.NEVER

    def __init__(self, scope: str = "") -> None:
        super().__init__(f"The token does not have the scope {scope}." if scope else None)
        self.scope = scope


class OriginRefused(StrettoError):
    message = "Pages of this origin may not open a session."
    code = "origin_refused"
    retry = Retry.NEVER


class NotFound(StrettoError):
    message = "There is nothing here, or nothing that you may see."
    code = "not_found"
    retry = Retry.NEVER


class MethodNotAllowed(StrettoError):
    message = "This resource does not know that method."
    code = "method_not_allowed"
    retry = Retry.NEVER


class BodyTooLarge(StrettoError):
    message = "The request's body is too large."
    code = "body_too_large"
    retry = Retry.NEVER


class HeadTooLarge(StrettoError):
    message = "The request's line and header fields are too large together."
    code = "head_too_large"
    retry = Retry.NEVER


class RequestTooSlow(StrettoError):
    message = "The request has not arrived in full in time; nothing was done."
    code = "request_too_slow"


class UnsupportedMediaType(StrettoError):
    message = "The request's body must be application/json in UTF-8."
    code = "unsupported_media_type"
    retry = Retry.NEVER


class AttemptPending(StrettoError):
    message = "The attempt is not settled yet; send the same request again."
    code = "attempt_pending"


class AttemptFailed(StrettoError):
    message = "The attempt failed for good and created nothing; a new attempt needs a new key."
    code = "attempt_failed"
    retry = Retry.NEW_KEY

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


class GroupDeleted(StrettoError):
    message = "The group of this key was deleted; another group needs a new key."
    code = "group_deleted"
    retry = Retry.NEW_KEY
    # As `AttemptFailed`: clients rely on it in every answer of this status.
    failure: ClassVar[Failure] = Failure(code, message)


class UpgradeRequired(StrettoError):
    message = "A WebSocket handshake needs Sec-WebSocket-Version: 13, once."
    code = "upgrade_required"
    retry = Retry.NEVER


class KeyReused(StrettoError):
    message = "This idempotency key was already used for a different request."
    code = "key_reused"
    retry = Retry.NEW_KEY


class FirstSentOutOfRange(StrettoError):
    message = (
        "The request was first sent too long ago, or at a time to come, to start an attempt;"
        " nothing was done."
    )
    code = "first_sent_out_of_range"
    retry = Retry.NEW_KEY


class RateLimited(StrettoError):
    message = "Too many new attempts by this owner."
    code = "rate_limited"


class Overloaded(StrettoError):
    message = "The service has more work than it can take; nothing was done."
    code = "overloaded"

    @classmethod
    def while_stopping(cls) -> Self:
        """Return the error for requests that arrive while the service stops."""
        detail = "The service is shutting down; another replica will answer."
        return cls(detail, retry_after_seconds=1)


class DatabaseUnavailable(StrettoError):
    message = "The database did not answer or could not do it; the same request finds out what became of it."
    code = "database_unavailable"


class HookFailed(StrettoError):
    message = "The host's own code failed while the group was created; the attempt is still open."
    code = "hook_failed"


class CreationRefused(StrettoError):
    message = "This owner may not create this group; nothing was done, and the key is not spent."
    code = "creation_refused"
    retry = Retry.NEVER

    def __init__(self, failure: Failure) -> None:
        super().__init__()
        self.failure = failure


class ChangeRefused(StrettoError):
    message = "The group cannot become what the change says; nothing was written."
    # Of a host's call, not of a route: `failure.code` is last_owner, too_many_members or not_a_member.
    code = "change_refused"
    retry = Retry.NEVER

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class AuthorizeFailed(StrettoError):
    message = "The host's own code failed before the group was created; nothing was done."
    code = "authorize_failed"


class GroupRejected(Picklable, Exception):
    """Raised by a host's `authorize` or `on_create`: this group must not be created.

    The client gets code (1 to 64 characters) and detail. In `on_create` the attempt fails for good.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.failure = Failure(_storable(code)[:64] or "rejected", _storable(detail)[:1024])


def _storable(text: str) -> str:
    """Return the text without NUL and lone surrogates, which PostgreSQL rejects."""
    return text.encode(errors="replace").decode().replace("\0", "?")
