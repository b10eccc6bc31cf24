"""The documents of the HTTP contract as JSON Schemas, made from the code's own limits."""

from __future__ import annotations

from typing import Any, Final

from stretto.documents import STATUS, TYPE_PREFIX
from stretto.domain import (
    DESCRIPTION_CHARACTERS_MAX,
    DESCRIPTION_PATTERN,
    MEMBERS_MAX,
    NAME_CHARACTERS_MAX,
    NAME_PATTERN,
    USER_ID_CHARACTERS_MAX,
    USER_ID_PATTERN,
)
from stretto.errors import Retry
from stretto.protocol.attempt import AttemptStatus

Schema = dict[str, Any]

_UUID: Final[Schema] = {"type": "string", "format": "uuid"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_CURSOR: Final[Schema] = {
    "type": ["string", "null"],
    "description": "Ask for the next page with it; null on the last one.",
}


def _object(properties: Schema, *, optional: tuple[str, ...] = (), description: str = "") -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
    }
    return {**schema, "description": description} if description else schema


def _reference(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


SCHEMAS: Final[dict[str, Schema]] = {
    "UserId": {
        "type": "string",
        "minLength": 1,
        "maxLength": USER_ID_CHARACTERS_MAX,
        "pattern": USER_ID_PATTERN,
    },
    "NewGroup": _object(
        {
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": NAME_CHARACTERS_MAX,
                "pattern": NAME_PATTERN,
            },
            "description": {
                "type": ["string", "null"],
                "maxLength": DESCRIPTION_CHARACTERS_MAX,
                "pattern": DESCRIPTION_PATTERN,
            },
            "members": {
                "type": "array",
                "maxItems": MEMBERS_MAX,
                "items": _reference("UserId"),
                "description": "A set: neither order nor repetition matters. The owner is added.",
            },
        },
        optional=("description", "members"),
    ),
    "CreatedGroup": _object(
        {"group_id": _UUID, "conversation_id": _UUID},
        description="The same bytes in every success of one key.",
    ),
    "Group": _object(
        {
            "group_id": _UUID,
            "conversation_id": _UUID,
            "owner_id": _reference("UserId"),
            "name": {"type": "string"},
            "description": {"type": ["string", "null"]},
            "created_at": _TIME,
            "members_count": {"type": "integer", "minimum": 1},
        }
    ),
    "Groups": _object(
        {"groups": {"type": "array", "items": _reference("Group")}, "next_cursor": _CURSOR}
    ),
    "Members": _object(
        {
            "members": {
                "type": "array",
                "items": _object(
                    {
                        "user_id": _reference("UserId"),
                        "role": {"enum": ["owner", "member"]},
                        "joined_at": _TIME,
                    }
                ),
            },
            "next_cursor": _CURSOR,
        }
    ),
    "Failure": _object(
        {"code": {"type": "string"}, "detail": {"type": "string"}},
        description="Why an attempt failed for good.",
    ),
    "Attempt": _object(
        {
            "status": {"enum": list(AttemptStatus)},
            "group_id": _UUID,
            "conversation_id": {"type": ["string", "null"], "format": "uuid"},
            "claimed_at": _TIME,
            "settled_at": {"type": ["string", "null"], "format": "date-time"},
            "failure": {"anyOf": [_reference("Failure"), {"type": "null"}]},
        }
    ),
    "Health": _object({"status": {"enum": ["alive", "ready"]}}),
    "Problem": _object(
        {
            "type": {"enum": [TYPE_PREFIX + code for code in STATUS]},
            "title": {"type": "string"},
            "status": {"enum": sorted(set(STATUS.values()))},
            "detail": {"type": "string"},
            "code": {"enum": list(STATUS)},
            "retry": {
                "enum": list(Retry),
                "description": (
                    "What to do: wait and send the same again, take a new key, or mend the program."
                ),
            },
            "errors": {
                "type": "array",
                "items": {
                    "oneOf": [
                        _object(
                            {
                                "pointer": {"type": "string", "format": "json-pointer"},
                                "detail": {"type": "string"},
                            },
                            description="Of the body.",
                        ),
                        _object(
                            {"parameter": {"type": "string"}, "detail": {"type": "string"}},
                            description="Of a query parameter or a header field.",
                        ),
                    ]
                },
                "description": "The faults of the request, where there are some to point at.",
            },
            "failure": _reference("Failure"),
        },
        optional=("errors", "failure"),
        description="RFC 9457.",
    ),
}
