"""What the OpenAPI document says of live events: two ways, one form of event, close codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from stretto.domain import event_id, group_id
from stretto.errors import OriginRefused, ParameterError, RequestInvalid
from stretto.http import openapi_examples as examples
from stretto.http.event_streams import SUBPROTOCOL
from stretto.http.openapi_answers import Document, named, reference
from stretto.protocol.sessions import CloseCode

if TYPE_CHECKING:
    from stretto.errors import StrettoError

_POSITION: Final = "7123.0a1b2c3d"
_POSITION_SCHEMA: Final[Document] = {"type": "string", "pattern": r"^[0-9]{1,20}\.[0-9a-f]{8}$"}
_UUID: Final[Document] = {"type": "string", "format": "uuid"}
_GROUP: Final = group_id(examples.GROUP["owner_id"], examples.KEY)
_EVENT: Final[Document] = {
    "specversion": "1.0",
    "id": str(event_id(_GROUP)),
    "source": "urn:stretto",
    "type": "group.created",
    "subject": str(_GROUP),
    "time": examples.GROUP["created_at"],
    "datacontenttype": "application/json",
    "data": {
        "group_id": str(_GROUP),
        "conversation_id": examples.GROUP["conversation_id"],
        "owner_id": examples.GROUP["owner_id"],
        "name": examples.GROUP["name"],
        "members_count": examples.GROUP["members_count"],
    },
}
_END: Final[Document] = {
    "code": int(CloseCode.TOKEN_ENDED),
    "reason": CloseCode.TOKEN_ENDED.reason,
}


def _object(properties: Document, required: list[str], description: str) -> Document:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "description": description,
    }


SCHEMAS: Final[dict[str, Any]] = {
    "Event": _object(
        {
            "specversion": {"const": "1.0"},
            "id": {**_UUID, "description": "The same however often the event comes."},
            "source": {"const": "urn:stretto"},
            "type": {"const": "group.created"},
            "subject": {**_UUID, "description": "The group's id."},
            "time": {"type": "string", "format": "date-time"},
            "datacontenttype": {"const": "application/json"},
            "data": _object(
                {
                    "group_id": _UUID,
                    "conversation_id": _UUID,
                    "owner_id": reference("UserId"),
                    "name": {"type": "string"},
                    "members_count": {"type": "integer", "minimum": 1},
                },
                ["group_id", "conversation_id", "owner_id", "name", "members_count"],
                "The group as it was created.",
            ),
        },
        list(_EVENT),
        "A CloudEvents 1.0 document. Others of its members, types and data may be added.",
    ),
    "EventMessage": _object(
        {"position": _POSITION_SCHEMA, "event": reference("Event")},
        ["position"],
        "A WebSocket message. One without an event only says where to resume from now on.",
    ),
    "SessionEnd": _object(
        {"code": {"enum": [int(code) for code in CloseCode]}, "reason": {"type": "string"}},
        ["code", "reason"],
        "The data of the SSE event `close`.",
    ),
}

PARAMETERS: Final[tuple[Document, ...]] = (
    {
        "name": "since",
        "in": "query",
        "description": "A position that was told: first comes what was missed since then.",
        "schema": _POSITION_SCHEMA,
        "example": _POSITION,
    },
    {
        "name": "Last-Event-ID",
        "in": "header",
        "description": "The same; it counts where both are given.",
        "schema": _POSITION_SCHEMA,
        "example": _POSITION,
    },
)

ERRORS: Final[tuple[StrettoError, ...]] = (
    RequestInvalid([ParameterError("since", "is no position that was given out here")]),
    OriginRefused(),
    examples.RATE_LIMITED,
)

_CODES: Final = "\n".join(f"- `{int(code)}`: {code.reason}" for code in CloseCode)
DESCRIPTION: Final = f"""
Tells the events of groups that you are in: over a WebSocket, if the request is such a handshake, or
as server-sent events with `Accept: text/event-stream`. An event may come more than once; its `id`
is then the same.

Where an `Authorization` header cannot be set, a WebSocket's subprotocols are `{SUBPROTOCOL}` and
`stretto.token.` followed by the token. Pages of foreign origins may open one only if the operator
allows it.

Keep the last position that you were told (`position`; the `id` of a server-sent event), and give it
when you connect again: nothing is missed. The first message always tells one. Read your groups
after it, and you know all.

A session ends with one of these codes; over SSE the event `close` says it:

{_CODES}

`1007` and `1009` are sent for a message that is not UTF-8 or too large.
""".strip()


def answers() -> dict[str, Document]:
    """Return how a session begins."""
    event_line = f"id: {_POSITION}\ndata: {orjson.dumps(_EVENT).decode()}\n\n"
    end_line = f"event: close\ndata: {orjson.dumps(_END).decode()}\n\n"
    return {
        "101": {
            "description": "A WebSocket. Its messages are texts: an `EventMessage` each.",
            "content": {
                "application/json": {
                    "schema": reference("EventMessage"),
                    "examples": named(
                        {
                            "position": {"position": _POSITION},
                            "event": {"position": _POSITION, "event": _EVENT},
                        }
                    ),
                }
            },
        },
        "200": {
            "description": "Server-sent events: each `data` is an `Event`, or a `SessionEnd`.",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "examples": named({"event": event_line, "close": end_line}),
                }
            },
        },
    }
