"""Parses the members of a new group: ids, or objects with an id and a role."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from stretto.errors import FieldError, pointer_part
from stretto.identifiers import UserId

if TYPE_CHECKING:
    from collections.abc import Mapping

# One group's rows are written by one statement together with its neighbours': a bound on the batch.
MEMBERS_MAX: Final = 1000
# A body with a thousand invalid members is not answered with a thousand errors.
FIELD_ERRORS_MAX: Final = 20
# A creator may give members one of these; the owner has a role of its own.
ADMIN: Final = "admin"
MEMBER: Final = "member"
# What a host may make of a member later.
ROLES: Final = ("owner", ADMIN, MEMBER)
_MEMBER_FIELDS: Final = frozenset({"user_id", "role"})
_MEMBERS_RULE = (
    f"must be a list of at most {MEMBERS_MAX} user ids, or objects with a user_id and a role"
)


def parse_members(
    value: object, errors: list[FieldError]
) -> tuple[set[UserId], set[UserId] | None]:
    """Return the members, and those of them who are admins: of two roles the higher one counts."""
    if not isinstance(value, list) or len(value) > MEMBERS_MAX:
        errors.append(FieldError("/members", _MEMBERS_RULE))
        return set(), None
    try:
        return set(map(UserId, value)), None
    except ValueError:
        pass  # look at each only where some are no user ids
    members: set[UserId] = set()
    admins: set[UserId] = set()
    for position, member in enumerate(value):
        if len(errors) >= FIELD_ERRORS_MAX:
            break
        place, user, role = f"/members/{position}", member, MEMBER
        if isinstance(member, dict):
            errors += unknown_fields(member, _MEMBER_FIELDS, place)
            user, role = member.get("user_id"), member.get("role", MEMBER)
            if role not in (ADMIN, MEMBER):
                errors.append(FieldError(f"{place}/role", f"must be {ADMIN} or {MEMBER}"))
            place += "/user_id"
        try:
            members.add(UserId(user))
        except ValueError as error:
            errors.append(FieldError(place, str(error)))
        else:
            if role == ADMIN:
                admins.add(UserId(user))
    return members, admins


def unknown_fields(
    document: Mapping[str, object], known: frozenset[str], pointer: str
) -> list[FieldError]:
    """Return an error for each field that is not known, but for no more than are reported."""
    unknown = (name for name in document if name not in known)
    # A body has room for tens of thousands.
    return [
        FieldError(f"{pointer}/{pointer_part(name)}", "unknown field")
        # Only a host's own document has others.
        if isinstance(name, str)
        else FieldError(pointer, "must have names that are text")
        for name in islice(unknown, FIELD_ERRORS_MAX)
    ]
