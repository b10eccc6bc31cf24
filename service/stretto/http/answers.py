"""Answers to a creation that the fast path and the routes send alike, byte for byte."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import orjson
from aiohttp import hdrs
from aiohttp.helpers import rfc822_formatted_time

from stretto.http.problems import COMMON_FIELDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from stretto.creation.flight import Answer

CREATE_PATH: Final = "/v1/groups"


def created_fields(path: str, answer: Answer) -> dict[str, str]:
    """Return the header fields of the answer to a successful `POST` to that path."""
    fields = {
        "Location": f"{path}/{orjson.loads(answer.document)['group_id']}",
        "Idempotency-Status": answer.status,
    }
    if answer.status.is_replay:
        fields["Idempotent-Replayed"] = "true"
    return fields


def created_answer(answer: Answer) -> bytes:
    """Return a success as it is sent."""
    fields = created_fields(CREATE_PATH, answer)
    fields[hdrs.CONTENT_TYPE] = "application/json"
    return _written(HTTPStatus.CREATED, fields, answer.document, rfc822_formatted_time())


def problem_answer(response: web.Response, date: str) -> bytes:
    """Return a problem document as it is sent."""
    assert isinstance(response.body, bytes)
    return _written(HTTPStatus(response.status), response.headers, response.body, date)


def _written(status: HTTPStatus, own_fields: Mapping[str, str], body: bytes, date: str) -> bytes:
    """Return an answer: its own header fields, then the others, in the order of aiohttp and us."""
    fields = {**own_fields, **COMMON_FIELDS, hdrs.CONTENT_LENGTH: len(body), hdrs.DATE: date}
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    return f"HTTP/1.1 {status} {status.phrase}\r\n{''.join(lines)}\r\n".encode() + body
