"""What the service really answers is what the OpenAPI document says of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from openapi.document import Document, changed, followed, operations, read
from openapi.problems_and_examples import validator
from openapi.routes import ROUTES
from stretto.domain import NewGroup, UserId, group_id
from support.api_client import TEAM, Api, Reply, token_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.database import Connection

OPENAPI = read()
GROUP = "/v1/groups/{group_id}"
KEY = "/v1/attempts/{key}"
HISTORY = f"{KEY}/history"


def faults(document: Document, operation: str, reply: Reply) -> Iterator[str]:
    """Return what the document does not say of such a reply."""
    place = f"{operation} {reply.status}"
    answer = operations(document)[operation]["responses"].get(str(reply.status))
    if answer is None:
        yield place
        return
    if "content" not in answer:
        yield from [f"{place}: {reply.body!r}"] if reply.body else []
        return
    media_type = reply.headers["Content-Type"].partition(";")[0]
    content = answer["content"].get(media_type)
    if content is None:
        yield f"{place}: {media_type}"
    elif media_type.endswith("json"):
        found = validator(document, content["schema"]).iter_errors(reply.json)
        yield from (f"{place}: {fault.message}" for fault in found)
    for name, field in answer.get("headers", {}).items():
        described = followed(document, field)
        value: Any = reply.headers.get(name)
        if value is None:
            yield from [f"{place}: {name}"] if described.get("required") else []
            continue
        if described["schema"].get("type") == "integer":
            value = int(value)
        found = validator(document, described["schema"]).iter_errors(value)
        yield from (f"{place}: {fault.message}" for fault in found)


async def replies(api: Api, connection: Connection) -> list[tuple[str, Reply]]:
    """Ask every route for whatever it can be had to answer."""
    create = "POST /v1/groups"
    json = {"Content-Type": "application/json"}
    key = {"Idempotency-Key": "k"}

    async def post(headers: dict[str, str], body: bytes = b"{}") -> tuple[str, Reply]:
        return create, await api.request("POST", "/v1/groups", headers=headers, data=body)

    async def get(path: str, name: str = "", **options: Any) -> tuple[str, Reply]:
        return f"GET {name or path.partition('?')[0]}", await api.get(path, **options)

    async def delete(path: str, **options: Any) -> tuple[str, Reply]:
        return f"DELETE {GROUP}", await api.request("DELETE", path, **options)

    first = await api.create("k", {**TEAM, "description": "Ours"})
    group = f"/v1/groups/{first.json['group_id']}"
    found = [(create, first), (create, await api.create("k", {**TEAM, "description": "Ours"}))]
    found += [(create, await api.create("k")), (create, await api.create("second"))]
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status,
                                failure_code, failure_detail, settled_at)
           VALUES ($1, 'alice', $3, $1, 'pending', NULL, NULL, NULL),
                  ($2, 'alice', $3, $2, 'failed', 'quota', 'Enough.', clock_timestamp())""",
        group_id("alice", "pending"),
        group_id("alice", "failed"),
        NewGroup.parse(UserId("alice"), TEAM).fingerprint(),
    )
    await connection.execute(
        """INSERT INTO attempt_trail (group_id, happened_at, what, instance, code, trace_id)
           VALUES ($1, clock_timestamp(), 'reclaimed', 'one', NULL, NULL),
                  ($1, clock_timestamp(), 'failed', 'one', 'quota', $2)""",
        *(group_id("alice", "failed"), "4bf92f3577b34da6a3ce929d0e0e4736"),
    )
    return [
        *found,
        (create, await api.create("failed")),
        await post(json),
        await post({**json, "Idempotency-Key": "a key"}),
        await post({**json, **key}),
        await post(key),
        await post({**json, **key}, b" " * 300_000),
        await get("/v1/groups"),
        await get("/v1/groups?limit=1"),
        await get("/v1/groups?limit=0"),
        await get("/v1/groups", user=None),
        await get(group, GROUP),
        await get(f"{group}?limit=1", GROUP),
        await get(group, GROUP, user="mallory"),
        await get(f"{group}/members?limit=2", f"{GROUP}/members"),
        await get(f"{group}/members?cursor=%00", f"{GROUP}/members"),
        await get(f"{group}/members", f"{GROUP}/members", user="mallory"),
        *[await get(f"/v1/attempts/{name}", KEY) for name in ("k", "pending", "failed", "no", '"')],
        *[
            await get(f"/v1/attempts/{name}/history", HISTORY)
            for name in ("k", "failed", "no", '"')
        ],
        await get("/v1/events"),
        *[await get(name.removeprefix("GET "), user=None) for name in ROUTES if "v1" not in name],
        await get("/docs/swagger-ui.css", "/docs/{file}", user=None),
        await delete(group, user="mallory"),
        await delete(f"{group}?force=1"),
        *[await delete(group) for _ in range(2)],
        (create, await api.create("k")),
        await get("/v1/attempts/k", KEY),
        await get("/v1/attempts/k/history", HISTORY),
        await get(group, GROUP),
    ]


async def test_every_answer_is_as_it_is_described(api: Api, connection: Connection) -> None:
    """Its status, type, document and header fields."""
    found = await replies(api, connection)
    assert [] == [fault for name, reply in found for fault in faults(OPENAPI, name, reply)]
    answered = {name for name, reply in found if reply.status < 300}
    assert {"GET /v1/events"} == ROUTES.keys() - answered
    assert {200, 201, 204, 400, 401, 404, 410, 413, 415, 422} == {
        reply.status for _, reply in found
    }


async def test_every_message_of_a_session_is_as_it_is_described(api: Api) -> None:
    """The position with which it begins, and an event."""
    schema = OPENAPI["components"]["schemas"]["EventMessage"]
    headers = {"Authorization": f"Bearer {token_of('bob')}"}
    async with api.session.ws_connect(f"{api.url}/v1/events", headers=headers) as session:
        position = orjson.loads(await session.receive_str())
        await api.create("k")
        event = orjson.loads(await session.receive_str())
    for message in (position, event):
        assert [] == list(validator(OPENAPI, schema).iter_errors(message))
    assert "event" not in position
    assert not validator(OPENAPI, schema).is_valid({**event, "event": position})


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/components/schemas/CreatedGroup/properties/group_id", {"type": "integer"}),
        ("/components/schemas/CreatedGroup/required", ["group_id", "name"]),
        ("/paths/~1v1~1groups/post/responses/201/headers/Idempotency-Status/schema/enum", ["new"]),
        ("/paths/~1v1~1groups/post/responses/201/headers/Request-Id", {"required": True}),
        ("/paths/~1v1~1groups/post/responses/201/content", {"text/plain": {}}),
        ("/paths/~1v1~1groups/post/responses", {}),
    ],
)
async def test_an_answer_that_is_described_wrongly_is_noticed(
    api: Api, pointer: str, value: object
) -> None:
    """The twin."""
    reply = await api.create("k")
    assert [] == list(faults(OPENAPI, "POST /v1/groups", reply))
    assert [] != list(faults(changed(OPENAPI, pointer, value), "POST /v1/groups", reply))
