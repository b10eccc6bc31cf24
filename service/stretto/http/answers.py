"""Answers that the fast path and the routes send alike, byte for byte."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from uuid import UUID

from aiohttp import hdrs
from aiohttp.helpers import rfc822_formatted_time

from stretto.codec import created_document, group_id_in
from stretto.creation.attempt import AnswerStatus
from stretto.creation.flight import Answer
from stretto.domain import CreatedGroup
from stretto.http.problems import COMMON_FIELDS
from stretto.telemetry.request_context import ID_FIELD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

CREATE_PATH: Final = "/v1/groups"
HEAD_END: Final = b"\r\n\r\n"
# The last header field of an answer but `Connection`, in the order in which aiohttp writes them too.
_ID_LINE: Final = f"\r\n{ID_FIELD}: %b\r\n\r\n".encode()
# The documents of all groups are of one length.
_ANY: Final = created_document(CreatedGroup(UUID(int=0), UUID(int=0)))


def created_fields(path: str, answer: Answer) -> dict[str, str]:
    """Return the header fields of the answer to a successful `POST` to that path."""
    return {
        "Location": f"{path}/{group_id_in(answer.document).decode()}",
        **answer.headers,
    }


def created_answer(answer: Answer, request_id: str) -> bytes:
    """Return a success as it is sent; an empty id is left out."""
    before, behind = _around_id(answer.status, rfc822_formatted_time())
    end = _ID_LINE % request_id.encode() if request_id else HEAD_END
    return b"".join((before, group_id_in(answer.document), behind, end, answer.document))


def with_id(answer: bytes, request_id: str) -> bytes:
    """Return another answer with the request's id; an empty one is left out."""
    return answer.replace(HEAD_END, _ID_LINE % request_id.encode(), 1) if request_id else answer


@lru_cache(maxsize=len(AnswerStatus))
def _around_id(status: AnswerStatus, date: str) -> tuple[bytes, bytes]:
    """Return the head of every success at this second: before its group's id, behind it; no end."""
    fields = created_fields(CREATE_PATH, Answer(_ANY, status))
    head = _written(HTTPStatus.CREATED, fields, _ANY, date).removesuffix(HEAD_END + _ANY)
    before, _, behind = head.partition(group_id_in(_ANY))
    return before, behind


def written_answer(response: web.Response, date: str) -> bytes:
    """Return an answer with a document as it is sent."""
    assert isinstance(response.body, bytes)
    return _written(HTTPStatus(response.status), response.headers, response.body, date)


def around_date(response: web.Response) -> tuple[bytes, bytes]:
    """Return an answer with a document as it is sent: what is before its date, and behind."""
    before, _, behind = written_answer(response, "\0").partition(b"\0")
    return before, behind


def _written(status: HTTPStatus, own_fields: Mapping[str, str], body: bytes, date: str) -> bytes:
    """Return an answer: its own header fields, then the others, in the order of aiohttp and us."""
    fields = {**own_fields, **COMMON_FIELDS, hdrs.CONTENT_LENGTH: len(body), hdrs.DATE: date}
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    return f"HTTP/1.1 {status} {status.phrase}\r\n{''.join(lines)}\r\n".encode() + body
