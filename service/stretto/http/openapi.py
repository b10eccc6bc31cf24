"""The HTTP contract as an OpenAPI 3.1 document: every route with all it may answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stretto.domain import KEY_CHARACTERS_MAX
from stretto.http.problems import CONTENT_TYPE, STATUS
from stretto.http.requests import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from stretto.http.schemas import SCHEMAS
from stretto.protocol.attempt import AnswerStatus
from stretto.protocol.creator import WAIT_SECONDS_DEFAULT, WAIT_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

Document = dict[str, Any]

_ALWAYS: Final = ("internal_error",)
_WITH_TOKEN: Final = ("unauthenticated", "overloaded", "database_unavailable", *_ALWAYS)
_ID: Final = "6a2f41a3-c54c-5ae8-b5c7-7e0f1f0f6a50"
_DESCRIPTION: Final = """
Creates chat groups exactly once per idempotency key. Send a request again with the same key as often
as you like: there is one group, and every success names it, with the same bytes.

All errors are problem documents (RFC 9457) whose `retry` says what to do. Two of them can come from
any path: `not_found` (404) for one that does not exist, and `method_not_allowed` (405, with `Allow`).
""".strip()


def _text(description: str, **schema: Any) -> Document:
    return {"description": description, "schema": {"type": "string", **schema}}


_HEADERS: Final[dict[str, Document]] = {
    "Location": _text("Where the group is read."),
    "Idempotency-Status": _text("How this answer came about.", enum=list(AnswerStatus)),
    "Idempotent-Replayed": _text("Present unless this very request created it.", const="true"),
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}},
    "WWW-Authenticate": _text("The scheme.", const="Bearer"),
}
_PROBLEM_HEADERS: Final = {
    401: ("WWW-Authenticate",),
    409: ("Retry-After",),
    429: ("Retry-After",),
    503: ("Retry-After",),
}

_KEY: Final[Document] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": (
        "Names this attempt: take a fresh one for each group, and the same one for each retry. Bare,"
        " or as a quoted string (RFC 9651), which is the same key."
    ),
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": 2 * KEY_CHARACTERS_MAX + 2,
        "pattern": (
            rf"^([!#-~][!-~]{{0,{KEY_CHARACTERS_MAX - 1}}}"
            rf'|"([!#-\[\]-~]|\\["\\]){{1,{KEY_CHARACTERS_MAX}}}")$'
        ),
    },
    "example": "1a8417ef-69df-406c-9e0f-7691872d7db8",
}


def _prefer(default_seconds: float) -> Document:
    return {
        "name": "Prefer",
        "in": "header",
        "description": (
            f"`wait=N`: how many seconds, up to {WAIT_SECONDS_MAX:.0f}, to wait for a pending"
            f" attempt (RFC 7240); {default_seconds:.0f} if not given."
        ),
        "schema": {"type": "string"},
        "example": "wait=5",
    }


def _in_path(name: str, description: str, example: str) -> Document:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
        "example": example,
    }


_GROUP_ID: Final = _in_path("group_id", "The group.", _ID)
_PAGE: Final[tuple[Document, ...]] = (
    {
        "name": "limit",
        "in": "query",
        "schema": {
            "type": "integer",
            "minimum": 1,
            "maximum": PAGE_ITEMS_MAX,
            "default": PAGE_ITEMS_DEFAULT,
        },
    },
    {
        "name": "cursor",
        "in": "query",
        "description": "The `next_cursor` of the page before.",
        "schema": {"type": "string"},
    },
)


def _answer(description: str, schema: str, *headers: str) -> Document:
    answer: Document = {
        "description": description,
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }
    if headers:
        answer["headers"] = {name: _HEADERS[name] for name in headers}
    return answer


def _file(description: str, media_type: str) -> Document:
    return {"description": description, "content": {media_type: {}}}


def _problems(codes: Sequence[str]) -> dict[str, Document]:
    """Return the answers for these codes, by status."""
    answers: dict[str, Document] = {}
    for status in sorted({STATUS[code] for code in codes}):
        possible = [code for code in codes if STATUS[code] == status]
        answers[str(status)] = {
            "description": ", ".join(f"`{code}`" for code in possible),
            "headers": {name: _HEADERS[name] for name in _PROBLEM_HEADERS.get(status, ())},
            "content": {
                CONTENT_TYPE: {
                    "schema": {
                        "allOf": [{"$ref": "#/components/schemas/Problem"}],
                        "properties": {"code": {"enum": possible}, "status": {"const": status}},
                    }
                }
            },
        }
    return answers


def _operation(
    name: str,
    summary: str,
    answers: dict[str, Document],
    codes: Sequence[str] = _ALWAYS,
    *,
    parameters: Sequence[Document] = (),
    is_open: bool = True,
) -> Document:
    operation: Document = {
        "operationId": name,
        "summary": summary,
        "tags": ["service" if is_open else "groups"],
        "security": [] if is_open else [{"token": []}],
        "responses": {**answers, **_problems(codes)},
    }
    if parameters:
        operation["parameters"] = list(parameters)
    return operation


def _create_group() -> Document:
    created = _answer(
        "The group of this key.",
        "CreatedGroup",
        *("Location", "Idempotency-Status", "Idempotent-Replayed"),
    )
    created["content"]["application/json"]["example"] = {
        "group_id": _ID,
        "conversation_id": "01a1fc83-fd4c-771a-a6fa-15ce8d4e3372",
    }
    body = {
        "schema": {"$ref": "#/components/schemas/NewGroup"},
        "example": {"name": "Team", "members": ["bob", "carol"]},
    }
    codes = (
        *("key_missing", "key_invalid", "request_invalid", "body_too_large"),
        *("unsupported_media_type", "attempt_pending", "attempt_failed", "key_reused"),
        *("rate_limited", *_WITH_TOKEN),
    )
    return {
        **_operation(
            "createGroup",
            "Create a group, exactly once per key",
            {"201": created},
            codes,
            parameters=(_KEY, _prefer(WAIT_SECONDS_DEFAULT)),
            is_open=False,
        ),
        "requestBody": {"required": True, "content": {"application/json": body}},
    }


def _read(
    name: str,
    summary: str,
    schema: str,
    codes: Sequence[str],
    parameters: Sequence[Document],
) -> dict[str, Document]:
    answers = {"200": _answer(summary, schema)}
    codes = (*codes, *_WITH_TOKEN)
    return {"get": _operation(name, summary, answers, codes, parameters=parameters, is_open=False)}


def _paths() -> Document:
    no_page = ("request_invalid",)
    key = _in_path("key", "The idempotency key, percent-encoded.", str(_KEY["example"]))
    file = _in_path("file", "A file of the page.", "swagger-ui.css")
    groups = _read("listGroups", "My groups, newest first", "Groups", no_page, _PAGE)
    health = _answer("It is.", "Health")
    unready = ("overloaded", "database_unavailable", *_ALWAYS)
    page = {"200": _file("The page.", "text/html")}
    return {
        "/v1/groups": {"post": _create_group(), **groups},
        "/v1/groups/{group_id}": _read(
            "readGroup", "A group, for its members", "Group", ("not_found",), (_GROUP_ID,)
        ),
        "/v1/groups/{group_id}/members": _read(
            "listMembers",
            "Who takes part in a group, for its members",
            "Members",
            (*no_page, "not_found"),
            (_GROUP_ID, *_PAGE),
        ),
        "/v1/attempts/{key}": _read(
            "readAttempt",
            "What became of my attempt",
            "Attempt",
            ("key_invalid", "not_found"),
            (key, _prefer(0)),
        ),
        "/livez": {"get": _operation("livez", "Is the process alive?", {"200": health})},
        "/readyz": {"get": _operation("readyz", "Can it serve?", {"200": health}, unready)},
        "/metrics": {
            "get": _operation(
                "metrics", "Prometheus metrics", {"200": _file("The metrics.", "text/plain")}
            )
        },
        "/openapi.json": {
            "get": _operation(
                "openapi", "This document", {"200": _file("The document.", "application/json")}
            )
        },
        "/docs": {"get": _operation("docs", "This document, for people", page)},
        "/docs/start.js": {
            "get": _operation(
                "docsStart", "Starts the page", {"200": _file("Code.", "text/javascript")}
            )
        },
        "/docs/{file}": {
            "get": _operation(
                "docsFile",
                "A file of the page",
                {"200": _file("The file.", "*/*")},
                ("not_found", *_ALWAYS),
                parameters=(file,),
            )
        },
    }


OPENAPI: Final[Document] = {
    "openapi": "3.1.0",
    "info": {
        "title": "stretto",
        "version": "1",
        "description": _DESCRIPTION,
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "servers": [{"url": "./"}],
    "tags": [{"name": "groups"}, {"name": "service"}],
    "paths": _paths(),
    "components": {
        "schemas": SCHEMAS,
        "responses": {"MethodNotAllowed": _problems(("method_not_allowed",))["405"]},
        "securitySchemes": {
            "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
        },
    },
}
