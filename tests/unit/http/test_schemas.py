"""The schemas and the parsers are two spellings of one rule."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openapi_schema_validator import OAS31Validator

from stretto.domain import (
    DESCRIPTION_CHARACTERS_MAX,
    DESCRIPTION_PATTERN,
    KEY_CHARACTERS_MAX,
    MEMBERS_MAX,
    NAME_CHARACTERS_MAX,
    NAME_PATTERN,
    USER_ID_CHARACTERS_MAX,
    USER_ID_PATTERN,
    IdempotencyKey,
    NewGroup,
    UserId,
)
from stretto.errors import KeyInvalid, RequestInvalid
from stretto.http.openapi import OPENAPI
from stretto.http.schemas import SCHEMAS

ALICE = UserId("alice")
# Reads patterns as ECMA 262 does.
NEW_GROUP: Any = OAS31Validator({**SCHEMAS["NewGroup"], "components": {"schemas": SCHEMAS}})
KEYS: list[Any] = [
    OAS31Validator(parameter["schema"])
    for item in OPENAPI["paths"].values()
    for operation in item.values()
    for parameter in operation.get("parameters", [])
    if parameter["name"] in ("Idempotency-Key", "key")
]

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
fields = {"description": descriptions, "members": members}
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


@settings(deadline=None, max_examples=500)
@given(documents)
@example({"name": "Team\n"})
@example({"name": "Team", "description": "\n"})
@example({"name": "Team", "members": ["bob\n"]})
@example({"name": "\U0001f3b6" * NAME_CHARACTERS_MAX})
@example({"name": "\U0001f3b6" * (NAME_CHARACTERS_MAX + 1)})
def test_the_schema_and_the_parser_accept_the_same_documents(document: object) -> None:
    """Whoever validates before sending is never surprised, and never held back."""
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


@settings(deadline=None, max_examples=500)
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
    assert [expected] * 2 == [schema.is_valid(field) for schema in KEYS]


@pytest.mark.parametrize("pattern", [NAME_PATTERN, DESCRIPTION_PATTERN, USER_ID_PATTERN])
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")))
def test_python_reads_a_pattern_as_ecma_does(pattern: str, value: str) -> None:
    """Validators in Python search with `re`, whatever the standard says."""
    expected = OAS31Validator({"pattern": pattern}).is_valid(value)
    assert expected == (re.search(pattern, value) is not None)


@pytest.mark.parametrize("pattern", [NAME_PATTERN, USER_ID_PATTERN])
def test_a_last_line_end_is_refused_in_python_too(pattern: str) -> None:
    """The parser refuses it, and so do validators elsewhere."""
    assert re.search(pattern, "Team\n") is None
