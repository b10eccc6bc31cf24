"""Which ids of requests are taken from clients, and what is made instead."""

from __future__ import annotations

import re

import pytest
from aiohttp.test_utils import make_mocked_request

from stretto.http.request_ids import context_of
from stretto.telemetry.request_context import ID_FIELD, RequestContext, taken_id
from support.api_client import token_of

MADE = re.compile(r"[0-9a-f]{16}")
TOKEN = token_of("alice")
KEY = "8f14e45f-ceea-467f-a8f2-0f5a3c1d2b4e"


@pytest.mark.parametrize(
    "offered",
    [
        "Q",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "0A000001:C5D2_0A000002:01BB_5F2C8E3A_0012:5F1A",
        "Wq3/x+9a==",
        "a.b@c-d",
        "x" * 64,
    ],
)
def test_a_plain_id_is_taken_as_it_is(offered: str) -> None:
    """As proxies and tracing tools make them."""
    assert offered == taken_id(offered)


@pytest.mark.parametrize(
    "offered",
    [None, "", "x" * 65, "two words", "a\nb", "a\n", 'a"b', "a%20b", "ä", "a,b", "{a}", TOKEN],
)
def test_another_id_is_made(offered: str | None) -> None:
    """One that is long could be a token, and one that is not plain could spoil the log."""
    assert "" == taken_id(offered)


@pytest.mark.parametrize(
    ("offered", "secret"),
    [
        (KEY, KEY),
        (KEY, f'"{KEY}"'),
        (f"create:{KEY}", KEY),
        (KEY[:13], KEY),
        (TOKEN[-43:], f"Bearer {TOKEN}"),
    ],
    ids=["key", "quoted key", "key in it", "part of the key", "signature of the token"],
)
def test_neither_a_key_nor_a_token_becomes_an_id(offered: str, secret: str) -> None:
    """Ids are logged; keys and tokens never are, whole or in part."""
    assert "" == (taken_id(offered, "", secret))
    assert offered == taken_id(offered, "", "another")


def test_two_made_ids_differ() -> None:
    """Otherwise they would not lead to one request; each is made once."""
    requests = [RequestContext() for _ in range(1000)]
    ids = [each.id for each in requests]
    assert 1000 == len({*ids})
    assert all(map(MADE.fullmatch, ids))
    assert ids == [each.id for each in requests]


@pytest.mark.parametrize(
    ("path", "fields", "is_taken"),
    [
        ("/v1/groups", {ID_FIELD: "r1"}, True),
        ("/v1/groups", {ID_FIELD: KEY, "Idempotency-Key": KEY}, False),
        ("/v1/groups", {ID_FIELD: TOKEN[-20:], "Authorization": f"Bearer {TOKEN}"}, False),
        ("/v1/events", {ID_FIELD: TOKEN[-20:], "Sec-WebSocket-Protocol": f"x.{TOKEN}"}, False),
        (f"/v1/attempts/{KEY}", {ID_FIELD: KEY}, False),
        (f"/v1/attempts/%38{KEY[1:]}", {ID_FIELD: KEY}, False),
        (f"/v1/attempts/{KEY}%2Fx%2Fy", {ID_FIELD: KEY}, False),
        (f"/v1/attempts/x/{KEY}", {ID_FIELD: KEY}, False),
        (f"/v1/attempts/{KEY}/history", {ID_FIELD: KEY}, False),
        (f"/v1/attempts/{KEY}/history", {ID_FIELD: f"x-{KEY}"}, False),
        (f"/v1/attempts/{KEY}/history", {ID_FIELD: "r1"}, True),
        (f"/v1/groups/{KEY}", {ID_FIELD: KEY}, True),
    ],
    ids=[
        "plain",
        "key",
        "token",
        "token of a page",
        "key in the path",
        "escaped",
        "slash in it",
        "no route",
        "before the last word",
        "inside the id",
        "beside a key",
        "group's id",
    ],
)
def test_every_place_of_a_key_or_a_token_is_looked_at(
    path: str, fields: dict[str, str], is_taken: bool
) -> None:
    """A request keeps the id that it was given first."""
    request = make_mocked_request("GET", path, headers=fields)
    assert is_taken == (fields[ID_FIELD] == context_of(request).id)
    assert context_of(request) is context_of(request)


@pytest.mark.parametrize(
    ("offered", "length", "decoded"),
    [({ID_FIELD: "a"}, 1536, 1), ({ID_FIELD: "a"}, 1537, 0), ({}, 4, 0)],
)
def test_what_is_longer_than_a_key_is_not_decoded(
    offered: dict[str, str], length: int, decoded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 KiB of % would take 5 ms, of anybody. Nor is a path where no id is offered."""
    seen: list[str] = []

    def unquote(text: str) -> str:
        seen.append(text)
        return text

    monkeypatch.setattr("stretto.http.request_ids.unquote", unquote)
    context_of(make_mocked_request("GET", "/v1/attempts/" + "k" * length, headers=offered))
    assert decoded == seen.count("k" * length)
