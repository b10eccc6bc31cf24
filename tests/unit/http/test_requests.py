from __future__ import annotations

import gc
import sys
from contextlib import suppress

import pytest
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict, CIMultiDictProxy

from stretto.codec import parse_json
from stretto.creation.creator import WAIT_SECONDS_MAX
from stretto.creation.reads import PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX
from stretto.domain import NewGroup, UserId
from stretto.errors import FieldError, KeyInvalid, KeyMissing, ParameterError, RequestInvalid
from stretto.http.requests import (
    PARAMETERS_MAX,
    SUBPROTOCOLS_MAX,
    read_authorizations,
    read_first_sent,
    read_key,
    read_limit,
    read_query,
    read_wait_seconds,
)

ALICE = UserId("alice")


def headers(*fields: tuple[str, str]) -> CIMultiDictProxy[str]:
    """Return a request's headers."""
    return CIMultiDictProxy(CIMultiDict(fields))


@pytest.mark.parametrize("field", ["key-1", '"key-1"'])
@pytest.mark.parametrize("name", ["Idempotency-Key", "idempotency-key"])
def test_the_one_key_is_read(name: str, field: str) -> None:
    """Bare or quoted, and headers' names have no case."""
    assert read_key(headers((name, field))) == "key-1"


def test_a_request_without_a_key_gets_an_error() -> None:
    """Nothing is ever created without one."""
    with pytest.raises(KeyMissing):
        read_key(headers(("X-Idempotency-Key", "key-1")))


@pytest.mark.parametrize("second", ["key-2", "key-1", ""])
def test_two_keys_are_none(second: str) -> None:
    """Which of two counts is undefined, and proxies guess differently."""
    with pytest.raises(KeyInvalid, match="more than one"):
        read_key(headers(("Idempotency-Key", "key-1"), ("idempotency-key", second)))


def test_the_time_at_which_a_request_was_first_sent_is_read() -> None:
    """If the request says so."""
    assert 7 == read_first_sent(headers(("idempotency-first-sent", "@7")))
    assert None is read_first_sent(headers())


@pytest.mark.parametrize("fields", [[""], ["soon"], ["@7", "@7"], ["@7", "@8"]])
def test_another_time_or_two_are_refused(fields: list[str]) -> None:
    """Which of two counts is undefined."""
    with pytest.raises(RequestInvalid, match="parameter Idempotency-First-Sent: "):
        read_first_sent(headers(*(("Idempotency-First-Sent", field) for field in fields)))


def test_an_empty_key_is_invalid_rather_than_missing() -> None:
    """The client meant to send one."""
    with pytest.raises(KeyInvalid):
        read_key(headers(("Idempotency-Key", "")))


@pytest.mark.parametrize(
    ("expected_seconds", "fields"),
    [
        (7.0, []),
        (5.0, ["wait=5"]),
        (0.0, ["wait=0"]),
        (5.0, ["Wait = 5"]),
        (5.0, ['wait="5"']),
        (5.0, ["respond-async, wait=5"]),
        (5.0, ["wait=5, respond-async"]),
        (5.0, ["respond-async", "wait=5"]),
        (5.0, ["wait=5, wait=6"]),
        (WAIT_SECONDS_MAX, [f"wait={WAIT_SECONDS_MAX:.0f}"]),
        (WAIT_SECONDS_MAX, [f"wait={WAIT_SECONDS_MAX + 1:.0f}"]),
        (WAIT_SECONDS_MAX, ["wait=999999999"]),
        (7.0, ["wait"]),
        (7.0, ["wait="]),
        (7.0, ["wait=-1"]),
        (7.0, ["wait=1.5"]),
        (7.0, ["wait=soon"]),
        (7.0, ["wait=5s"]),
        (7.0, ["await=5"]),
        (7.0, ["respond-async"]),
        (7.0, ["wait=" + "9" * 5000]),
        (7.0, [""]),
    ],
)
def test_the_wait_is_what_the_client_prefers_within_our_maximum(
    expected_seconds: float, fields: list[str]
) -> None:
    """A preference that cannot be read is none (RFC 7240, 2)."""
    given = headers(*(("Prefer", field) for field in fields))
    assert expected_seconds == read_wait_seconds(given, default_seconds=7.0)


@pytest.mark.parametrize(
    ("expected", "body"),
    [
        ({"name": "T"}, b'{"name":"T"}'),
        ({"name": "T"}, b' {\n"name" :\t"T"}\r\n'),
        ({"name": "T"}, rb'{"n\u0061me":"T"}'),
        ({"name": 'a"b\\'}, rb'{"name":"a\"b\\"}'),
        ({"name": "\U0001f3b6"}, rb'{"name":"\ud83c\udfb6"}'),
        ({"name": "\x00"}, rb'{"name":"\u0000"}'),
        ({"name": "\\", "\\": '"'}, rb'{"name":"\\","\u005c":"\u0022"}'),
        ({"name": '\\"', "x": ['"\\']}, rb'{"name":"\\\"","x":["\"\\"]}'),
        ({"name": "\\", "x": "\\"}, rb'{"name":"\u005c","x":"\u005c"}'),
        # A value that is spelled like a field is no second field.
        ({"name": "name", "members": ["name"]}, b'{"name":"name","members":["name"]}'),
        ([1, None], b"[1,null]"),
    ],
)
def test_json_is_read(expected: object, body: bytes) -> None:
    """What it means for a group is not asked here."""
    assert expected == parse_json(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"name":"a","name":"b"}',
        b'{"name":"a","name":"a"}',
        b'{"name" :"a", "name"\n:"b"}',
        b'{"name":"a","members":[],"members":["bob"]}',
        b'{"name":"a","description":null,"description":"d"}',
        rb'{"name":"a","n\u0061me":"b"}',
        rb'{"n\u0061me":"a","\u006eame":"b"}',
        rb'{"name":"a\\","x":1,"x":2}',
        rb'{"name":"a\n","x":{"y":1,"y":2}}',
        rb'{"name":"\"","name":"\""}',
        rb'{"name":"\\","x":"\\\"","x":"\\"}',
        b'{"name":"a","kind":"x","kind":"x"}',
        b'{"name":"a","metadata":null,"metadata":null}',
        b'{"name":"a","metadata":{"x":1,"x":1}}',
        b'{"name":"a","metadata":{"x":[{"y":{},"y":1}]}}',
        b'{"name":"a","members":[{"user_id":"bob","user_id":"bob"}]}',
    ],
)
def test_a_field_that_comes_twice_is_refused(body: bytes) -> None:
    """However it is spelled: which of the two a parser keeps is undefined."""
    with pytest.raises(RequestInvalid, match="has a field twice"):
        parse_json(body)


def test_an_unknown_field_that_comes_twice_is_refused_as_unknown() -> None:
    """The fast way does not look at what may not be sent anyhow."""
    with pytest.raises(RequestInvalid, match="/x: unknown field"):
        NewGroup.parse(ALICE, parse_json(b'{"name":"a","x":1,"x":2}'))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{} {}",
        b"{'name':'T'}",
        b'{"name":"T",}',
        b'{"name":NaN}',
        b'{"name":Infinity}',
        b'{"name":1e999}',
        b'{"name":' + b"1" * 5000 + b"}",
        b'\xef\xbb\xbf{"name":"T"}',
        '{"name":"T"}'.encode("utf-16"),
        b'{"name":"\xff"}',
        b'{"name":"\xed\xa0\x80"}',
        rb'{"name":"\ud800"}',
        rb'{"name":"\udfff"}',
        rb'{"name":"\ud800\u0061"}',
        rb'{"name":"\x"}',
        b'{"name":"a\nb"}',
        b'{"name":"a\x00b"}',
        b"[" * 100_000,
    ],
)
def test_anything_else_is_not_json(body: bytes) -> None:
    """Among it lone surrogates, which no database can store."""
    with pytest.raises(RequestInvalid, match="is not JSON"):
        parse_json(body)


LARGE = {
    "fields": b'{"name":"\\n"' + b"".join(b',"%05x":1' % number for number in range(23_000)) + b"}",
    "objects": b'{"name":"\\n","members":[' + b"{}," * 80_000 + b"{}]}",
    "members": b'{"name":"a","members":['
    + b",".join([b"{%b}" % b",".join(b'"%d":1' % each for each in range(30))] * 990)
    + b"]}",
    "one field": b'{"name":"a"' + b',"name":"a"' * 20_000 + b"}",
    "strings": b'{"name":"\\n","members":[' + b'"",' * 80_000 + b'""]}',
}


@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE)
def test_a_large_body_of_small_parts_is_refused_without_a_look_at_each(body: bytes) -> None:
    """Python would take a hundred times as long for them as the parser does."""
    calls = 0

    def count(_frame: object, event: str, _what: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    # What other tests have left would be finalised in between, by calls of its own.
    gc.disable()
    sys.setprofile(count)
    try:
        with suppress(RequestInvalid):
            NewGroup.parse(ALICE, parse_json(body))
            calls = sys.maxsize
    finally:
        sys.setprofile(None)
        gc.enable()
    assert calls < 300


def test_deep_nesting_is_refused_or_read_but_never_crashes() -> None:
    """An escape makes the slow check look at what the fast parser has accepted."""
    depth = 1000
    with suppress(RequestInvalid):
        parse_json(rb'{"name":"\n","x":' + b"[" * depth + b"]" * depth + b"}")


@pytest.mark.parametrize(
    ("expected", "body"),
    [
        ("/name", rb'{"name":"\u0000"}'),
        ("/name", rb'{"name":"a\u0000b"}'),
        ("/description", rb'{"name":"T","description":"\u0000"}'),
        ("/members/0", rb'{"name":"T","members":["\u0000"]}'),
        ("/\x00", rb'{"name":"T","\u0000":1}'),
    ],
)
def test_the_character_that_no_database_stores_is_refused_with_its_place(
    expected: str, body: bytes
) -> None:
    """It is valid JSON, so the group's own rules refuse it."""
    with pytest.raises(RequestInvalid) as refusal:
        NewGroup.parse(ALICE, parse_json(body))
    assert [expected] == [
        error.pointer for error in refusal.value.errors if isinstance(error, FieldError)
    ]


def test_white_space_and_escapes_do_not_change_the_fingerprint() -> None:
    """The fingerprint is of the meaning, not of the bytes."""
    plain = b'{"name":"Team","members":["bob"]}'
    other = b'{ "members" : [ "b\\u006fb" ],\n  "n\\u0061me" : "\\u0054eam" }'
    expected = NewGroup.parse(ALICE, parse_json(plain)).fingerprint()
    assert expected == NewGroup.parse(ALICE, parse_json(other)).fingerprint()


@pytest.mark.parametrize(
    ("expected", "query"),
    [
        (PAGE_ITEMS_DEFAULT, {}),
        (1, {"limit": "1"}),
        (7, {"limit": "007"}),
        (PAGE_ITEMS_MAX, {"limit": str(PAGE_ITEMS_MAX)}),
    ],
)
def test_a_page_has_the_size_that_was_asked_for(expected: int, query: dict[str, str]) -> None:
    """Within its bounds."""
    assert expected == read_limit(query)


def test_a_query_of_many_parameters_is_not_parsed() -> None:
    """A user's thousand of such requests would keep all others waiting."""
    names = [f"a{number}" for number in range(PARAMETERS_MAX)]
    with pytest.raises(RequestInvalid, match="parameter a0: unknown parameter"):
        read_query(make_mocked_request("GET", f"/?{'&'.join(names)}"))
    with pytest.raises(RequestInvalid, match=f"more than {PARAMETERS_MAX} parameters"):
        read_query(make_mocked_request("GET", f"/?{'&'.join(names)}&limit=1"))


def test_a_long_parameter_is_named_by_its_beginning() -> None:
    """An answer must not be a multiple of what was asked; one of 64 characters is named in full."""
    for length, expected in ((64, "x" * 64), (65, "x" * 64 + "…"), (8000, "x" * 64 + "…")):
        with pytest.raises(RequestInvalid) as refusal:
            read_query(make_mocked_request("GET", f"/?{'x' * length}=1"))
        assert [ParameterError(expected, "unknown parameter")] == refusal.value.errors


@pytest.mark.parametrize(
    "value",
    ["", "0", "-1", "+1", "1.0", " 1", "1\n", "ten", "٣", str(PAGE_ITEMS_MAX + 1), "9" * 99],
)
def test_another_page_size_is_refused(value: str) -> None:
    """Rather than silently made to fit."""
    with pytest.raises(RequestInvalid, match=f"limit: must be 1 to {PAGE_ITEMS_MAX}"):
        read_limit({"limit": value})


@pytest.mark.parametrize(
    ("expected", "fields"),
    [
        (
            ["Bearer a"],
            [("Authorization", "Bearer a"), ("Sec-WebSocket-Protocol", "stretto.token.b")],
        ),
        (
            ["Bearer b"],
            [("Upgrade", "WebSocket"), ("Sec-WebSocket-Protocol", "v1, stretto.token.b")],
        ),
        (
            ["Bearer a", "Bearer b"],
            [
                ("Authorization", "Bearer a"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Protocol", "stretto.token.b" + ",stretto.v1" * SUBPROTOCOLS_MAX),
            ],
        ),
        (
            [],
            [
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Protocol", "stretto.v1," * SUBPROTOCOLS_MAX + "stretto.token.b"),
            ],
        ),
    ],
)
def test_a_token_is_read_from_the_first_subprotocols_of_a_websocket(
    expected: list[str], fields: list[tuple[str, str]]
) -> None:
    """They are read before a request has its turn: thousands of them must cost nothing."""
    request = make_mocked_request("GET", "/v1/events", headers=headers(*fields))
    assert expected == read_authorizations(request)
