"""What a creation can be told at the door: before it is parsed, and before a task begins for it.

An exact repeat of what has succeeded is answered here, for a third of what it would cost further
inside: retries are the normal case, and come in storms. So is a creation that there is no room for
(`admission.py`). Whatever is not plain (`plain_requests.py`) goes its usual way, and is told the
same.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs
from aiohttp.helpers import rfc822_formatted_time

from stretto.http.answers import created_fields, written
from stretto.http.problems import COMMON_FIELDS

if TYPE_CHECKING:
    from stretto.http.front.plain_requests import PlainRequest
    from stretto.http.service import Service

CREATE_PATH: Final = "/v1/groups"
CREATION: Final = f"{hdrs.METH_POST} {CREATE_PATH}".encode()
"""How every creation begins."""


def replay(service: Service, request: PlainRequest) -> bytes | None:
    """Return the answer to an exact repeat of a creation, as it is sent."""
    fields = request.fields
    key, authorization = fields.get(b"idempotency-key"), fields.get(b"authorization")
    if (
        key is None
        or authorization is None
        # A quoted key has to be read first.
        or key.startswith(b'"')
        or fields.get(b"content-type") != b"application/json"
    ):
        return None
    verified = service.authenticator.recall(authorization.decode())
    if verified is None:
        return None
    answer = service.creator.replay(verified.owner, key.decode(), request.body)
    if answer is None:
        return None
    service.metrics.count_request(hdrs.METH_POST, CREATE_PATH, HTTPStatus.CREATED, None)
    told = created_fields(CREATE_PATH, answer)
    # The rest comes in the order in which aiohttp and `connection.py` add it.
    told[hdrs.CONTENT_TYPE] = "application/json"
    told.update(COMMON_FIELDS)
    told[hdrs.CONTENT_LENGTH] = str(len(answer.document))
    told[hdrs.DATE] = rfc822_formatted_time()
    return written(HTTPStatus.CREATED, told, answer.document)
