"""The domain: groups, and the ids that follow from users and keys.

Input is parsed here, once, into frozen types; all other code relies on them. This module does no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, UUID

import orjson
import uuid_utils

from stretto.errors import FieldError, RequestInvalid
from stretto.identifiers import (
    KEY_CHARACTERS_MAX,
    USER_ID_CHARACTERS_MAX,
    IdempotencyKey,
    UserId,
    plain,
)
from stretto.kinds import require_kind
from stretto.members import FIELD_ERRORS_MAX, MEMBERS_MAX, parse_members, unknown_fields
from stretto.metadata import Metadata, MetadataInvalid
from stretto.uuids import uuid5, uuid_of
from stretto.visible import HAS_VISIBLE

if TYPE_CHECKING:
    from datetime import datetime

# Others import them from here.
__all__ = [
    "FIELD_ERRORS_MAX",
    "KEY_CHARACTERS_MAX",
    "MEMBERS_MAX",
    "USER_ID_CHARACTERS_MAX",
    "IdempotencyKey",
    "UserId",
]

NAMESPACE: Final = uuid5(NAMESPACE_URL, "urn:stretto:create_group")
# The type of the event that a creation has; those of changes are in `postgres/changes.py`.
EVENT_TYPE: Final = "group.created"
# It is a part of a subject of the bus: NATS ends a connection that sends a line of more than 4,096 bytes.
EVENT_TYPE_CHARACTERS_MAX: Final = 128

NAME_CHARACTERS_MAX: Final = 64
DESCRIPTION_CHARACTERS_MAX: Final = 1024
KIND_CHARACTERS_MAX: Final = 64
# RFC 7518, 3.2: an HS256 key has at least as many bits as the hash.
TOKEN_SECRET_BYTES_MIN: Final = 32
# 128 bits distinguish requests; a client that forges a collision harms only itself.
FINGERPRINT_BYTES: Final = 16
OWNERS_REMEMBERED_MAX: Final = 10_000
_FIELDS: Final = frozenset({"name", "description", "members", "kind", "metadata"})
# Of a group, in their order.
_PARSED: Final = (
    *("owner", "name", "description", "members"),
    *("kind", "metadata", "admins", "claims"),
)

# The OpenAPI document has these rules as patterns of JSON Schema; a test compares them. Names and
# descriptions are shown to people: they have no control characters and no lone surrogates.
_NAME = re.compile(HAS_VISIBLE + r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,64}")
_DESCRIPTION = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]{0,1024}")
# A name for programs: such as Matrix's, with dots between the parts of a namespace.
_KIND = re.compile(rf"[a-z][a-z0-9._-]{{0,{KIND_CHARACTERS_MAX - 1}}}")


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
    kind: str | None = None
    metadata: Metadata | None = None
    """A JSON object as text; `metadata.value` is the object."""
    admins: tuple[UserId, ...] = ()
    """Those of the members who are admins, sorted."""
    claims: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """Of the token that the request came with, for the host's code; not a part of the group.

    Those of a token are read-only at every depth: objects are mappings, arrays are tuples.
    """

    def __post_init__(self) -> None:
        """Parse what a host has passed, by the rules of a request."""
        members: object = self.members
        if isinstance(members, (tuple, set, frozenset)):
            members = list(members)
        document = {
            "name": self.name,
            "description": self.description,
            "members": members,
            "kind": self.kind,
            "metadata": self.metadata,
        }
        try:
            read = NewGroup.parse(self.owner, document, self.claims)
        except RequestInvalid as error:
            message = f"this is no group that can be created: {error}"
            raise ValueError(message) from error
        admins = tuple(sorted({UserId(user) for user in self.admins} - {read.owner}))
        if not {*read.members}.issuperset(admins):
            message = "this is no group that can be created: an admin is none of its members"
            raise ValueError(message)
        for name in _PARSED:
            object.__setattr__(self, name, getattr(read, name))
        object.__setattr__(self, "admins", admins)

    @classmethod
    def parse(
        cls, owner: UserId, document: object, claims: Mapping[str, Any] | None = None
    ) -> NewGroup:
        """Parse a request's document; raises `RequestInvalid` with all its errors at once.

        `claims` are those of the request's token. Raises `ValueError` for an owner that is no user id.
        """
        if claims is not None:
            require_kind("claims", claims, Mapping)
        if not isinstance(document, dict):
            raise RequestInvalid([FieldError("", "must be an object")])
        errors: list[FieldError] = []
        if not document.keys() <= _FIELDS:
            errors = unknown_fields(document, _FIELDS, "")
        name: object = document.get("name")
        description: object = document.get("description")
        kind: object = document.get("kind")
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            errors.append(FieldError("/name", _NAME_RULE if "name" in document else "is required"))
        if description is not None and (
            not isinstance(description, str) or _DESCRIPTION.fullmatch(description) is None
        ):
            errors.append(FieldError("/description", _DESCRIPTION_RULE))
        if kind is not None and (not isinstance(kind, str) or _KIND.fullmatch(kind) is None):
            errors.append(FieldError("/kind", _KIND_RULE))
        metadata: object = document.get("metadata")
        if metadata is not None:
            metadata = _parse_metadata(metadata, errors)
        members, admins = parse_members(document.get("members", []), errors)
        if errors:
            raise RequestInvalid(errors[:FIELD_ERRORS_MAX])
        assert isinstance(name, str)
        assert description is None or isinstance(description, str)
        assert kind is None or isinstance(kind, str)
        owner = owner if type(owner) is UserId else UserId(owner)
        # Not by the constructor: parsing a second time would double a request's cost.
        group = object.__new__(cls)
        write = object.__setattr__
        write(group, "owner", owner)
        write(group, "name", plain(name))
        write(group, "description", None if description is None else plain(description))
        write(group, "members", tuple(sorted(members - {owner})))
        write(group, "kind", None if kind is None else plain(kind))
        write(group, "metadata", metadata)
        write(group, "admins", tuple(sorted(admins - {owner})) if admins else ())
        write(group, "claims", claims)
        return group

    @property
    def is_plain(self) -> bool:
        """Whether it has neither kind nor metadata nor admins."""
        return self.kind is None and self.metadata is None and not self.admins

    def fingerprint(self) -> bytes:
        """Return a digest of the meaning: the same for every spelling of a request.

        That of a plain group is the one that it had before there were other fields.
        """
        if self.is_plain:
            return digest(orjson.dumps((self.name, self.description, self.members)))
        meaning = (self.name, self.description, self.members, self.kind, self.metadata, self.admins)
        return digest(orjson.dumps(meaning))


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
    kind: str | None
    metadata_text: str | None
    """As PostgreSQL writes it."""
    created_at: datetime
    members_count: int

    @property
    def metadata(self) -> Metadata | None:
        """A JSON object, parsed by each call; `metadata.value` is its dictionary."""
        text = self.metadata_text
        return None if text is None else Metadata(orjson.loads(text))


@dataclass(frozen=True, slots=True)
class Member:
    """One user's part in a group; `role` is owner, admin or member."""

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
    return uuid_of(group_id_bytes(owner, key))


def group_id_bytes(owner: str, key: str) -> bytes:
    """Return the same id as bytes: making a UUID takes longer than the whole look-up of a replay."""
    return uuid_utils.uuid5(_namespace(plain(owner)), plain(key)).bytes


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


_NAME_RULE = (
    f"must be 1 to {NAME_CHARACTERS_MAX} characters without control characters, and one of them"
    " visible"
)
_DESCRIPTION_RULE = (
    f"must be at most {DESCRIPTION_CHARACTERS_MAX} characters without control characters"
    " other than tab and line ends"
)
_KIND_RULE = (
    f"must be 1 to {KIND_CHARACTERS_MAX} lower-case letters, digits, dots, hyphens and underscores,"
    " the first of them a letter"
)


def _parse_metadata(value: object, errors: list[FieldError]) -> Metadata | None:
    try:
        return Metadata(value)
    except MetadataInvalid as error:
        errors.append(FieldError(f"/metadata{error.pointer}", error.detail))
        return None
