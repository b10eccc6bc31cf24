from __future__ import annotations

import sys
from dataclasses import replace
from enum import Enum
from typing import Any
from unicodedata import category
from uuid import UUID

import orjson
import pytest

from stretto import domain
from stretto.codec import problem
from stretto.domain import (
    DESCRIPTION_CHARACTERS_MAX,
    FIELD_ERRORS_MAX,
    KEY_CHARACTERS_MAX,
    MEMBERS_MAX,
    NAME_CHARACTERS_MAX,
    NAMESPACE,
    USER_ID_CHARACTERS_MAX,
    IdempotencyKey,
    NewGroup,
    UserId,
    event_id,
    group_id,
)
from stretto.errors import FieldError, KeyInvalid, RequestInvalid

ALICE = UserId("alice")
FULL: dict[str, Any] = {"name": "Team", "description": "Ours.", "members": ["bob", "carol"]}

# Worked out from RFC 9562, 5.5 with nothing but SHA-1: stored ids must never come out differently.
GROUP_IDS = {
    ("alice", "key-1"): UUID("a99d9e3e-99b7-5482-83c8-75300fa35d19"),
    ("alice", "key-2"): UUID("ea87d53d-e88a-5669-9b69-510158c5495b"),
    ("bob", "key-1"): UUID("d0ae340b-8af8-5570-a4d6-4665e225b217"),
}


def pointers_of_faults(document: object) -> list[str]:
    """Return where the parser finds errors."""
    with pytest.raises(RequestInvalid) as refusal:
        NewGroup.parse(ALICE, document)
    return [error.pointer for error in refusal.value.errors if isinstance(error, FieldError)]


def test_the_namespace_never_changes() -> None:
    """Every id follows from it."""
    assert UUID("bcba2d1e-8f96-5fc9-9659-08035466c69e") == NAMESPACE


@pytest.mark.parametrize(("owner_and_key", "expected"), GROUP_IDS.items())
def test_a_groups_id_follows_from_owner_and_key(
    owner_and_key: tuple[str, str], expected: UUID
) -> None:
    """Clients work it out for themselves, so it is part of the contract."""
    assert expected == group_id(*owner_and_key)


def test_an_events_id_follows_from_the_groups() -> None:
    """Consumers recognise an event that is sent again."""
    expected = UUID("d5079150-5b88-5e84-bde1-bb1255994130")
    assert expected == event_id(GROUP_IDS["alice", "key-1"])


def test_owner_and_key_cannot_be_shifted_against_each_other() -> None:
    """What is left of the border between the two counts as owner and nothing else."""
    assert group_id("alice", "1") != group_id("alice1", "")
    assert group_id("ab", "c") != group_id("a", "bc")


@pytest.mark.parametrize(
    ("expected", "field"),
    [
        ("a", "a"),
        ("!", "!"),
        ("~", "~"),
        ("k" * KEY_CHARACTERS_MAX, "k" * KEY_CHARACTERS_MAX),
        ('a"b', 'a"b'),
        (r"a\b", r"a\b"),
        ("abc", '"abc"'),
        ("k" * KEY_CHARACTERS_MAX, f'"{"k" * KEY_CHARACTERS_MAX}"'),
        ('"', r'"\""'),
        ("\\", r'"\\"'),
        (r"\"", r'"\\\""'),
        ('"' * KEY_CHARACTERS_MAX, '"' + r"\"" * KEY_CHARACTERS_MAX + '"'),
    ],
)
def test_a_key_is_the_same_bare_or_quoted(expected: str, field: str) -> None:
    """A quoted string is another spelling of the key inside (RFC 9651, 3.3.3)."""
    assert expected == IdempotencyKey.parse(field)


@pytest.mark.parametrize(
    "field",
    [
        "",
        " ",
        "a b",
        "a\tb",
        "a\n",
        "\x7f",
        "é",
        "\udce9",
        "k" * (KEY_CHARACTERS_MAX + 1),
        '"',
        '""',
        '"abc',
        '"abc"d',
        '"a"b"',
        '"a b"',
        '"é"',
        r'"abc\"',
        r'"a\bc"',
        '"abc"\n',
        '"abc";a=1',
        f'"{"k" * (KEY_CHARACTERS_MAX + 1)}"',
    ],
)
def test_anything_else_is_no_key(field: str) -> None:
    """A doubtful key is refused: guessing could make one attempt of two."""
    with pytest.raises(KeyInvalid):
        IdempotencyKey.parse(field)


def test_a_quoted_key_that_is_too_long_is_refused_by_its_length() -> None:
    """Its characters are not looked at."""
    with pytest.raises(KeyInvalid) as refused:
        IdempotencyKey.parse('"' + "k" * 2 * (KEY_CHARACTERS_MAX + 1))
    assert KeyInvalid.message == refused.value.detail


@pytest.mark.parametrize("value", ["a", "a b", "~", "x" * USER_ID_CHARACTERS_MAX])
def test_a_user_id_is_printable_ascii(value: str) -> None:
    """The token's issuer chooses it; only its characters and its ends are ours to judge."""
    assert value == UserId(value)


@pytest.mark.parametrize(
    "value",
    [
        *("", "x" * (USER_ID_CHARACTERS_MAX + 1), "é", "a\n", "\x00", "\x7f", None, 1, b"a"),
        *("aéa", "a\ta", "a\x7fa", "a\u00a0a"),
    ],
)
def test_anything_else_is_no_user_id(value: object) -> None:
    """It goes into logs of others, headers and an ASCII-only column."""
    with pytest.raises(ValueError, match="printable ASCII"):
        UserId(value)


def test_members_in_any_order_are_the_same_request() -> None:
    """A set of texts has another order in every process: so many cannot be sorted by chance."""
    members = [UserId(f"m{number:02}") for number in range(50)]
    document = {"name": "T", "members": members[::-1]}
    assert tuple(members) == NewGroup.parse(ALICE, document).members


@pytest.mark.parametrize(
    ("expected", "document"),
    [
        (NewGroup(ALICE, "T", None, ()), {"name": "T"}),
        (NewGroup(ALICE, "T", None, ()), {"name": "T", "description": None, "members": []}),
        (NewGroup(ALICE, "T", "", ()), {"name": "T", "description": ""}),
        (NewGroup(ALICE, "T", "a\tb\r\nc\n", ()), {"name": "T", "description": "a\tb\r\nc\n"}),
        (NewGroup(ALICE, "é" * 64, None, ()), {"name": "é" * NAME_CHARACTERS_MAX}),
        # Characters are counted as people see code points: neither bytes nor UTF-16 units.
        (NewGroup(ALICE, "\U0001f3b6" * 64, None, ()), {"name": "\U0001f3b6" * 64}),
        (
            NewGroup(ALICE, "T", "d" * 1024, ()),
            {"name": "T", "description": "d" * DESCRIPTION_CHARACTERS_MAX},
        ),
        (
            NewGroup(ALICE, "T", None, (UserId("bob"), UserId("carol"))),
            {"name": "T", "members": ["carol", "bob", "alice", "bob"]},
        ),
        (
            NewGroup(ALICE, "T", None, (UserId("bob"),)),
            {"name": "T", "members": ["bob"] * MEMBERS_MAX},
        ),
    ],
)
def test_a_document_is_read_for_what_it_means(
    expected: NewGroup, document: dict[str, object]
) -> None:
    """Members are a set without the owner, sorted; a description may be missing or empty."""
    assert expected == NewGroup.parse(ALICE, document)


@pytest.mark.parametrize(
    ("expected", "document"),
    [
        ([""], None),
        ([""], []),
        ([""], "Team"),
        (["/name"], {}),
        (["/name"], {"name": None}),
        (["/name"], {"name": 1}),
        (["/name"], {"name": ""}),
        (["/name"], {"name": "x" * (NAME_CHARACTERS_MAX + 1)}),
        (["/name"], {"name": "a\nb"}),
        (["/name"], {"name": "a\n"}),
        (["/name"], {"name": "a\x00"}),
        (["/name"], {"name": " "}),
        (["/name"], {"name": " \u00a0\u2003\u200b\u3000\ufeff"}),
        (["/name"], {"name": "\u00ad\u3164\ufe0f\u2800\U000e0020"}),
        (["/members/0", "/members/1"], {"name": "x", "members": [" bob", "bob "]}),
        (["/name"], {"name": "a\x7f"}),
        (["/name"], {"name": "a\x9f"}),
        (["/name"], {"name": "a\ud800"}),
        (["/description"], {"name": "T", "description": 1}),
        (["/description"], {"name": "T", "description": "d" * (DESCRIPTION_CHARACTERS_MAX + 1)}),
        (["/description"], {"name": "T", "description": "\x00"}),
        (["/description"], {"name": "T", "description": "\x0b"}),
        (["/description"], {"name": "T", "description": "\udfff"}),
        (["/members"], {"name": "T", "members": None}),
        (["/members"], {"name": "T", "members": "bob"}),
        (["/members"], {"name": "T", "members": {"bob": 1}}),
        (["/members"], {"name": "T", "members": ["bob"] * (MEMBERS_MAX + 1)}),
        (["/members/1"], {"name": "T", "members": ["bob", ""]}),
        (["/members/0", "/members/2"], {"name": "T", "members": [1, "bob", None]}),
        (["/members/0"], {"name": "T", "members": ["bob\n"]}),
        (["/members/0"], {"name": "T", "members": [["bob"]]}),
        (["/title"], {"name": "T", "title": "T"}),
        (["/Name", "/name"], {"Name": "T"}),
        (["/"], {"name": "T", "": 1}),
        (["/a~1b~0c"], {"name": "T", "a/b~c": 1}),
        (
            ["/x", "/name", "/description", "/members/0"],
            {"x": 1, "name": "", "description": 1, "members": [1]},
        ),
    ],
)
def test_every_error_is_reported_where_it_is(expected: list[str], document: object) -> None:
    """All at once, each by a JSON pointer (RFC 6901)."""
    assert expected == pointers_of_faults(document)


@pytest.mark.parametrize("character", ["/", "~", "a", "\x01", "\U0001f600"])
def test_a_long_field_is_named_by_its_beginning(character: str) -> None:
    """An answer must not be a multiple of what was asked; one of the longest is named in full."""
    for length, expected in ((64, character * 64), (65, character * 64 + "…"), (250_000, None)):
        (pointer,) = pointers_of_faults({"name": "T", character * length: 1})
        name = pointer[1:].replace("~1", "/").replace("~0", "~")
        assert (expected or character * 64 + "…") == name
    fields = {f"{number:02}{character * 12_000}": 1 for number in range(FIELD_ERRORS_MAX + 1)}
    with pytest.raises(RequestInvalid) as refusal:
        NewGroup.parse(ALICE, fields)
    assert len(orjson.dumps(problem(refusal.value))) < 32 * 1024


# Of category Cf, and yet they are drawn: numbers, abbreviations and ends of verses.
DRAWN = {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
# These arrange hieroglyphs; each version of Unicode has more of them.
ARRANGING = {*range(0x13430, 0x13460)}
# Of other categories, or reserved: Default_Ignorable_Code_Point, and the blank of Braille.
IGNORABLE = {
    *(
        0x34F,
        0x115F,
        0x1160,
        0x17B4,
        0x17B5,
        0x180B,
        0x180C,
        0x180D,
        0x180F,
        0x2065,
        0x2800,
        0x3164,
    ),
    *range(0xFE00, 0xFE10),
    *(0xFFA0, *range(0xFFF0, 0xFFF9)),
    *range(0xE0000, 0xE1000),
}
# The code charts show no glyph for these.
BLANK = {0x13441, 0x13442, 0x16FE4, 0x1D159}
# Noncharacter_Code_Point.
NONCHARACTERS = {
    *range(0xFDD0, 0xFDF0),
    *(plane << 16 | end for plane in range(17) for end in (0xFFFE, 0xFFFF)),
}


def test_a_name_needs_a_character_that_shows() -> None:
    """By Unicode's properties, for each of its characters, and none that shows is refused."""
    refused = {code for code in range(sys.maxunicode + 1) if not domain._NAME.fullmatch(chr(code))}
    kinds = {"Zs", "Zl", "Zp", "Cc", "Cf", "Cs"}
    hidden = {code for code in range(sys.maxunicode + 1) if category(chr(code)) in kinds}
    assert hidden - DRAWN - ARRANGING | IGNORABLE | BLANK | NONCHARACTERS == refused
    # Beside one that shows there may be any, as in emoji and in Arabic words.
    assert NewGroup.parse(ALICE, {"name": "\u200d\u2764\ufe0f\u200d"})


def test_not_more_errors_are_reported_than_help() -> None:
    """A thousand wrong members are not answered with a thousand errors, nor faults of all kinds."""
    document: dict[str, object] = {"name": "T", "members": [1] * MEMBERS_MAX}
    assert len(pointers_of_faults(document)) == FIELD_ERRORS_MAX
    document |= {"name": ""} | {f"field{number}": 1 for number in range(FIELD_ERRORS_MAX)}
    assert len(pointers_of_faults(document)) == FIELD_ERRORS_MAX


def test_a_missing_name_is_distinguished_from_a_wrong_one() -> None:
    """The detail says what to do."""
    with pytest.raises(RequestInvalid, match="/name: is required"):
        NewGroup.parse(ALICE, {})
    with pytest.raises(RequestInvalid, match=f"/name: must be 1 to {NAME_CHARACTERS_MAX} "):
        NewGroup.parse(ALICE, {"name": ""})


@pytest.mark.parametrize(
    "members",
    [
        ["carol", "bob"],
        ("bob", "carol", "bob"),
        {"carol", "bob", "alice"},
        frozenset({"bob", "carol"}),
        (UserId("bob"), "carol"),
    ],
)
@pytest.mark.parametrize("owner", [ALICE, "alice"])
def test_a_group_that_a_host_makes_is_read_as_a_request_is(owner: Any, members: Any) -> None:
    """The same group, with the same fingerprint, however the host has spelt it."""
    expected = NewGroup.parse(ALICE, {"name": "T", "members": ["bob", "carol"]})
    made = NewGroup(owner, "T", None, members)
    assert expected == made
    assert expected.fingerprint() == made.fingerprint()
    assert {UserId} == {type(user) for user in (made.owner, *made.members)}
    assert expected == replace(made, members=(UserId("carol"), UserId("bob")))


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("a user id has 1 to", {"owner": ""}),
        ("a user id has 1 to", {"owner": "a\n"}),
        ("a user id has 1 to", {"owner": None}),
        ("/name: must be", {"name": ""}),
        ("/name: must be", {"name": None}),
        ("/name: must be", {"name": 5}),
        ("/name: must be", {"name": "x" * (NAME_CHARACTERS_MAX + 1)}),
        ("/description: must be", {"description": "\x00"}),
        ("/description: must be", {"description": b"d"}),
        ("/members: must be a list", {"members": "bob"}),
        ("/members: must be a list", {"members": None}),
        ("/members: must be a list", {"members": {"bob": 1}}),
        ("/members: must be a list", {"members": iter(["bob"])}),
        ("/members: must be a list", {"members": ("bob",) * (MEMBERS_MAX + 1)}),
        ("/members/1: a user id", {"members": ("bob", "")}),
        ("/members/0: a user id", {"members": (None,)}),
        ("/members/0: a user id", {"members": (object(),)}),
        ("/members/0: a user id", {"members": [["bob"]]}),
        ("/members/0: a user id", {"members": ("é",)}),
        ("/kind: must be", {"kind": "Project"}),
        ("/kind: must be", {"kind": 5}),
        ("/metadata: must be an object", {"metadata": '{"a":1}'}),
        ("/metadata/a: must be a number", {"metadata": {"a": float("nan")}}),
        ("an admin is none of its members", {"admins": ("bob",)}),
        ("a user id has 1 to", {"admins": ("",)}),
    ],
)
def test_a_group_that_no_request_could_ask_for_is_not_made(
    words: str, wrong: dict[str, Any]
) -> None:
    """No caller gets one that the database refuses, or that spoils the batch of its neighbours."""
    fields: dict[str, Any] = {"owner": ALICE, "name": "T", "description": None, "members": ()}
    with pytest.raises(ValueError, match=words):
        NewGroup(**fields | wrong)


def test_a_request_has_an_owner_that_is_a_user() -> None:
    """A host that parses a document itself may hand in any text."""
    read = NewGroup.parse("alice", {"name": "T"})  # type: ignore[arg-type]
    assert (UserId, ALICE) == (type(read.owner), read.owner)
    with pytest.raises(ValueError, match="printable ASCII"):
        NewGroup.parse("", {"name": "T"})  # type: ignore[arg-type]


def test_the_fingerprint_is_the_same_in_every_version() -> None:
    """It is stored: a retry after an upgrade must not look like another request."""
    expected = "915ed523e3e0339a6cccab945b30d93d"
    parsed = NewGroup.parse(
        ALICE, {"name": "Team", "description": "d", "members": ["bob", "carol"]}
    )
    assert expected == parsed.fingerprint().hex()


CHOSEN: dict[str, Any] = {
    **FULL,
    "members": ["bob", {"user_id": "carol", "role": "admin"}],
    "kind": "project",
    "metadata": {"a": 1, "b": [True, None]},
}


def test_the_fingerprint_of_what_the_host_chooses_is_the_same_in_every_version() -> None:
    """It is stored as well."""
    assert "4b5ca56c91c03afad0cc619b229b1e51" == NewGroup.parse(ALICE, CHOSEN).fingerprint().hex()


@pytest.mark.parametrize(
    "other",
    [
        {**CHOSEN, "kind": None},
        {**CHOSEN, "kind": "team"},
        {**CHOSEN, "metadata": None},
        {**CHOSEN, "metadata": {}},
        {**CHOSEN, "metadata": {"a": 1}},
        {**CHOSEN, "metadata": {"a": 1, "b": [1, None]}},
        {**CHOSEN, "metadata": {"a": "1", "b": [True, None]}},
        {**CHOSEN, "members": ["bob", "carol"]},
        {**CHOSEN, "members": [{"user_id": "bob", "role": "admin"}, "carol"]},
    ],
)
def test_what_the_host_chooses_is_a_part_of_what_a_request_means(other: dict[str, Any]) -> None:
    """The same key with another kind, other metadata or other roles is another request."""
    expected = NewGroup.parse(ALICE, CHOSEN).fingerprint()
    assert expected != NewGroup.parse(ALICE, other).fingerprint()


@pytest.mark.parametrize("name", ["kind", "metadata", "members"])
def test_each_of_what_the_host_chooses_counts_alone(name: str) -> None:
    """A role, too, where there is neither kind nor metadata."""
    expected = NewGroup.parse(ALICE, FULL).fingerprint()
    assert expected != NewGroup.parse(ALICE, {**FULL, name: CHOSEN[name]}).fingerprint()


@pytest.mark.parametrize(
    "spelling",
    [
        dict(reversed(CHOSEN.items())),
        {**CHOSEN, "metadata": {"b": [True, None], "a": 1.0}},
        {**CHOSEN, "members": [*CHOSEN["members"], "carol", {"user_id": "bob"}, "alice"]},
        {**CHOSEN, "members": [{"role": "admin", "user_id": "carol"}, {"user_id": "bob"}]},
        {**CHOSEN, "members": [*CHOSEN["members"], {"user_id": "alice", "role": "admin"}]},
        {**CHOSEN, "members": [*CHOSEN["members"], {"user_id": "bob", "role": "member"}]},
    ],
)
def test_other_spellings_of_what_the_host_chooses_are_the_same_request(
    spelling: dict[str, Any],
) -> None:
    """Of two roles of a user the higher one counts, in any order; the owner is the owner."""
    expected = NewGroup.parse(ALICE, CHOSEN)
    assert expected == NewGroup.parse(ALICE, spelling)
    assert expected.fingerprint() == NewGroup.parse(ALICE, spelling).fingerprint()
    assert ((UserId("bob"), UserId("carol")), (UserId("carol"),)) == (
        expected.members,
        expected.admins,
    )


@pytest.mark.parametrize(
    "plain",
    [
        {**FULL, "kind": None, "metadata": None},
        {**FULL, "members": [{"user_id": "bob"}, {"user_id": "carol", "role": "member"}]},
    ],
)
def test_a_request_without_them_has_the_fingerprint_that_it_always_had(
    plain: dict[str, Any],
) -> None:
    """Those that are stored stay valid."""
    assert NewGroup.parse(ALICE, plain).is_plain
    assert NewGroup.parse(ALICE, FULL).fingerprint() == NewGroup.parse(ALICE, plain).fingerprint()


def test_a_host_makes_a_group_with_all_that_a_request_may_have() -> None:
    """The same one; claims of a token are no part of it, and are in no text of it."""
    read = NewGroup.parse(ALICE, CHOSEN)
    fields = ("kind", "metadata", "admins")
    kind, metadata, admins = (getattr(read, name) for name in fields)
    made = NewGroup(
        *(ALICE, "Team", "Ours.", (UserId("bob"), UserId("carol"))),
        kind=kind,
        metadata=metadata,
        admins=(*admins, ALICE),
        claims={"sub": "alice", "tenant": "secret-tenant"},
    )
    assert (read, read.fingerprint()) == (made, made.fingerprint())
    assert made.claims is not None
    assert "secret-tenant" not in repr(made)
    assert made == replace(made, members=("carol", "bob"), metadata=CHOSEN["metadata"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expected", "members"),
    [
        (["/members/0/user_id"], [{}]),
        (["/members/0/user_id"], [{"user_id": None}]),
        (["/members/1/user_id"], ["bob", {"user_id": "", "role": "admin"}]),
        (["/members/0/role"], [{"user_id": "bob", "role": "owner"}]),
        (["/members/0/role"], [{"user_id": "bob", "role": None}]),
        (["/members/0/x~1y"], [{"user_id": "bob", "x/y": 1}]),
        (["/members/0"], [["bob"]]),
        ([f"/members/0/{n}" for n in range(20)], [dict.fromkeys(map(str, range(50)))] * 1000),
    ],
)
def test_a_wrong_member_is_reported_where_it_is(expected: list[str], members: object) -> None:
    """An object has a user's id and a role, and no more is reported than helps."""
    assert expected == pointers_of_faults({"name": "T", "members": members})


@pytest.mark.parametrize(
    "spelling",
    [
        {**FULL, "members": ["carol", "bob"]},
        {**FULL, "members": ["bob", "carol", "bob"]},
        {**FULL, "members": ["alice", "bob", "carol"]},
        dict(reversed(FULL.items())),
    ],
)
def test_other_spellings_of_a_request_have_its_fingerprint(spelling: dict[str, Any]) -> None:
    """Neither the order of members or fields, nor repetition, nor naming the owner matters."""
    expected = NewGroup.parse(ALICE, FULL).fingerprint()
    assert expected == NewGroup.parse(ALICE, spelling).fingerprint()


def test_no_description_is_one_however_it_is_left_out() -> None:
    """Null and absent mean the same."""
    expected = NewGroup.parse(ALICE, {"name": "T"}).fingerprint()
    assert expected == NewGroup.parse(ALICE, {"name": "T", "description": None}).fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        {**FULL, "name": "team"},
        {**FULL, "name": "Team "},
        {**FULL, "description": "Theirs."},
        {**FULL, "description": ""},
        {**FULL, "description": None},
        {**FULL, "members": []},
        {**FULL, "members": ["bob"]},
        {**FULL, "members": ["bob", "carol", "dave"]},
        {**FULL, "members": ["bobcarol"]},
        {"name": "Team", "description": "bob", "members": ["carol"]},
    ],
)
def test_another_request_has_another_fingerprint(other: dict[str, Any]) -> None:
    """Whatever people would see differ, differs."""
    expected = NewGroup.parse(ALICE, FULL).fingerprint()
    assert expected != NewGroup.parse(ALICE, other).fingerprint()


@pytest.mark.parametrize(
    "name", [" a ", "\u00a0a", "\u200d!", "\U0001f600", "a" * NAME_CHARACTERS_MAX]
)
def test_a_name_that_shows_something_is_taken_as_it_is(name: str) -> None:
    """Blanks around it are part of it: what was sent is what is stored, and its fingerprint."""
    assert name == NewGroup.parse(UserId("alice"), {"name": name}).name


@pytest.mark.parametrize("user", [" a", "a ", " ", "a\n", "\ta", "", "a" * 129])
def test_a_user_id_neither_begins_nor_ends_with_a_blank(user: str) -> None:
    """It would look like another user's."""
    with pytest.raises(ValueError, match="no blank"):
        UserId(user)
    for taken in ("a", "a b", "a" * 128, "!~"):
        assert taken == UserId(taken)


class _Masked(str):
    """A host's text that its log must not show."""

    __slots__ = ()

    def __str__(self) -> str:
        return "***"


class _Text(str, Enum):  # noqa: UP042 its members convert to their names
    """A host's constants."""

    ALICE = "alice"
    BOB = "bob"
    TEAM = "Team"


@pytest.mark.parametrize(
    ("alice", "bob", "team"),
    [tuple(_Text), (_Masked("alice"), _Masked("bob"), _Masked("Team")), ("alice", "bob", "Team")],
    ids=["enum", "masked", "plain"],
)
def test_a_hosts_text_means_the_characters_that_were_checked(
    alice: str, bob: str, team: str
) -> None:
    """Not what it is converted to: all masked owners would be one, and all masked keys."""
    group = NewGroup(alice, team, team, (bob,))  # type: ignore[arg-type]
    expected = NewGroup(UserId("alice"), "Team", "Team", (UserId("bob"),))
    texts = [group.owner, group.name, group.description, *group.members]
    assert ["alice", "Team", "Team", "bob"] == [str.__str__(text) for text in texts if text]
    assert (UserId, str, str, UserId) == tuple(map(type, texts))
    assert (expected, expected.fingerprint()) == (group, group.fingerprint())
    assert expected == NewGroup.parse(alice, {"name": team, "description": team, "members": [bob]})  # type: ignore[arg-type]
    assert ("alice", "alice") == (f"{UserId(alice)}", f"{IdempotencyKey(alice)}")
    assert "alice" == IdempotencyKey.parse(alice)


class _AnyCase(UserId):
    """A host's ids that compare without case."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str.lower(self) == str.lower(other)

    def __hash__(self) -> int:
        return hash(str.lower(self))


def test_ids_of_a_hosts_own_equality_are_their_characters() -> None:
    """Else the id would depend on which spelling this process has seen first."""
    upper, lower = _AnyCase("CASELESS"), _AnyCase("caseless")
    ids = [group_id(owner, "k") for owner in (upper, lower, "CASELESS", "caseless")]
    assert (ids[0], ids[1], 2) == (ids[2], ids[3], len(set(ids)))
    group = NewGroup.parse(upper, {"name": "Team", "members": ["caseless"]})
    assert (UserId, (UserId("caseless"),)) == (type(group.owner), group.members)


@pytest.mark.parametrize("name", [7, None, b"name", ("name",)])
def test_names_of_fields_that_are_no_text_are_refused(name: object) -> None:
    """A host's own document may have them; JSON has none."""
    with pytest.raises(RequestInvalid, match=r"^body: must have names that are text"):
        NewGroup.parse(UserId("alice"), {"name": "Team", name: 1})
    with pytest.raises(RequestInvalid, match=r"^/members/0: must have names that are text"):
        NewGroup.parse(UserId("alice"), {"name": "Team", "members": [{"user_id": "bob", name: 1}]})
    with pytest.raises(RequestInvalid, match=r"^/metadata"):
        NewGroup.parse(UserId("alice"), {"name": "Team", "metadata": {name: 1}})
