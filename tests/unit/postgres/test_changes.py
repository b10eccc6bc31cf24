"""What no change can be is refused before anything is sent, by the rules of creation."""

from __future__ import annotations

import pickle
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson
import pytest

import stretto
from stretto.domain import DESCRIPTION_CHARACTERS_MAX, NAME_CHARACTERS_MAX
from stretto.members import FIELD_ERRORS_MAX, MEMBERS_MAX
from stretto.postgres import changes

GROUP = UUID(int=7)
MANY = [f"u{number}" for number in range(MEMBERS_MAX + 1)]
# Anything that is sent fails: it has no method.
CONNECTION: Any = object()


class Role(StrEnum):
    """A host's own roles."""

    ADMIN = "admin"


@pytest.mark.parametrize(
    ("message", "change", "arguments"),
    [
        ("/name: must be 1 to 64", stretto.rename_group, {"name": ""}),
        ("/name: must be", stretto.rename_group, {"name": "n" * (NAME_CHARACTERS_MAX + 1)}),
        ("/name: must be", stretto.rename_group, {"name": "\u2800"}),
        ("/name: must be", stretto.rename_group, {"name": None}),
        (
            "/description: must be at most",
            stretto.rename_group,
            {"description": "d" * (DESCRIPTION_CHARACTERS_MAX + 1)},
        ),
        ("/description: must be", stretto.rename_group, {"name": "n", "description": "\0"}),
        (
            "/members/1/user_id: a user id has 1 to 128",
            stretto.add_members,
            {"roles": {"bob": "member", "": "member"}},
        ),
        ("/members/0/user_id: a user id has", stretto.add_members, {"roles": {7: "member"}}),
        (
            "/members/0/role: must be one of owner, admin, member",
            stretto.add_members,
            {"roles": {"bob": "guest"}},
        ),
        ("/members/0/role: must be", stretto.add_members, {"roles": {"bob": None}}),
        (
            "/members: must be at most 1000 users",
            stretto.add_members,
            {"roles": dict.fromkeys(MANY, "member")},
        ),
        ("/members: must be at most 1000 users", stretto.remove_members, {"users": MANY}),
        ("/members/0: a user id has 1 to 128", stretto.remove_members, {"users": ["bob "]}),
        ("/user_id: a user id has 1 to 128", stretto.set_role, {"user": "", "role": "admin"}),
        ("/role: must be one of", stretto.set_role, {"user": "bob", "role": "guest"}),
    ],
)
async def test_what_no_creation_could_ask_for_is_no_change(
    message: str, change: Any, arguments: dict[str, Any]
) -> None:
    """The error says where, and what is allowed; as an answer it is a creation's 400."""
    with pytest.raises(stretto.RequestInvalid, match=f"^{message}") as raised:
        await change(CONNECTION, GROUP, **arguments)
    assert isinstance(raised.value, ValueError)
    problem = stretto.problem_of(raised.value)
    pointer, _, _ = message.partition(":")
    assert (400, pointer) == (problem.status, orjson.loads(problem.body)["errors"][0]["pointer"])
    assert str(raised.value) == str(pickle.loads(pickle.dumps(raised.value)))


async def test_all_that_is_wrong_with_a_change_is_reported_at_once() -> None:
    """But for what is beyond the most errors of an answer."""
    with pytest.raises(stretto.RequestInvalid) as raised:
        await stretto.add_members(CONNECTION, GROUP, {"": "guest", "bob": "member", " ": "admin"})
    assert ["/members/0/role", "/members/0/user_id", "/members/2/user_id"] == [
        each.pointer for each in raised.value.errors if isinstance(each, stretto.FieldError)
    ]
    with pytest.raises(stretto.RequestInvalid) as raised:
        await stretto.remove_members(CONNECTION, GROUP, [""] * (FIELD_ERRORS_MAX + 1))
    assert FIELD_ERRORS_MAX == len(raised.value.errors)


@pytest.mark.parametrize(
    ("message", "change", "arguments"),
    [
        ("^users must be a collection of user ids", stretto.remove_members, (GROUP, "bob")),
        ("^roles must be collections.abc.Mapping", stretto.add_members, (GROUP, ["bob"])),
        ("^group_id must be uuid.UUID", stretto.set_role, (str(GROUP), "bob", "admin")),
    ],
)
async def test_another_kind_of_argument_is_refused_by_its_name(
    message: str, change: Any, arguments: tuple[Any, ...]
) -> None:
    """A single text would be a collection of letters."""
    with pytest.raises(TypeError, match=message):
        await change(CONNECTION, *arguments)


def test_a_hosts_own_kind_of_role_is_sent_as_ours() -> None:
    """The driver, or a text's own conversion, may make something else of it."""
    assert str is type(changes._role(Role.ADMIN))
