"""Changes of a group after its creation: functions that a host calls in its own transaction.

Each change commits or is rolled back with what else the host writes there, and so does its one event.
A change is idempotent by what it says: what is so already is not changed, and has no event. The
creation's answer names ids alone, so that every replay of its key stays the same. Each raises
`ConfigurationError`, before anything is changed, where codecs of the connection's change its values, policies
may hide rows from its role, or its search_path does not lead to all of our tables in one schema.

The group stays locked until the host's transaction ends. Creations wait for no such lock; other
changes of the group do, and of two transactions that change two groups in opposite orders the server
ends one. An attempt, its claim and its fingerprint are never touched here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from uuid import UUID

from stretto.domain import NewGroup, UserId
from stretto.errors import ChangeRefused, Failure, FieldError, NotFound, RequestInvalid
from stretto.kinds import require_kind
from stretto.members import FIELD_ERRORS_MAX, MEMBERS_MAX, ROLES
from stretto.postgres.queries import QUERIES
from stretto.postgres.server_settings import hidden_rows
from stretto.start_errors import ConfigurationError
from stretto.uuids import uuid7

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import asyncpg

    from stretto.postgres.driver_connection import Connection


class _Keep(Enum):
    KEEP = "as it is"


Keep: TypeAlias = Literal[_Keep.KEEP]
KEEP: Final[Keep] = _Keep.KEEP
"""What is not to be changed; None is a value of its own: no description."""

# The types of the events; `changes.sql` names some of them.
RENAMED: Final = "group.renamed"
MEMBERS_ADDED: Final = "group.members_added"
MEMBERS_REMOVED: Final = "group.members_removed"
ROLE_CHANGED: Final = "group.role_changed"
CHANGE_TYPES: Final = (RENAMED, MEMBERS_ADDED, MEMBERS_REMOVED, ROLE_CHANGED)

# A member of any group, and the name of one: they complete a document whose rest is to be checked.
_ANY: Final = UserId("any")
_ANY_NAME: Final = "any"
# The owner is one more than the members of a creation.
_GROUP_MEMBERS_MAX: Final = MEMBERS_MAX + 1

# A value of each type that a change takes, and of each that it returns: a host's connection may have
# codecs of its own.
_SENT: Final = ("a", ["a", None], True, 7)
_READ: Final = (("text", "a"), ("texts", ["a"]), ("number", 7), ("is_sent", True))

# What the routine `require_home` raises, or the server for a schema that is not there.
_ELSEWHERE_STATE: Final = "3F000"
_ELSEWHERE: Final = (
    "the connection's search_path does not lead to stretto's tables and routines all in one schema: have it name"
    " their schema first"
)

_NO_USERS: Final[Mapping[UserId, str | None]] = {}

# By the verdict of `change_group`.
_REFUSALS: Final = {
    code: Failure(code, detail)
    for code, detail in {
        "last_owner": "A group keeps one owner at least: make another member an owner first.",
        "too_many_members": f"A group has {_GROUP_MEMBERS_MAX} members at most, its owner among them.",
        "not_a_member": "The user is no member of the group.",
    }.items()
}


class _ChangeInvalid(RequestInvalid, ValueError):
    """A request's error, since a host passes on what a request asks for; hosts may catch either."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """What has been changed, once the host's transaction is committed."""

    event_id: UUID
    """A new one for each change: equal ids mean equal content, and a rolled back id is not used again."""
    revision: int
    """The number of the group's changes by then: it orders them where events come in another order."""
    users: tuple[str, ...]
    """Who was added or removed, or has another role; sorted."""


async def rename_group(
    connection: Connection,
    group_id: UUID,
    *,
    name: str | Keep = KEEP,
    description: str | Keep | None = KEEP,
) -> GroupChange | None:
    """Change a group's name, its description, or both; return None where they are so already.

    All members get `group.renamed`. Raises `RequestInvalid` (a `ValueError`, too) for what no creation
    could ask for, and `NotFound`.
    """
    document: dict[str, object] = {
        "name": _ANY_NAME if name is KEEP else name,
        "description": None if description is KEEP else description,
    }
    try:
        read = NewGroup.parse(_ANY, document)
    except RequestInvalid as error:
        raise _ChangeInvalid(error.errors) from error
    texts = (None if name is KEEP else read.name, description is not KEEP, read.description)
    return await _change(connection, group_id, RENAMED, texts=texts)


async def add_members(
    connection: Connection, group_id: UUID, roles: Mapping[str, str]
) -> GroupChange | None:
    """Add users with their roles (owner, admin, member); return None where all are members already.

    Who is a member already keeps the present role. All members, also the new ones, get
    `group.members_added`. Raises `RequestInvalid`, `NotFound`, and `ChangeRefused` if there would be
    too many.
    """
    require_kind("roles", roles, Mapping)
    wanted = _parsed(roles.items(), "/members/{}/user_id", "/members/{}/role")
    return await _change(connection, group_id, MEMBERS_ADDED, wanted)


async def remove_members(
    connection: Connection, group_id: UUID, users: Collection[str]
) -> GroupChange | None:
    """Remove users; return None where none of them is a member.

    All members, also those who are removed, get `group.members_removed`. Raises `RequestInvalid`,
    `NotFound`, and `ChangeRefused` if no owner would be left.
    """
    if isinstance(users, str):
        message = "users must be a collection of user ids, not one text"
        raise TypeError(message)
    wanted = _parsed(((user, None) for user in users), "/members/{}", None)
    return await _change(connection, group_id, MEMBERS_REMOVED, wanted)


async def set_role(
    connection: Connection, group_id: UUID, user: str, role: str
) -> GroupChange | None:
    """Give a member another role; return None where it is that already.

    All members get `group.role_changed`. Raises `RequestInvalid`, `NotFound`, and `ChangeRefused` if
    the user is no member, or if no owner would be left.
    """
    wanted = _parsed([(user, role)], "/user_id", "/role")
    return await _change(connection, group_id, ROLE_CHANGED, wanted)


async def delete_group(connection: Connection, group_id: UUID) -> bool:
    """Delete a group with its members and its conversation; return whether there was one.

    Its key is answered `GroupDeleted` for ever. All members get `group.deleted`.
    """
    require_kind("group_id", group_id, UUID)
    row = await _first_row(connection, QUERIES["delete_group"], group_id, uuid7())
    if row is not None:
        _require_session(row)
    return row is not None


async def _change(
    connection: Connection,
    group_id: UUID,
    event_type: str,
    wanted: Mapping[UserId, str | None] = _NO_USERS,
    *,
    texts: tuple[str | None, bool, str | None] = (None, False, None),
) -> GroupChange | None:
    """Lock the group, then change it; `wanted` has the role that each user is to have, or None."""
    require_kind("group_id", group_id, UUID)
    if not connection.is_in_transaction():
        raise RuntimeError(
            "a change must commit together with its event: call it within"
            " `async with connection.transaction()`"
        )
    group = await _first_row(connection, QUERIES["lock_group"], group_id, *_SENT)
    assert group is not None
    if any((type(group[name]), group[name]) != (type(value), value) for name, value in _READ):
        raise ConfigurationError(
            "the connection does not send or read values as the driver does: leave the codecs of"
            " PostgreSQL's own types as they are, or change groups on a connection of its own"
        )
    _require_session(group)
    if not group["is_there"]:
        message = f"There is no group {group_id}."
        raise NotFound(message)
    event_id = uuid7()
    row = await connection.fetchrow(
        QUERIES["change_group"],
        *(group_id, event_id, event_type, *texts),
        *([*wanted], [*wanted.values()], _GROUP_MEMBERS_MAX),
    )
    assert row is not None
    if row["refusal"] is not None:
        raise ChangeRefused(_REFUSALS[row["refusal"]])
    if not row["is_whole"]:
        # The host's transaction must not be committed: as a group, a change is never half made.
        raise RuntimeError("a trigger has dropped a row of stretto's tables: it must return NEW")
    if row["revision"] is None:
        return None
    return GroupChange(event_id, row["revision"], tuple(row["users"]))


async def _first_row(
    connection: Connection, statement: str, *arguments: object
) -> asyncpg.Record | None:
    try:
        return await connection.fetchrow(statement, *arguments)
    except Exception as error:
        # The driver is not loaded for this alone.
        if getattr(error, "sqlstate", None) != _ELSEWHERE_STATE:
            raise
        raise ConfigurationError(_ELSEWHERE) from error


def _require_session(row: asyncpg.Record) -> None:
    """Raise `ConfigurationError` where a statement has found that its session does not suit."""
    if row["elsewhere"] is not None:
        raise ConfigurationError(_ELSEWHERE)
    violation = hidden_rows(row)
    if violation is not None:
        raise ConfigurationError(violation)


def _parsed(
    given: Iterable[tuple[object, object]], user_at: str, role_at: str | None
) -> Mapping[UserId, str | None]:
    """Return the role that each user is to have; raises `RequestInvalid` with all errors at once.

    The pointers `user_at` and `role_at` are of a request's body; `{}` in them is the position. Without
    the latter no roles are given.
    """
    errors: list[FieldError] = []
    wanted: dict[UserId, str | None] = {}
    for position, (user, role) in enumerate(given):
        known = _role(role)
        if known is None and role_at is not None:
            errors.append(
                FieldError(role_at.format(position), f"must be one of {', '.join(ROLES)}")
            )
        try:
            wanted[UserId(user)] = known
        except ValueError as error:
            errors.append(FieldError(user_at.format(position), str(error)))
    if len(wanted) > MEMBERS_MAX:
        errors.append(FieldError("/members", f"must be at most {MEMBERS_MAX} users"))
    if errors:
        raise _ChangeInvalid(errors[:FIELD_ERRORS_MAX])
    return wanted


def _role(role: object) -> str | None:
    """Return the role of that name: a host's text may be a subclass, such as an enumeration's member."""
    return next((known for known in ROLES if known == role), None)
