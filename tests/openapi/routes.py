"""Every route: how it may answer and what it reads. A new route needs a new line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_UNREADY: Final = "overloaded database_unavailable internal_error"
_TOKEN: Final = f"unauthenticated insufficient_scope {_UNREADY}"


@dataclass(frozen=True)
class Route:
    """What a client may rely on; the texts are lists of words."""

    successes: str
    codes: str = "internal_error"
    query: str = ""
    fields: str = ""
    """Header fields."""


ROUTES: Final = {
    "POST /v1/groups": Route(
        "201",
        "key_missing key_invalid request_invalid body_too_large unsupported_media_type"
        " attempt_pending attempt_failed group_deleted key_reused first_sent_out_of_range rate_limited"
        f" hook_failed creation_refused authorize_failed {_TOKEN}",
        fields="Idempotency-Key Idempotency-First-Sent Prefer",
    ),
    "GET /v1/groups": Route("200", f"request_invalid {_TOKEN}", "limit cursor"),
    "GET /v1/groups/{group_id}": Route("200", f"request_invalid not_found {_TOKEN}"),
    "DELETE /v1/groups/{group_id}": Route("204", f"request_invalid not_found {_TOKEN}"),
    "GET /v1/groups/{group_id}/members": Route(
        "200", f"request_invalid not_found {_TOKEN}", "limit cursor"
    ),
    "GET /v1/attempts/{key}": Route(
        "200", f"key_invalid request_invalid not_found group_deleted {_TOKEN}", fields="Prefer"
    ),
    "GET /v1/attempts/{key}/history": Route(
        "200", f"key_invalid request_invalid not_found group_deleted {_TOKEN}"
    ),
    "GET /v1/events": Route(
        "101 200",
        f"request_invalid origin_refused upgrade_required rate_limited {_TOKEN}",
        "since",
        fields="Last-Event-ID",
    ),
    "GET /livez": Route("200"),
    "GET /readyz": Route("200", _UNREADY),
    "GET /metrics": Route("200"),
    "GET /openapi.json": Route("200"),
    "GET /docs": Route("200"),
    "GET /docs/start.js": Route("200"),
    "GET /docs/{file}": Route("200", "not_found internal_error"),
}
