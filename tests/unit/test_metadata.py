"""Metadata has one canonical form, which is a part of stored fingerprints."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict
from enum import IntEnum
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from stretto.domain import NewGroup, UserId
from stretto.metadata import (
    METADATA_BYTES_MAX,
    METADATA_LEVELS_MAX,
    NUMBER_MAX,
    Metadata,
    MetadataInvalid,
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-NUMBER_MAX, NUMBER_MAX),
    # Not so small that their digits fill the metadata.
    st.floats(-1e9, 1e9, allow_subnormal=False).filter(
        lambda number: number == 0 or abs(number) > 1e-9
    ),
    texts,
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
objects = st.dictionaries(texts, values, max_size=4)


def respelled(value: Any, random: Random) -> Any:
    """Return an equal value: names in another order, whole numbers of the other type."""
    if isinstance(value, dict):
        items = [(name, respelled(item, random)) for name, item in value.items()]
        random.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [respelled(item, random) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


@given(objects)
@example({"": {}, "a": [[], {}, None]})
def test_the_form_is_json_of_the_same_object(value: dict[str, Any]) -> None:
    """What is read from it is what was written into it, for other readers too."""
    form = Metadata(value)
    assert value == form.value == json.loads(form)
    assert form == Metadata(form.value) == Metadata(json.loads(form))


@given(objects, st.randoms(use_true_random=False))
@example({"one": 1, "zero": -0.0}, Random(0))
def test_equal_objects_have_one_form(value: dict[str, Any], random: Random) -> None:
    """In another order, with other spellings of its numbers, and spelled as JSON by any writer."""
    other = respelled(value, random)
    assert Metadata(value) == Metadata(other)
    spelled = json.dumps(other, indent=random.choice([None, 2]), ensure_ascii=random.random() < 0.5)
    assert Metadata(value) == Metadata(orjson.loads(spelled))


@given(objects, objects)
def test_other_objects_have_another_form(one: dict[str, Any], other: dict[str, Any]) -> None:
    """But for what JSON does not distinguish; true is not 1 there, as it is in Python."""
    assume(json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True))
    same = Metadata(one) == Metadata(other)
    assert same == (_typed(one) == _typed(other))


def _typed(value: Any) -> Any:
    """Return a value in which a truth value differs from a number."""
    if isinstance(value, dict):
        return {name: _typed(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return (type(value) is bool, value)


@pytest.mark.parametrize(
    ("expected", "spellings"),
    [
        ('{"n":1}', ["1", "1.0", "1e0", "10e-1", "0.1e1", "1.00000000000000000001"]),
        ('{"n":0}', ["0", "-0", "-0.0", "0e9", "1e-999"]),
        ('{"n":0.1}', ["0.1", "1e-1", "0.10", "0.1000000000000000055511151231257827"]),
        ('{"n":-1200}', ["-1200", "-1.2e3", "-1200.0"]),
        ('{"n":0.00000015}', ["1.5e-7", "0.00000015"]),
        ('{"n":9007199254740991}', ["9007199254740991", "9007199254740991.0"]),
        ('{"n":"1"}', ['"1"', r'"\u0031"']),
        ('{"n":"é\\n/\\u001f"}', ['"é\\n/\\u001f"', r'"\u00e9\u000a\/\u001f"']),
        ('{"n":{"a":1,"b":2}}', ['{"a":1,"b":2}', '{"b":2, "a":1}', r'{"\u0062":2,"a":1.0}']),
    ],
)
def test_every_spelling_has_the_same_form(expected: str, spellings: list[str]) -> None:
    """The form is stored in fingerprints: it may never come out differently."""
    for each in spellings:
        assert expected == Metadata(orjson.loads(f'{{"n": {each}}}'))


def test_names_are_sorted_by_code_points() -> None:
    """Not by UTF-16, which would place some of the last ones earlier."""
    form = Metadata({"\U0001f600": 1, "\uffee": 2, "b": 3, "a!": 4, "a": 5})
    assert ["a", "a!", "b", "\uffee", "\U0001f600"] == [*form.value]


BEYOND: dict[str, tuple[str, str, object]] = {
    "no object": ("", "must be an object", ["a"]),
    "text": ("", "must be an object", '{"a": 1}'),
    "none": ("", "must be an object", None),
    "NUL": ("/a", "U+0000", {"a": "x\0"}),
    "NUL in a name": ("", "U+0000", {"a\0": 1}),
    "NUL further in": ("/a/1", "U+0000", {"a": [1, {"\0": 1}]}),
    "surrogate": ("/a", "surrogates", {"a": "\ud800"}),
    "surrogate in a name": ("", "surrogates", {"\udfff": 1}),
    "large": ("/a/b", "number from", {"a": {"b": NUMBER_MAX + 1}}),
    "small": ("/a", "number from", {"a": -NUMBER_MAX - 1}),
    "large float": ("/a", "number from", {"a": 2.0**53}),
    "infinite": ("/a/0", "number from", {"a": [float("inf")]}),
    "no number": ("/a", "number from", {"a": float("nan")}),
    "a set": ("/a", "what JSON has", {"a": {1}}),
    "bytes": ("/a~1b", "what JSON has", {"a/b": b""}),
    "a name of a number": ("", "must be text", {1: 1}),
}


@pytest.mark.parametrize(("pointer", "words", "value"), BEYOND.values(), ids=BEYOND)
def test_what_cannot_be_stored_is_refused_with_its_place(
    pointer: str, words: str, value: object
) -> None:
    """By a JSON pointer from the metadata on."""
    with pytest.raises(MetadataInvalid, match=words.replace("+", r"\+")) as refusal:
        Metadata(value)
    assert pointer == refusal.value.pointer
    assert str(refusal.value).startswith(f"metadata{pointer}: ")


def test_its_size_is_that_of_its_form() -> None:
    """However it is spelled; the bound is inclusive, and counts bytes."""
    for unit, room in (("a", METADATA_BYTES_MAX - 8), ("é", (METADATA_BYTES_MAX - 8) // 2)):
        assert METADATA_BYTES_MAX == len(Metadata({"a": unit * room}).encode())
        with pytest.raises(MetadataInvalid, match="at most 4096 bytes") as refusal:
            Metadata({"a": f"{unit * room}x"})
        assert "" == refusal.value.pointer
    # A number in the form that PostgreSQL writes: a few bytes with an exponent are hundreds there.
    assert 330 < len(Metadata({"a": 5e-324}))
    with pytest.raises(MetadataInvalid, match="bytes"):
        Metadata({"a": [5e-324] * 13})
    for large in ({str(number): 1 for number in range(50_000)}, {"a": [0] * 100_000}):
        with pytest.raises(MetadataInvalid, match="bytes"):
            Metadata(large)


def test_it_has_so_many_levels_and_no_more() -> None:
    """The object itself is one; what is nested without end is no matter of recursion."""

    def nested(levels: int) -> dict[str, Any]:
        return {"a": nested(levels - 1)} if levels > 1 else {}

    assert METADATA_LEVELS_MAX == Metadata(nested(METADATA_LEVELS_MAX)).count("{")
    with pytest.raises(MetadataInvalid, match="at most 16 levels") as refusal:
        Metadata(nested(METADATA_LEVELS_MAX + 1))
    assert "/a" * METADATA_LEVELS_MAX == refusal.value.pointer
    with pytest.raises(MetadataInvalid, match="levels"):
        Metadata(nested(500))


class _Number(IntEnum):
    """A host's constants."""

    ONE = 1


class _Text(str):
    """A host's text of an equality of its own, which masks itself."""

    __slots__ = ()

    def __str__(self) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def test_a_hosts_values_mean_what_they_are() -> None:
    """Not what they are converted to; of two equal names, neither is dropped in silence."""
    assert '{"a":1,"b":"c"}' == Metadata({_Text("b"): _Text("c"), _Text("a"): _Number.ONE})
    with pytest.raises(MetadataInvalid, match="a name twice"):
        Metadata({_Text("a"): 1, _Text("a"): 2})


def test_the_object_is_not_shared() -> None:
    """A host that changes it changes nothing for others."""
    form = Metadata({"a": [1]})
    form.value["a"].append(2)
    assert {"a": [1]} == form.value


@given(objects)
def test_a_copy_is_equal_however_it_is_made(value: dict[str, Any]) -> None:
    """Alone, and within a request or a group that a host copies or sends to another process."""
    form = Metadata(value)
    for each in (copy.copy(form), copy.deepcopy(form), pickle.loads(pickle.dumps(form))):
        assert (form, Metadata) == (each, type(each))
    group = NewGroup.parse(UserId("olga"), {"name": "Team", "metadata": value})
    for made in (copy.deepcopy(group), pickle.loads(pickle.dumps(group))):
        assert (group, Metadata) == (made, type(made.metadata))
    assert form == asdict(group)["metadata"]
