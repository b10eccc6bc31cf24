"""Attempts, groups, members, health and documentation over HTTP."""

from __future__ import annotations

from importlib.metadata import version
from platform import python_version
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import UUID

import pytest
from prometheus_client.parser import text_string_to_metric_families

import stretto
from stretto.domain import group_id
from stretto.http.app import ROUTES
from stretto.http.openapi import DOCUMENT
from stretto.postgres.groups import PostgresGroupStore
from support.api_client import TEAM, Api, api_for, token_of
from support.changed_groups import changed
from support.database import pend

if TYPE_CHECKING:
    from support.database import Connection

NOBODYS = UUID(int=7)


async def test_an_owner_can_ask_what_became_of_an_attempt(api: Api) -> None:
    """By the key alone; others' keys and unknown ones are not there."""
    created = await api.create("a/b?c")
    found = await api.get("/v1/attempts/" + quote("a/b?c", safe=""))
    assert found.status == 200
    assert created.json.items() <= found.json.items()
    assert ("succeeded", None) == (found.json["status"], found.json["failure"])
    assert found.json["claimed_at"] < found.json["settled_at"]
    for user, key in (("bob", "a%2Fb%3Fc"), ("alice", "unknown")):
        reply = await api.get(f"/v1/attempts/{key}", user=user)
        assert (404, "not_found") == (reply.status, reply.json["code"])


@pytest.mark.parametrize("key", ['"', '"abc', 'a"b', "\\", "a/b", "..", "%22"])
async def test_a_key_is_spelled_in_a_path_as_in_the_header(key: str, api: Api) -> None:
    """Quoted it is found wherever it was quoted; bare in both, or in neither: it begins with one."""
    quoted = '"' + key.replace("\\", r"\\").replace('"', r"\"") + '"'
    created = await api.create(quoted)
    found = await api.get("/v1/attempts/" + quote(quoted, safe=""))
    assert (201, 200) == (created.status, found.status)
    assert str(group_id("alice", key)) == created.json["group_id"] == found.json["group_id"]
    bare = await api.create(key)
    if key.startswith('"'):
        missed = await api.get("/v1/attempts/" + quote(key, safe=""))
        assert (400, 400) == (bare.status, missed.status)
        assert bare.json == missed.json
        assert bare.json["detail"].startswith('A key that begins with " must be a quoted string')
    else:
        assert (201, created.body) == (bare.status, bare.body)


async def test_a_lookup_waits_only_where_asked(api: Api, connection: Connection) -> None:
    """And reports a pending attempt as what it is."""
    await pend(connection, "k")
    for headers in ({}, {"Prefer": "wait=0"}):
        reply = await api.get("/v1/attempts/k", headers=headers)
        assert (200, "pending", None) == (
            reply.status,
            reply.json["status"],
            reply.json["settled_at"],
        )


async def test_a_group_is_there_for_its_members_alone(api: Api) -> None:
    """To all others it does not exist."""
    created = (await api.create("k", {**TEAM, "description": "Ours"})).json
    path = f"/v1/groups/{created['group_id']}"
    for member in ("alice", "bob"):
        group = (await api.get(path, user=member)).json
        assert created.items() <= group.items()
        assert ("Team", "Ours", "alice", 3) == (
            group["name"],
            group["description"],
            group["owner_id"],
            group["members_count"],
        )
    for missing in (path, path + "/members"):
        assert (await api.get(missing, user="mallory")).status == 404
    assert (await api.get(f"/v1/groups/{NOBODYS}")).status == 404
    assert (await api.get(path.upper().replace("/V1/GROUPS", "/v1/groups"))).status == 200
    full_width = group["group_id"].translate({ord("0") + n: 0xFF10 + n for n in range(10)})
    hexadecimal = group["group_id"].replace("-", "")
    for odd in ("no-uuid", f"urn:uuid:{group['group_id']}", full_width, hexadecimal):
        assert (await api.get(f"/v1/groups/{odd}")).status == 404


async def test_my_groups_come_in_pages_newest_first(api: Api) -> None:
    """Each exactly once, of all that I am a member of."""
    for number in range(5):
        await api.create(f"k{number}", {"name": f"Group {number}", "members": ["bob"]})
    await api.create("other", {"name": "Not theirs"}, user="mallory")
    names, cursor, pages = [], "", 0
    while cursor is not None:
        page = (await api.get("/v1/groups?limit=2" + cursor, user="bob")).json
        names += [group["name"] for group in page["groups"]]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
        pages += 1
    assert [f"Group {number}" for number in (4, 3, 2, 1, 0)] == names
    assert pages == 3


async def test_members_come_in_pages_by_id(api: Api) -> None:
    """With the role of each."""
    created = (await api.create("k", {"name": "Team", "members": ["Zoe", "bob", "a b"]})).json
    path = f"/v1/groups/{created['group_id']}/members?limit=2"
    first = (await api.get(path)).json
    second = (await api.get(path, params={"cursor": first["next_cursor"]})).json
    members = [(m["user_id"], m["role"]) for m in first["members"] + second["members"]]
    assert [
        ("Zoe", "member"),
        ("a b", "member"),
        ("alice", "owner"),
        ("bob", "member"),
    ] == members
    assert second["next_cursor"] is None


@pytest.mark.parametrize("cursor", ["", "?cursor=bob"])
@pytest.mark.parametrize("what", ["deleted", "left"])
async def test_a_list_of_members_that_is_no_longer_to_be_read_is_not_an_empty_one(
    what: str, cursor: str, api: Api, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group is deleted, or its reader removed, just before the page is read: 404, no short list."""
    await api.create("k")
    group, read = group_id("alice", "k"), PostgresGroupStore.members_of_group

    async def read_late(*asked: Any) -> Any:
        if what == "deleted":
            await api.request("DELETE", f"/v1/groups/{group}")
        else:
            await changed(connection, stretto.remove_members, group, ["carol"])
        return await read(*asked)

    monkeypatch.setattr(PostgresGroupStore, "members_of_group", read_late)
    reply = await api.get(f"/v1/groups/{group}/members{cursor}", user="carol")
    assert (404, "not_found") == (reply.status, reply.json["code"])


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=201", "limit=x", "limit=-1", "cursor=x", "limit=1&cursor="),
        "cursor=0192f4c8a1b27d3e9f4a0b1c2d3e4f50",
    ],
)
async def test_a_page_that_makes_no_sense_is_refused(query: str, api: Api) -> None:
    """400, not an empty page; the error is the parameter's and points at no body."""
    for path in ("/v1/groups", f"/v1/groups/{NOBODYS}/members"):
        if query.startswith("cursor=") and path != "/v1/groups":
            continue
        reply = await api.get(f"{path}?{query}")
        assert (400, "request_invalid") == (reply.status, reply.json["code"])
        (error,) = reply.json["errors"]
        assert {"parameter": query.rsplit("&", maxsplit=1)[-1].partition("=")[0]} == {
            name: value for name, value in error.items() if name != "detail"
        }


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (route.method, route.path.format(group_id=NOBODYS).replace("{key:[^/]+}", "k"))
        for route in ROUTES
        if route.path.startswith("/v1/") and "{key" not in route.path
    ]
    + [("GET", "/v1/attempts/k"), ("GET", "/v1/attempts/k/history")],
)
async def test_every_route_refuses_parameters_that_it_does_not_know(
    method: str, path: str, api: Api, connection: Connection
) -> None:
    """A misspelt one would be passed over; neither is one of two guessed, nor anything claimed."""
    headers = {"Idempotency-Key": "k", "Accept": "text/event-stream"}
    reply = await api.request(method, f"{path}?Limit=1&x=2", headers=headers, json=TEAM)
    assert (400, "request_invalid") == (reply.status, reply.json["code"])
    assert reply.json["errors"] == [
        {"parameter": name, "detail": "unknown parameter"} for name in ("Limit", "x")
    ]
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0


@pytest.mark.parametrize(
    ("expected", "query", "headers"),
    [("since", "?since=x", {}), ("Last-Event-ID", "?since=x", {"Last-Event-ID": "y"})],
)
async def test_a_position_that_is_none_is_named(
    expected: str, query: str, headers: dict[str, str], api: Api
) -> None:
    """By the parameter or the header field that it came in."""
    reply = await api.get(f"/v1/events{query}", headers={"Accept": "text/event-stream", **headers})
    assert (400, [expected]) == (
        reply.status,
        [error["parameter"] for error in reply.json["errors"]],
    )


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/groups", f"/v1/groups/{NOBODYS}", f"/v1/groups/{NOBODYS}/members"),
        *("/v1/attempts/k", "/v1/attempts/k/history"),
    ],
)
@pytest.mark.parametrize(
    "authorization", [None, "", "Basic YTpi", "Bearer", "Bearer x", f"Bearer {token_of('a')}x"]
)
async def test_nothing_is_answered_without_a_token(
    path: str, authorization: str | None, api: Api
) -> None:
    """401 with the scheme that is wanted."""
    headers = {} if authorization is None else {"Authorization": authorization}
    reply = await api.get(path, user=None, headers=headers)
    assert (401, "unauthenticated", "Bearer") == (
        reply.status,
        reply.json["code"],
        reply.headers["WWW-Authenticate"],
    )


async def test_a_service_that_serves_is_alive_and_ready(api: Api) -> None:
    """Both without a token."""
    for path, status in (("/livez", "alive"), ("/readyz", "ready")):
        reply = await api.get(path, user=None)
        assert (200, {"status": status}) == (reply.status, reply.json)


async def test_readiness_follows_the_database(database_url: str, connection: Connection) -> None:
    """503 without the tables, 200 when they are back; alive all the time."""
    async with api_for(database_url) as api:
        await connection.execute("ALTER TABLE attempt RENAME TO gone")
        away = await api.get("/readyz", user=None)
        assert (503, "database_unavailable", "1") == (
            away.status,
            away.json["code"],
            away.headers["Retry-After"],
        )
        assert (await api.get("/livez", user=None)).status == 200
        await connection.execute("ALTER TABLE gone RENAME TO attempt")
        assert (await api.get("/readyz", user=None)).status == 200


async def test_metrics_count_what_has_happened(api: Api) -> None:
    """By route and outcome; never by anything that a client can make up."""
    for _ in range(3):
        await api.create("k")
    await api.get("/made/up/by/a/client")
    await api.request("MADEUP", "/livez")
    text = (await api.get("/metrics", user=None)).body.decode()
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["stretto_attempts_total", "created"] == 1
    assert samples["stretto_attempts_total", "replayed"] == 2
    assert samples["stretto_http_requests_total", "/v1/groups", "201", "POST"] == 3
    assert samples["stretto_http_requests_total", "404", "GET", "none"] == 1
    assert samples["stretto_batch_writes_sum",] == 1
    assert samples["stretto_outcomes",] == 1
    assert [0] * 4 == [samples["stretto_flights", age] for age in ("0s", "1s", "5s", "30s")]
    assert samples["stretto_build_info", *sorted((version("stretto"), python_version()))] == 1
    assert "made/up" not in text
    assert "MADEUP" not in text
    # Without a bus and a webhook: 0 would hide the lag of instances that have them.
    assert "lag_seconds" not in text


async def test_the_documentation_loads_nothing_from_elsewhere(api: Api) -> None:
    """Every file that the page names is ours, and the page may load no other."""
    page = await api.get("/docs", user=None)
    assert page.status == 200
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert b"http" not in page.body
    for file in ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png", "start.js"):
        assert file.encode() in page.body
        assert (await api.get(f"/docs/{file}", user=None)).status == 200
    assert (await api.get("/docs/index.html", user=None)).status == 404
    document = await api.get("/openapi.json", user=None)
    assert (DOCUMENT, "application/json") == (document.body, document.headers["Content-Type"])


@pytest.mark.parametrize(
    "path",
    ["/v1/groups?limit=1&limit=2", "/v1/groups?cursor=a&cursor=a", "/v1/events?since=a&since=b"],
)
async def test_a_parameter_that_stands_twice_is_refused(path: str, api: Api) -> None:
    """One of them would be passed over."""
    reply = await api.get(path, headers={"Accept": "text/event-stream"})
    assert (400, "is given more than once") == (reply.status, reply.json["errors"][0]["detail"])


async def test_bytes_that_are_no_text_are_no_key(api: Api) -> None:
    """Nor are they the key that they are written as."""
    key = "%FF"
    assert (await api.create(key)).status == 201
    for behind in ("", "/history"):
        reply = await api.get(f"/v1/attempts/%FF{behind}")
        assert (400, "key_invalid") == (reply.status, reply.json["code"])
        assert (await api.get(f"/v1/attempts/%25FF{behind}")).status == 200


@pytest.mark.parametrize(
    "accept",
    [
        "text/event-stream;q=0",
        "text/html, text/event-stream; q=0.0",
        "text/event-streams",
        "a/b," * 16 + "text/event-stream",
    ],
)
async def test_a_stream_that_is_not_accepted_is_not_opened(accept: str, api: Api) -> None:
    """A weight of 0 says so."""
    assert (await api.get("/v1/events", headers={"Accept": accept})).status == 400
