"""The HTTP contract as an OpenAPI 3.1 document: every route with all it may answer.

Limits, patterns, statuses and texts come from the code that enforces them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.documents import BODY_BYTES_MAX
from stretto.domain import KEY_CHARACTERS_MAX, USER_ID_CHARACTERS_MAX
from stretto.errors import (
    BodyTooLarge,
    InternalError,
    KeyInvalid,
    KeyMissing,
    KeyReused,
    MethodNotAllowed,
    NotFound,
    StrettoError,
    Unauthenticated,
    UnsupportedMediaType,
)
from stretto.http import openapi_events
from stretto.http import openapi_examples as examples
from stretto.http.openapi_answers import Document, file, named, problems, reference, success
from stretto.http.requests import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from stretto.http.schemas import SCHEMAS
from stretto.protocol.creator import WAIT_SECONDS_DEFAULT, WAIT_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

_DESCRIPTION: Final = """
Creates chat groups exactly once per idempotency key. Send a request again with the same key as often
as you like: there is one group, and every success names it, with the same bytes.

Errors are problem documents (RFC 9457) whose `retry` says what to do: wait and send the same again,
take a new key, or mend the program. Two of them can come from any path: `not_found` (404) for a path
that does not exist, and `method_not_allowed` (405, with `Allow`) for one that does not know the
method. A query parameter that is not listed here is refused (`request_invalid`). Whatever answers GET answers HEAD too, without the body, but for `/v1/events`.
""".strip()

_ALWAYS: Final = (InternalError(),)
_UNREADY: Final = (examples.OVERLOADED, examples.DATABASE_UNAVAILABLE, *_ALWAYS)
_WITH_TOKEN: Final = (Unauthenticated(), *_UNREADY)

_KEY_SCHEMA: Final[Document] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 2 * KEY_CHARACTERS_MAX + 2,
    "pattern": (
        rf"^(?:[!#-~][!-~]{{0,{KEY_CHARACTERS_MAX - 1}}}"
        rf'|"(?:[!#-\[\]-~]|\\["\\]){{1,{KEY_CHARACTERS_MAX}}}")$'
    ),
}
_KEY: Final[Document] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": (
        "Names this attempt: take a fresh one for each group, and the same one for each retry;"
        f" 1 to {KEY_CHARACTERS_MAX} characters of `!` to `~`. Bare, or as a quoted string"
        ' (RFC 9651, where `\\` escapes `\\` and `"`): both are the same key.'
    ),
    "schema": _KEY_SCHEMA,
    "examples": named({"bare": examples.KEY, "quoted": f'"{examples.KEY}"'}),
}


def _prefer(default_seconds: float) -> Document:
    return {
        "name": "Prefer",
        "in": "header",
        "description": (
            f"`wait=N`: how many seconds, up to {WAIT_SECONDS_MAX:.0f}, to wait for a pending"
            f" attempt (RFC 7240); {default_seconds:.0f} if not given or not understood."
        ),
        "schema": {"type": "string"},
        "example": "wait=5",
    }


def _in_path(name: str, description: str, example: str, **schema: object) -> Document:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", **schema},
        "example": example,
    }


_GROUP_ID: Final = _in_path(
    "group_id", "The group.", examples.CREATED_GROUP["group_id"], format="uuid"
)


_MEMBER_CURSOR: Final[Document] = {
    "type": "string",
    "minLength": 1,
    "maxLength": USER_ID_CHARACTERS_MAX,
    "pattern": r"^[ -~]+(?!\n)$",
}


def _page(cursor_example: str, **cursor_schema: object) -> tuple[Document, Document]:
    limit = {
        "name": "limit",
        "in": "query",
        "description": "How many to list at most.",
        "schema": {
            "type": "integer",
            "minimum": 1,
            "maximum": PAGE_ITEMS_MAX,
            "default": PAGE_ITEMS_DEFAULT,
        },
    }
    cursor = {
        "name": "cursor",
        "in": "query",
        "description": "The `next_cursor` of the page before; the first page has none.",
        "schema": cursor_schema,
        "example": cursor_example,
    }
    return limit, cursor


def _operation(
    name: str,
    tag: str,
    summary: str,
    answers: dict[str, Document],
    errors: Sequence[StrettoError] = _ALWAYS,
    parameters: Sequence[Document] = (),
) -> Document:
    operation: Document = {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "security": [{"token": []}] if Unauthenticated in map(type, errors) else [],
        "responses": {**answers, **problems(errors)},
    }
    if parameters:
        operation["parameters"] = list(parameters)
    return operation


def _create_group() -> Document:
    created = success(
        "The group of this key, whether it was created now or before.",
        "CreatedGroup",
        {"created": examples.CREATED_GROUP},
        *("Location", "Idempotency-Status", "Idempotent-Replayed"),
    )
    errors = (
        *(KeyMissing(), KeyInvalid(), examples.BODY_INVALID, BodyTooLarge()),
        *(UnsupportedMediaType(), examples.ATTEMPT_PENDING, examples.ATTEMPT_FAILED, KeyReused()),
        *(examples.RATE_LIMITED, examples.HOOK_FAILED, *_WITH_TOKEN),
    )
    parameters = (_KEY, _prefer(WAIT_SECONDS_DEFAULT))
    summary = "Create a group, exactly once per key"
    operation = _operation("createGroup", "groups", summary, {"201": created}, errors, parameters)
    operation["requestBody"] = {
        "required": True,
        "description": f"At most {BODY_BYTES_MAX} bytes of JSON, compressed or not.",
        "content": {
            "application/json": {
                "schema": reference("NewGroup"),
                "examples": named(examples.NEW_GROUPS),
            }
        },
    }
    return operation


def _list_groups() -> Document:
    return _operation(
        "listGroups",
        "groups",
        "My groups, newest first",
        {"200": success("A page of them.", "Groups", examples.GROUPS)},
        (examples.PAGE_INVALID, *_WITH_TOKEN),
        _page(examples.GROUPS_CURSOR, type="string", format="uuid"),
    )


def _read_group() -> Document:
    return _operation(
        "readGroup",
        "groups",
        "A group, for its members",
        {"200": success("The group.", "Group", {"group": examples.GROUP})},
        (examples.QUERY_INVALID, NotFound(), *_WITH_TOKEN),
        (_GROUP_ID,),
    )


def _list_members() -> Document:
    return _operation(
        "listMembers",
        "groups",
        "Who takes part in a group, for its members",
        {"200": success("A page of them.", "Members", examples.MEMBERS)},
        (examples.PAGE_INVALID, NotFound(), *_WITH_TOKEN),
        (_GROUP_ID, *_page(examples.MEMBERS_CURSOR, **_MEMBER_CURSOR)),
    )


def _read_attempt() -> Document:
    key = _in_path("key", "The key, percent-encoded, bare or quoted.", examples.KEY, **_KEY_SCHEMA)
    return _operation(
        "readAttempt",
        "attempts",
        "What became of my attempt",
        {"200": success("Where it stands.", "Attempt", examples.ATTEMPTS)},
        (KeyInvalid(), examples.QUERY_INVALID, NotFound(), *_WITH_TOKEN),
        (key, _prefer(0)),
    )


def _open_session() -> Document:
    summary = "My events, live"
    errors = (*openapi_events.ERRORS, *_WITH_TOKEN)
    answers, parameters = openapi_events.answers(), openapi_events.PARAMETERS
    operation = _operation("openSession", "events", summary, answers, errors, parameters)
    return {**operation, "description": openapi_events.DESCRIPTION}


def _docs_file() -> Document:
    # A static file's own: they are told without a document.
    answers = {
        "200": file("The file.", "*/*"),
        "206": file("The range that was asked for.", "*/*"),
        "304": {"description": "It has not changed."},
        "412": {"description": "It is not the one that was asked for."},
        "416": {"description": "It has no such range."},
    }
    parameters = (_in_path("file", "A file of the page.", "swagger-ui.css"),)
    errors = (NotFound(), *_ALWAYS)
    return _operation("docsFile", "docs", "A file of the page", answers, errors, parameters)


def _plain(
    name: str, tag: str, summary: str, answer: Document, errors: Sequence[StrettoError] = _ALWAYS
) -> Document:
    return {"get": _operation(name, tag, summary, {"200": answer}, errors)}


def _paths() -> Document:
    alive = success("It is.", "Health", {"alive": {"status": "alive"}})
    ready = success("It can.", "Health", {"ready": {"status": "ready"}})
    text = file("The metrics.", "text/plain", type="string")
    page = file("The page.", "text/html", type="string")
    script = file("Code.", "text/javascript", type="string")
    itself = file("The document.", "application/json", type="object")
    return {
        "/v1/groups": {"post": _create_group(), "get": _list_groups()},
        "/v1/groups/{group_id}": {"get": _read_group()},
        "/v1/groups/{group_id}/members": {"get": _list_members()},
        "/v1/attempts/{key}": {"get": _read_attempt()},
        "/v1/events": {"get": _open_session()},
        "/livez": _plain("livez", "health", "Is the process alive?", alive),
        "/readyz": _plain("readyz", "health", "Can it serve?", ready, _UNREADY),
        "/metrics": _plain("metrics", "health", "Prometheus metrics", text),
        "/openapi.json": _plain("openapi", "docs", "This document", itself),
        "/docs": _plain("docs", "docs", "This document, for people", page),
        "/docs/start.js": _plain("docsStart", "docs", "Starts the page", script),
        "/docs/{file}": {"get": _docs_file()},
    }


OPENAPI: Final[Document] = {
    "openapi": "3.1.0",
    "info": {
        "title": "stretto",
        "version": "1",
        "description": _DESCRIPTION,
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    # Relative to where this document is read: right under a host's prefix as well.
    "servers": [{"url": "./"}],
    "tags": [
        {"name": "groups", "description": "Create groups and read those that you are in."},
        {"name": "attempts", "description": "Ask what became of a key."},
        {"name": "events", "description": "Be told what happens in your groups."},
        {"name": "health", "description": "For operators."},
        {"name": "docs", "description": "The contract itself."},
    ],
    "paths": _paths(),
    "components": {
        "schemas": {**SCHEMAS, **openapi_events.SCHEMAS},
        "responses": {
            "NotFound": problems((NotFound(),))["404"],
            "MethodNotAllowed": problems((MethodNotAllowed(),))["405"],
        },
        "securitySchemes": {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "bearerFormat": "JWT",
                "description": (
                    "Its `sub` is the user: 1 to"
                    f" {USER_ID_CHARACTERS_MAX} printable ASCII characters, the first and the last no"
                    " blank."
                ),
            },
        },
    },
}
