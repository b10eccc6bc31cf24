"""The examples of the OpenAPI document: one group's story, and the errors on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stretto.domain import NewGroup, UserId, group_id
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    DatabaseUnavailable,
    Failure,
    HookFailed,
    Overloaded,
    ParameterError,
    RateLimited,
    RequestInvalid,
    StrettoError,
)
from stretto.http.requests import read_limit
from stretto.protocol.attempt import AttemptStatus
from stretto.protocol.flight import RETRY_AFTER_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]
# By their names, as the document shows them.
Examples = dict[str, Document]

_OWNER: Final = UserId("alice")
_TIME: Final = "2026-11-21T05:11:10.924000+00:00"
_FAILURE: Final = Failure("quota", "This owner has as many groups as he may have.")

KEY: Final = "1a8417ef-69df-406c-9e0f-7691872d7db8"
NEW_GROUPS: Final[Examples] = {
    "least": {"name": "Team"},
    "all": {
        "name": "Team",
        "description": "Who does what until when.",
        "members": ["bob", "carol"],
    },
}
CREATED_GROUP: Final[Document] = {
    "group_id": str(group_id(_OWNER, KEY)),
    "conversation_id": "01a1fc83-fd4c-771a-a6fa-15ce8d4e3372",
}
GROUP: Final[Document] = {
    **CREATED_GROUP,
    "owner_id": str(_OWNER),
    "name": NEW_GROUPS["all"]["name"],
    "description": NEW_GROUPS["all"]["description"],
    "created_at": _TIME,
    "members_count": 3,
}


def _pages(items: str, example: list[Document], next_cursor: str) -> Examples:
    last = {items: example, "next_cursor": None}
    return {"last": last, "more": {**last, "next_cursor": next_cursor}}


GROUPS_CURSOR: Final[str] = CREATED_GROUP["conversation_id"]
GROUPS: Final = _pages("groups", [GROUP], GROUPS_CURSOR)
MEMBERS_CURSOR: Final = "bob"
MEMBERS: Final = _pages(
    "members",
    [
        {"user_id": str(_OWNER), "role": "owner", "joined_at": _TIME},
        {"user_id": MEMBERS_CURSOR, "role": "member", "joined_at": _TIME},
    ],
    MEMBERS_CURSOR,
)

_PENDING: Final[Document] = {
    "status": AttemptStatus.PENDING,
    "group_id": CREATED_GROUP["group_id"],
    "conversation_id": None,
    "claimed_at": _TIME,
    "settled_at": None,
    "failure": None,
}
ATTEMPTS: Final[Examples] = {
    "pending": _PENDING,
    "succeeded": {
        **_PENDING,
        **CREATED_GROUP,
        "status": AttemptStatus.SUCCEEDED,
        "settled_at": _TIME,
    },
    "failed": {
        **_PENDING,
        "status": AttemptStatus.FAILED,
        "settled_at": _TIME,
        "failure": {"code": _FAILURE.code, "detail": _FAILURE.detail},
    },
}


def _refusal(read: Callable[[], object]) -> StrettoError:
    """Return the very error with which our code refuses such input."""
    try:
        read()
    except StrettoError as error:
        return error.with_traceback(None)
    raise AssertionError


BODY_INVALID: Final = _refusal(lambda: NewGroup.parse(_OWNER, {"title": "Team"}))
PAGE_INVALID: Final = _refusal(lambda: read_limit({"limit": "0"}))
QUERY_INVALID: Final = RequestInvalid([ParameterError("limits", "unknown parameter")])
ATTEMPT_PENDING: Final = AttemptPending(retry_after_seconds=RETRY_AFTER_SECONDS)
ATTEMPT_FAILED: Final = AttemptFailed(_FAILURE)
RATE_LIMITED: Final = RateLimited(retry_after_seconds=RETRY_AFTER_SECONDS)
OVERLOADED: Final = Overloaded(retry_after_seconds=RETRY_AFTER_SECONDS)
DATABASE_UNAVAILABLE: Final = DatabaseUnavailable(retry_after_seconds=RETRY_AFTER_SECONDS)
HOOK_FAILED: Final = HookFailed(retry_after_seconds=RETRY_AFTER_SECONDS)
