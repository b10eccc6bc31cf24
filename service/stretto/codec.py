"""Requests and answers as JSON documents, over HTTP or a message bus.

Parses JSON strictly, and encodes outcomes: a created group, or an error as a problem document
(RFC 9457). `STATUS` is the one table of the status that each code has.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson

from stretto.domain import CreatedGroup
from stretto.errors import (
    AttemptFailed,
    ChangeRefused,
    CreationRefused,
    FieldError,
    GroupDeleted,
    RequestInvalid,
    StrettoError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBLEM_CONTENT_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:stretto:problem:"
# 1,000 members of 128 characters and a description of the widest characters, with room for spaces.
BODY_BYTES_MAX: Final = 256 * 1024
# A larger one is parsed in a turn of its own (`runtime/turns.py`): the largest takes 6 ms, and 20 ms where
# it is deeply nested, and refused. A few hundred bytes can be the largest in gzip. So is one with
# more values: this many take 0.5 ms at most, and as many as fit into that size 3 ms.
LARGE_BODY_BYTES: Final = 8 * 1024
SMALL_BODY_VALUES: Final = 256
# Of small ones that arrive long after their heads: thousands may be complete at once. A large or a
# compressed one counts as so many.
BODIES_PER_TURN: Final = 8

STATUS: Final[Mapping[str, int]] = {
    "key_missing": 400,
    "key_invalid": 400,
    "request_invalid": 400,
    "unauthenticated": 401,
    "insufficient_scope": 403,
    "origin_refused": 403,
    "creation_refused": 403,
    "change_refused": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_too_slow": 408,
    "attempt_pending": 409,
    "attempt_failed": 410,
    "group_deleted": 410,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "key_reused": 422,
    "first_sent_out_of_range": 422,
    "upgrade_required": 426,
    "rate_limited": 429,
    "head_too_large": 431,
    "internal_error": 500,
    "overloaded": 503,
    "database_unavailable": 503,
    "hook_failed": 503,
    "authorize_failed": 503,
}

_FIELDS: Final = (b'"name"', b'"description"', b'"members"', b'"kind"', b'"metadata"')


# Where the group's id stands in every such document.
_GROUP_ID: Final = slice(len('{"group_id":"'), len('{"group_id":"') + 36)


def created_document(group: CreatedGroup) -> bytes:
    """Return the body of every success of a key: it is the same, byte by byte."""
    return orjson.dumps({"group_id": group.group_id, "conversation_id": group.conversation_id})


def group_id_in(document: bytes) -> bytes:
    """Return the id of the group that such a document names, as text."""
    return document[_GROUP_ID]


def read_created(document: bytes) -> CreatedGroup:
    """Return the group that such a document names."""
    ids = orjson.loads(document)
    return CreatedGroup(UUID(ids["group_id"]), UUID(ids["conversation_id"]))


def problem(error: StrettoError) -> dict[str, Any]:
    """Return an error as a problem document."""
    document: dict[str, Any] = {
        "type": TYPE_PREFIX + error.code,
        "title": error.code.replace("_", " ").capitalize(),
        "status": STATUS[error.code],
        "detail": error.detail,
        "code": error.code,
        "retry": error.retry,
    }
    if isinstance(error, RequestInvalid):
        document["errors"] = [asdict(each) for each in error.errors]
    if isinstance(error, (AttemptFailed, ChangeRefused, CreationRefused, GroupDeleted)):
        document["failure"] = {"code": error.failure.code, "detail": error.failure.detail}
    return document


def is_large(body: bytes) -> bool:
    """Whether a body takes more than half a millisecond to parse, or may."""
    if len(body) <= SMALL_BODY_VALUES:
        # As most are; each value takes a byte at least.
        return False
    return len(body) > LARGE_BODY_BYTES or sum(map(body.count, b",[{")) > SMALL_BODY_VALUES


def parse_json(body: bytes) -> object:
    """Parse JSON strictly: no field twice, no lone surrogates. Raises `RequestInvalid`."""
    try:
        document: object = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestInvalid([FieldError("", f"is not JSON: {error}")]) from error
    # Parsers differ in which of two equal fields they keep. The exact check takes as long as parsing.
    # A body without escapes and inner objects that has each known field once cannot have one twice;
    # unknown fields are refused anyway. Metadata is an inner object.
    if b"\\" in body or body.count(b"{") > 1 or max(map(body.count, _FIELDS)) > 1:
        _require_single_fields(body, document)
    return document


def _require_single_fields(body: bytes, document: object) -> None:
    """Raise `RequestInvalid` where the body has a field twice.

    Of two equal names the parser keeps one, and everything else: the body then has more strings than
    its document. Parsing it again in Python, with a hook for pairs, would take fifty times as long as a
    creation for a body of thousands of small fields.
    """
    try:
        kept = orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        raise RequestInvalid([FieldError("", "is nested too deeply")]) from error
    if _strings(body) > _strings(kept):
        raise RequestInvalid([FieldError("", "has a field twice")])


def _strings(valid: bytes) -> int:
    """Return how many strings there are in valid JSON, names among them."""
    # Backslashes first: what follows a pair of them is no part of an escape.
    return valid.replace(rb"\\", b"").replace(rb"\"", b"").count(b'"') // 2
