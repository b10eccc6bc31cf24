"""Answers to a creation that the fast path and the routes send alike, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping
    from http import HTTPStatus

    from stretto.creation.flight import Answer


def written(status: HTTPStatus, fields: Mapping[str, object], body: bytes) -> bytes:
    """Return an answer as it is sent, with these header fields and no others."""
    lines = [f"{name}: {value}\r\n" for name, value in fields.items()]
    return f"HTTP/1.1 {status} {status.phrase}\r\n{''.join(lines)}\r\n".encode() + body


def created_fields(path: str, answer: Answer) -> dict[str, str]:
    """Return the header fields of the answer to a successful `POST` to that path."""
    fields = {
        "Location": f"{path}/{orjson.loads(answer.document)['group_id']}",
        "Idempotency-Status": answer.status,
    }
    if answer.status.is_replay:
        fields["Idempotent-Replayed"] = "true"
    return fields
