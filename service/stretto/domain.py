"""The domain: users, idempotency keys, groups, and the ids that follow from them.

Input is parsed here, once, into frozen types; all other code relies on them. This module does no I/O.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Final, Self
from uuid import NAMESPACE_URL, UUID

import orjson
import uuid_utils
from uuid_utils.compat import uuid5

from stretto.errors import FieldError, KeyInvalid, RequestInvalid, require_kind, shortened

if TYPE_CHECKING:
    from datetime import datetime

NAMESPACE: Final = uuid5(NAMESPACE_URL, "urn:stretto:create_group")
# The type of all events.
EVENT_TYPE: Final = "group.created"

NAME_CHARACTERS_MAX: Final = 64
DESCRIPTION_CHARACTERS_MAX: Final = 1024
# One group's rows are written by one statement together with its neighbours': a bound on the batch.
MEMBERS_MAX: Final = 1000
USER_ID_CHARACTERS_MAX: Final = 128
KEY_CHARACTERS_MAX: Final = 255
# RFC 7518, 3.2: an HS256 key has at least as many bits as the hash.
TOKEN_SECRET_BYTES_MIN: Final = 32
# 128 bits distinguish requests; a client that forges a collision harms only itself.
FINGERPRINT_BYTES: Final = 16
OWNERS_REMEMBERED_MAX: Final = 10_000
# A body with a thousand invalid members is not answered with a thousand errors.
FIELD_ERRORS_MAX: Final = 20
_FIELDS: Final = frozenset({"name", "description", "members"})

# The OpenAPI document has these rules as patterns of JSON Schema; a test compares them. Names and
# descriptions are shown to people: they have no control characters and no lone surrogates.
#
# Characters that show nothing; a name needs another one. They are Unicode's separators (category Z)
# and Default_Ignorable_Code_Point with all that is reserved for it; the marks of annotations, and
# the blank of Braille.
_INVISIBLE: Final = (
    r"\u0020\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    r"\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_HAS_VISIBLE: Final = rf"(?=[{_INVISIBLE}]*[^{_INVISIBLE}])"

_USER_ID = re.compile(r"[!-~](?:[ -~]{0,126}[!-~])?")
_KEY = re.compile(r"[!-~]{1,255}")
_QUOTED_KEY = re.compile(r'"((?:[!#-\[\]-~]|\\["\\])+)"')
_NAME = re.compile(_HAS_VISIBLE + r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,64}")
_DESCRIPTION = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]{0,1024}")


def _plain(text: str) -> str:
    """Return the characters that were checked: a host's subclass may be converted to others.

    An enumeration's member, or a text that masks itself in logs, has a `__str__` of its own.
    """
    return str.__str__(text)


class UserId(str):
    """A user as the token's `sub`: 1 to 128 printable ASCII characters, no blank at either end.

    With blanks there, two users could have ids that look the same.
    """

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Raise `ValueError` for anything else."""
        if not isinstance(value, str) or _USER_ID.fullmatch(value) is None:
            message = (
                f"a user id has 1 to {USER_ID_CHARACTERS_MAX} printable ASCII characters,"
                " the first and the last no blank"
            )
            raise ValueError(message)
        return str.__new__(cls, _plain(value))


class IdempotencyKey(str):
    """The client's name for one attempt: 1 to 255 characters of "!" to "~"."""

    __slots__ = ()

    def __new__(cls, value: object) -> Self:
        """Raise `KeyInvalid` for anything else."""
        if not isinstance(value, str) or _KEY.fullmatch(value) is None:
            raise KeyInvalid
        return str.__new__(cls, _plain(value))

    @classmethod
    def parse(cls, field: str) -> Self:
        """Read a header field: the bare key, or the same key as a quoted string (RFC 9651, 3.3.3).

        Raises `KeyInvalid`.
        """
        if not field.startswith('"'):
            return cls(field)
        quoted = _QUOTED_KEY.fullmatch(field)
        if quoted is None:
            raise KeyInvalid(_QUOTED_KEY_RULE)
        return cls(re.sub(r"\\(.)", r"\1", quoted[1]))


@dataclass(frozen=True, slots=True)
class NewGroup:
    """The group that a request asks for, however the request is spelled.

    A host that makes one itself may pass members in any order, more than once, and the owner among
    them. Raises `ValueError` for a group that no request could ask for.
    """

    owner: UserId
    name: str
    description: str | None
    members: tuple[UserId, ...]
    """Sorted, each once, without the owner."""

    def __post_init__(self) -> None:
        """Parse what a host has passed, by the rules of a request."""
        members: object = self.members
        if isinstance(members, (tuple, set, frozenset)):
            members = list(members)
        document = {"name": self.name, "description": self.description, "members": members}
        try:
            read = NewGroup.parse(self.owner, document)
        except RequestInvalid as error:
            message = f"this is no group that can be created: {error}"
            raise ValueError(message) from error
        object.__setattr__(self, "owner", read.owner)
        object.__setattr__(self, "name", read.name)
        object.__setattr__(self, "description", read.description)
        object.__setattr__(self, "members", read.members)

    @classmethod
    def parse(cls, owner: UserId, document: object) -> NewGroup:
        """Parse a request's document; raises `RequestInvalid` with all its errors at once.

        Raises `ValueError` for an owner that is no user id.
        """
        if not isinstance(document, dict):
            raise RequestInvalid([FieldError("", "must be an object")])
        unknown = (field for field in document if field not in _FIELDS)
        # No more than are reported: a body has room for tens of thousands.
        errors = [
            FieldError(f"/{_escaped(field)}", "unknown field")
            for field in islice(unknown, FIELD_ERRORS_MAX)
        ]
        name: object = document.get("name")
        description: object = document.get("description")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            errors.append(FieldError("/name", _NAME_RULE if "name" in document else "is required"))
        if description is not None and (
            not isinstance(description, str) or _DESCRIPTION.fullmatch(description) is None
        ):
            errors.append(FieldError("/description", _DESCRIPTION_RULE))
        members = _parse_members(document.get("members", []), errors)
        if errors:
            raise RequestInvalid(errors[:FIELD_ERRORS_MAX])
        assert isinstance(name, str)
        assert description is None or isinstance(description, str)
        description = None if description is None else _plain(description)
        owner = owner if type(owner) is UserId else UserId(owner)
        return cls._read(owner, _plain(name), description, tuple(sorted(members - {owner})))

    @classmethod
    def _read(
        cls, owner: UserId, name: str, description: str | None, members: tuple[UserId, ...]
    ) -> NewGroup:
        """Return a group from parsed values: parsing them again would double a request's cost."""
        group = object.__new__(cls)
        object.__setattr__(group, "owner", owner)
        object.__setattr__(group, "name", name)
        object.__setattr__(group, "description", description)
        object.__setattr__(group, "members", members)
        return group

    def fingerprint(self) -> bytes:
        """Return a digest of the meaning: the same for every spelling of a request."""
        meaning = orjson.dumps((self.name, self.description, self.members))
        return digest(meaning)


@dataclass(frozen=True, slots=True)
class CreatedGroup:
    """A committed group, as every successful answer names it."""

    group_id: UUID
    conversation_id: UUID


@dataclass(frozen=True, slots=True)
class Group:
    """A group as its members see it."""

    group_id: UUID
    conversation_id: UUID
    owner_id: str
    name: str
    description: str | None
    created_at: datetime
    members_count: int


@dataclass(frozen=True, slots=True)
class Member:
    """One user's part in a group; `role` is owner or member."""

    user_id: str
    role: str
    joined_at: datetime


def digest(content: bytes) -> bytes:
    """Return a digest that distinguishes contents, as long as a fingerprint."""
    return blake2b(content, digest_size=FINGERPRINT_BYTES).digest()


def group_id(owner: str, key: str) -> UUID:
    """Return the id of the group that this owner's attempt with this key creates.

    Clients may compute it before they send anything (RFC 9562, name-based UUIDs).
    """
    require_kind("owner", owner, str)
    require_kind("key", key, str)
    return UUID(bytes=group_id_bytes(owner, key))


def group_id_bytes(owner: str, key: str) -> bytes:
    """Return the same id as bytes: making a UUID takes longer than the whole look-up of a replay."""
    return uuid_utils.uuid5(_namespace(_plain(owner)), _plain(key)).bytes


@lru_cache(maxsize=OWNERS_REMEMBERED_MAX)
def _namespace(owner: str) -> uuid_utils.UUID:
    """Return the namespace of an owner's keys; most owners use it more than once.

    Only plain text comes here: a host's subclass may have an equality of its own.
    """
    return uuid_utils.UUID(bytes=uuid5(NAMESPACE, owner).bytes)


def event_id(conversation: UUID) -> UUID:
    """Return the id of the event of the group with this conversation.

    It is the same each time that the event is sent. A group that is created again after it was lost
    has another conversation, so that its event has another id: equal ids mean equal content.
    """
    require_kind("conversation", conversation, UUID)
    return uuid5(conversation, EVENT_TYPE)


_QUOTED_KEY_RULE = (
    'A key that begins with " must be a quoted string (RFC 9651, 3.3.3): between two ", with a \\'
    ' before each " and \\ in it.'
)
_NAME_RULE = (
    f"must be 1 to {NAME_CHARACTERS_MAX} characters without control characters, and one of them"
    " visible"
)
_DESCRIPTION_RULE = (
    f"must be at most {DESCRIPTION_CHARACTERS_MAX} characters without control characters"
    " other than tab and line ends"
)


def _parse_members(value: object, errors: list[FieldError]) -> set[UserId]:
    if not isinstance(value, list) or len(value) > MEMBERS_MAX:
        errors.append(FieldError("/members", f"must be a list of at most {MEMBERS_MAX} user ids"))
        return set()
    try:
        return set(map(UserId, value))
    except ValueError:
        pass  # look for the invalid ones only where there are some
    members: set[UserId] = set()
    for position, member in enumerate(value):
        try:
            members.add(UserId(member))
        except ValueError as error:
            errors.append(FieldError(f"/members/{position}", str(error)))
    return members


def _escaped(field: str) -> str:
    """Return the field's name as a part of a JSON pointer (RFC 6901, 3)."""
    return shortened(field).replace("~", "~0").replace("/", "~1")
