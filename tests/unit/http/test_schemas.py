"""The schemas and the parsers are two spellings of one rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from openapi.document import operations, read
from openapi.problems_and_examples import validator
from stretto.creation.age import FIRST_SENT, parse_first_sent
from stretto.domain import (
    DESCRIPTION_CHARACTERS_MAX,
    KEY_CHARACTERS_MAX,
    KIND_CHARACTERS_MAX,
    MEMBERS_MAX,
    NAME_CHARACTERS_MAX,
    USER_ID_CHARACTERS_MAX,
    IdempotencyKey,
    NewGroup,
    UserId,
)
from stretto.errors import KeyInvalid, RequestInvalid
from stretto.events.place import Place
from stretto.http.routes import groups

if TYPE_CHECKING:
    from collections.abc import Callable

ALICE = UserId("alice")
OPENAPI = read()
SCHEMAS = OPENAPI["components"]["schemas"]
NEW_GROUP = validator(OPENAPI, SCHEMAS["NewGroup"])
# In the header and in the paths.
KEYS = [
    validator(OPENAPI, parameter["schema"])
    for operation in operations(OPENAPI).values()
    for parameter in operation["parameters"]
    if parameter["name"] in ("Idempotency-Key", "key")
]
FIRST_SENT_SCHEMA = next(
    validator(OPENAPI, parameter["schema"])
    for parameter in operations(OPENAPI)["POST /v1/groups"]["parameters"]
    if parameter["name"] == FIRST_SENT
)
POSITION = validator(OPENAPI, SCHEMAS["Position"])
MEMBER_CURSOR = operations(OPENAPI)["GET /v1/groups/{group_id}/members"]["parameters"][2]["schema"]
# Lone surrogates cannot come in: JSON with them is refused before.
anything = st.characters(exclude_categories=["Cs"])
text = st.text(st.one_of(anything, st.sampled_from("\x00\t\n\r\x0b\x1f\x7f\x9f é\U0001f3b6")))
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1)


def near(limit: int) -> st.SearchStrategy[str]:
    """Return texts that are about as long as the limit."""
    return st.builds(lambda one, size: one * size, anything, st.integers(limit - 1, limit + 1))


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), text)
# Each field is drawn right or nearly right, so that whole documents often come out valid.
names = st.one_of(printable, text, near(NAME_CHARACTERS_MAX))
descriptions = st.one_of(st.none(), printable, text, near(DESCRIPTION_CHARACTERS_MAX))
members = st.one_of(
    st.lists(printable),
    st.lists(st.one_of(printable, near(USER_ID_CHARACTERS_MAX), text), max_size=3),
    st.integers(MEMBERS_MAX - 1, MEMBERS_MAX + 1).map(lambda size: ["bob"] * size),
)
# Near the bounds of numbers, and with the character that no database stores; size and levels, which no
# schema can say, stay far below their bounds.
values = st.recursive(
    st.one_of(
        scalars,
        st.sampled_from([2**53 - 1, 2**53, -(2**53), float(2**53), float("inf"), "\0", 1e-9]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=5,
)
objects = st.dictionaries(text.map(lambda name: name[:8]), values, max_size=3)
with_roles = st.fixed_dictionaries(
    {"user_id": st.one_of(printable, text)},
    optional={"role": st.sampled_from(["admin", "member", "owner", None]), "x": scalars},
)
fields = {
    "description": descriptions,
    "members": st.one_of(members, st.lists(st.one_of(printable, with_roles), max_size=3)),
    "kind": st.one_of(st.none(), st.from_regex(r"\A[a-z][a-z0-9._-]{0,70}\Z"), text),
    "metadata": st.one_of(st.none(), objects, values),
}
documents = st.one_of(
    st.fixed_dictionaries({"name": printable}, optional=fields),
    st.fixed_dictionaries({"name": names}, optional=fields),
    st.fixed_dictionaries({}, optional={"name": names, "title": scalars, **fields}),
    st.fixed_dictionaries(
        {}, optional={name: st.one_of(scalars, st.lists(scalars)) for name in ("name", *fields)}
    ),
    scalars,
    st.lists(scalars),
)


def is_accepted(document: object) -> bool:
    """Return whether the parser takes the document."""
    try:
        NewGroup.parse(ALICE, document)
    except RequestInvalid:
        return False
    return True


def is_user_id(text: str) -> bool:
    """Return whether the text can be one."""
    try:
        UserId(text)
    except ValueError:
        return False
    return True


@settings(max_examples=500)
@given(documents)
@example({"name": "Team\n"})
@example({"name": "Team", "kind": "a\n"})
@example({"name": "Team", "kind": "a" * KIND_CHARACTERS_MAX})
@example({"name": "Team", "kind": "a" * (KIND_CHARACTERS_MAX + 1)})
@example({"name": "Team", "members": [{}]})
@example({"name": "Team", "members": ["bob", {"user_id": "bob", "role": "admin"}]})
@example({"name": "Team", "metadata": {"a\0": 1}})
@example({"name": "Team", "metadata": {"a": [{"b": "\0\n"}]}})
@example({"name": "Team", "metadata": {"a": 9007199254740991.0, "b": 9007199254740992.0}})
@example({"name": "Team", "description": "\n"})
@example({"name": "Team", "members": ["bob\n"]})
@example({"name": "\U0001f3b6" * NAME_CHARACTERS_MAX})
@example({"name": "\U0001f3b6" * (NAME_CHARACTERS_MAX + 1)})
def test_the_schema_and_the_parser_accept_the_same_documents(document: object) -> None:
    """A client that validates before sending is never surprised, and never held back."""
    assert NEW_GROUP.is_valid(document) == is_accepted(document)


visible = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E))
keys = st.one_of(
    text,
    visible,
    st.text(st.sampled_from('"\\a')).map('"{}"'.format),
    visible.map(lambda key: '"' + key.replace("\\", r"\\").replace('"', r"\"") + '"'),
    near(KEY_CHARACTERS_MAX),
    near(KEY_CHARACTERS_MAX).map('"{}"'.format),
)


@settings(max_examples=500)
@given(keys)
@example('"' + r"\"" * KEY_CHARACTERS_MAX + '"')
@example('"' + r"\"" * (KEY_CHARACTERS_MAX + 1) + '"')
@example("key\n")
def test_the_schema_and_the_parser_accept_the_same_keys(field: str) -> None:
    """In the header and in the path, bare and quoted."""
    try:
        IdempotencyKey.parse(field)
    except KeyInvalid:
        expected = False
    else:
        expected = True
    assert [expected] * 3 == [schema.is_valid(field) for schema in KEYS]


@given(st.one_of(text, st.from_regex(r"@-?[0-9]{1,16}")))
@example("@1\n")
@example("@-1")
@example("@1.0")
def test_the_schema_and_the_parser_accept_the_same_times(field: str) -> None:
    """At which a request was first sent."""
    try:
        parse_first_sent(field)
    except RequestInvalid:
        expected = False
    else:
        expected = True
    assert expected == FIRST_SENT_SCHEMA.is_valid(field)


@given(
    st.one_of(
        text,
        st.from_regex(r"[0-9]{1,21}(~[0-9]{1,21}){0,3}\.[0-9]{1,11}-[0-9a-f]{7,9}"),
        st.from_regex(r"1[0-9]{6}(~[0-9]{1,3}){0,34}\.[0-9]-[0-9a-f]{8}", fullmatch=True),
    )
)
@example("18446744073709551615.2147483647-00000000")
@example("18446744073709551616.1-00000000")
@example("1.2147483648-00000000")
@example("7~7.1-00000000")
@example("7~8.1-00000000")
@example("7~0.1-00000000")
@example("1.1-00000000\n")
def test_the_schema_and_the_parser_accept_the_same_positions(position: str) -> None:
    """But for numbers that are too large, which no pattern can express."""
    try:
        Place.parse(position)
    except ValueError:
        is_accepted = False
    else:
        is_accepted = True
    is_valid = POSITION.is_valid(position)
    if is_valid:
        xmax, *distances, number = map(int, re.split(r"[~.]", position.partition("-")[0]))
        is_possible = all(0 < distance <= xmax for distance in distances)
        is_valid = is_possible and xmax < 2**64 and number < 2**31
    assert is_valid == is_accepted


# With how the parser reads what the pattern is of.
PATTERNS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "name": (
        SCHEMAS["NewGroup"]["properties"]["name"]["pattern"],
        lambda text: is_accepted({"name": text}),
    ),
    "description": (
        SCHEMAS["NewGroup"]["properties"]["description"]["pattern"],
        lambda text: is_accepted({"name": "Team", "description": text}),
    ),
    "user id": (
        SCHEMAS["UserId"]["pattern"],
        is_user_id,
    ),
    "cursor": (
        MEMBER_CURSOR["pattern"],
        lambda text: groups._MEMBER_CURSOR.fullmatch(text) is not None,
    ),
}


# The patterns name none in between.
CHARACTERS = [
    chr(code)
    for code in (
        *range(0x3200),
        *range(0xFE00, 0x10000),
        *range(0x1BC90, 0x1BCB0),
        *range(0x1D160, 0x1D180),
        *range(0xDFFF0, 0xE0010),
        *range(0xE0FF0, 0xE1010),
    )
]


def differences(pattern: str, accepts: Callable[[str], bool]) -> list[str]:
    """Return where the two differ: each character alone and in every place."""
    texts = [form.format(each) for form in ("{}", "{}a", "a{}", "a{}a") for each in CHARACTERS]
    search = re.compile(pattern).search
    return [each for each in texts if accepts(each) != (search(each) is not None)]


@pytest.mark.parametrize("field", PATTERNS)
def test_a_pattern_and_the_parser_accept_the_same_characters(field: str) -> None:
    """They are written twice: for us, and for validators elsewhere."""
    assert [] == differences(*PATTERNS[field])


@pytest.mark.parametrize(
    ("field", "part"),
    [
        ("name", r"\u2800"),
        ("name", "\U000e0fff"),
        ("name", r"-\u009f"),
        ("name", r"(?!\n)"),
        ("description", r"\u000b"),
        ("user id", "[!-~]"),
        ("user id", r"(?!\n)"),
        ("cursor", r"(?!\n)"),
    ],
)
def test_a_wrong_pattern_is_noticed(field: str, part: str) -> None:
    """The twin."""
    pattern, accepts = PATTERNS[field]
    assert part in pattern
    assert [] != differences(pattern.replace(part, "", 1), accepts)


@pytest.mark.parametrize("field", PATTERNS)
@given(value=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")))
def test_python_reads_a_pattern_as_ecma_does(field: str, value: str) -> None:
    """Validators in Python search with `re`, whatever the standard says."""
    pattern, _ = PATTERNS[field]
    expected = validator(OPENAPI, {"pattern": pattern}).is_valid(value)
    assert expected == (re.search(pattern, value) is not None)
