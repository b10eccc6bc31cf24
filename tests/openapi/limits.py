"""Every bound, pattern and closed list of the document, from the code that enforces it.

Patterns have no constant: `tests/unit/http/test_schemas.py` compares them with the parsers.
"""

from __future__ import annotations

from typing import Any, Final

from stretto.codec import BODY_BYTES_MAX, STATUS, TYPE_PREFIX
from stretto.creation.age import AHEAD_SECONDS_MAX
from stretto.creation.attempt import AnswerStatus, AttemptStatus
from stretto.creation.creator import WAIT_SECONDS_DEFAULT, WAIT_SECONDS_MAX
from stretto.creation.reads import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX, TRAIL_ENTRIES_MAX
from stretto.domain import (
    DESCRIPTION_CHARACTERS_MAX,
    EVENT_TYPE,
    KEY_CHARACTERS_MAX,
    KIND_CHARACTERS_MAX,
    MEMBERS_MAX,
    NAME_CHARACTERS_MAX,
    USER_ID_CHARACTERS_MAX,
)
from stretto.errors import Retry
from stretto.events.close_codes import CloseCode
from stretto.http.event_streams import SUBPROTOCOL
from stretto.http.requests import TOKEN_SUBPROTOCOL
from stretto.members import ADMIN, MEMBER, ROLES
from stretto.metadata import METADATA_BYTES_MAX, METADATA_LEVELS_MAX, NUMBER_MAX
from stretto.postgres.changes import CHANGE_TYPES
from stretto.postgres.deletions import DELETED
from stretto.postgres.log import MEMBER_IDS_MAX

_SCHEMAS: Final = "/components/schemas"
_NEW_GROUP: Final = f"{_SCHEMAS}/NewGroup/properties"
_EVENT: Final = f"{_SCHEMAS}/Event/properties"
_PROBLEM: Final = f"{_SCHEMAS}/Problem/properties"
_CREATED: Final = "/paths/~1v1~1groups/post/responses/201/headers"
_UPGRADE: Final = "/components/responses/UpgradeRequired/headers"
_MEMBERS: Final = "/paths/~1v1~1groups~1{group_id}~1members/get/parameters"

# By the schema's place.
LIMITS: Final[dict[str, dict[str, Any]]] = {
    f"{_SCHEMAS}/UserId": {"minLength": 1, "maxLength": USER_ID_CHARACTERS_MAX},
    f"{_NEW_GROUP}/name": {"minLength": 1, "maxLength": NAME_CHARACTERS_MAX},
    f"{_NEW_GROUP}/description": {"maxLength": DESCRIPTION_CHARACTERS_MAX},
    f"{_NEW_GROUP}/members": {"maxItems": MEMBERS_MAX},
    f"{_NEW_GROUP}/kind": {"maxLength": KIND_CHARACTERS_MAX},
    f"{_SCHEMAS}/MetadataValue": {"minimum": -NUMBER_MAX, "maximum": NUMBER_MAX},
    f"{_SCHEMAS}/NewMember/properties/role": {"enum": [ADMIN, MEMBER]},
    # Quoted, with each character escaped.
    f"{_SCHEMAS}/IdempotencyKey": {"minLength": 1, "maxLength": 2 * KEY_CHARACTERS_MAX + 2},
    "/components/parameters/Limit/schema": {
        "minimum": 1,
        "maximum": PAGE_ITEMS_MAX,
        "default": PAGE_ITEMS_DEFAULT,
    },
    f"{_MEMBERS}/2/schema": {"minLength": 1, "maxLength": USER_ID_CHARACTERS_MAX},
    f"{_SCHEMAS}/Attempt/properties/status": {"enum": [*AttemptStatus]},
    f"{_SCHEMAS}/AttemptHistory/properties/history": {"maxItems": TRAIL_ENTRIES_MAX},
    f"{_SCHEMAS}/SessionEnd/properties/code": {"enum": [*map(int, CloseCode)]},
    f"{_SCHEMAS}/Member/properties/role": {"enum": ["owner", ADMIN, MEMBER]},
    f"{_SCHEMAS}/Group/properties/members_count": {"minimum": 1},
    f"{_SCHEMAS}/Health/properties/status": {"enum": ["alive", "ready"]},
    f"{_PROBLEM}/type": {"enum": [TYPE_PREFIX + code for code in STATUS]},
    f"{_PROBLEM}/code": {"enum": [*STATUS]},
    f"{_PROBLEM}/status": {"enum": sorted(set(STATUS.values()))},
    f"{_PROBLEM}/retry": {"enum": [*Retry]},
    f"{_EVENT}/specversion": {"const": "1.0"},
    f"{_EVENT}/source": {"const": "urn:stretto"},
    f"{_EVENT}/type": {"enum": [EVENT_TYPE, *CHANGE_TYPES, DELETED]},
    f"{_EVENT}/datacontenttype": {"const": "application/json"},
    f"{_EVENT}/data/properties/members_count": {"minimum": 1},
    f"{_EVENT}/data/properties/member_ids": {"minItems": 1, "maxItems": MEMBER_IDS_MAX},
    f"{_EVENT}/data/properties/members/items/properties/role": {"enum": [*ROLES]},
    f"{_EVENT}/data/properties/revision": {"minimum": 1},
    f"{_CREATED}/Idempotency-Status/schema": {"enum": [*AnswerStatus]},
    f"{_CREATED}/Idempotent-Replayed/schema": {"const": "true"},
    "/components/headers/Retry-After/schema": {"minimum": 1},
    "/components/responses/Unauthenticated/headers/WWW-Authenticate/schema": {"const": "Bearer"},
    f"{_UPGRADE}/Upgrade/schema": {"const": "websocket"},
    f"{_UPGRADE}/Sec-WebSocket-Version/schema": {"const": "13"},
}

_CREATE: Final = "/paths/~1v1~1groups/post"
_SESSION: Final = "/paths/~1v1~1events/get/description"

# What a text says of a limit, by the text's place.
TEXTS: Final[dict[str, tuple[str, ...]]] = {
    f"{_SCHEMAS}/Metadata/description": (
        f"{METADATA_BYTES_MAX} bytes",
        f"{METADATA_LEVELS_MAX} levels",
    ),
    # As a `default`, generated types would require the field.
    f"{_SCHEMAS}/NewMember/properties/role/description": (f"`{MEMBER}` if not given",),
    f"{_CREATE}/requestBody/description": (f"At most {BODY_BYTES_MAX} bytes",),
    f"{_CREATE}/parameters/0/description": (f"1 to {KEY_CHARACTERS_MAX} characters",),
    f"{_CREATE}/parameters/1/description": (
        f"up to {WAIT_SECONDS_MAX:.0f},",
        f"; {WAIT_SECONDS_DEFAULT:.0f} if",
    ),
    f"{_CREATE}/parameters/2/description": (f"more than {AHEAD_SECONDS_MAX / 60:.0f} minutes",),
    "/paths/~1v1~1attempts~1{key}/get/parameters/1/description": (
        f"up to {WAIT_SECONDS_MAX:.0f},",
        "; 0 if",
    ),
    "/paths/~1v1~1attempts~1{key}~1history/get/description": (
        f"the newest {TRAIL_ENTRIES_MAX} entries",
    ),
    "/components/securitySchemes/token/description": (f"1 to {USER_ID_CHARACTERS_MAX} printable",),
    _SESSION: (
        f"`{SUBPROTOCOL}`",
        f"`{TOKEN_SUBPROTOCOL}`",
        *(f"- `{int(code)}`: {code.reason}\n" for code in CloseCode),
    ),
}
