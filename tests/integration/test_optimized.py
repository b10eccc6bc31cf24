"""`python -OO` drops docstrings and assertions: no answer may depend on either."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support.api_client import TEAM, Api, Reply
from support.service_process import apis, service_starter

if TYPE_CHECKING:
    import pytest

    from support.database import Connection

JSON = {"Content-Type": "application/json"}
KEY = {"Idempotency-Key": "k"}
REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "created": ("POST", "/v1/groups", {"headers": KEY, "json": TEAM}),
    "replayed": ("POST", "/v1/groups", {"headers": KEY, "json": TEAM}),
    "key reused": ("POST", "/v1/groups", {"headers": KEY, "json": {"name": "Other"}}),
    "key missing": ("POST", "/v1/groups", {"json": TEAM}),
    "key invalid": ("POST", "/v1/groups", {"headers": {"Idempotency-Key": "a b"}, "json": TEAM}),
    "body invalid": ("POST", "/v1/groups", {"headers": KEY, "json": {"name": ""}}),
    "body too large": ("POST", "/v1/groups", {"headers": KEY | JSON, "data": b" " * 300_000}),
    "media type": ("POST", "/v1/groups", {"headers": KEY, "data": b"{}"}),
    "no token": ("GET", "/v1/groups", {"user": None}),
    "no route": ("GET", "/v1/nothing", {}),
    "no group": ("GET", "/v1/attempts/unknown", {}),
    "method": ("DELETE", "/v1/groups", {}),
    "no stream": ("GET", "/v1/events", {}),
    "ready": ("GET", "/readyz", {"user": None}),
}


async def answer_of(api: Api, method: str, path: str, options: dict[str, Any]) -> tuple[int, Any]:
    """Return status and document of an answer, without what differs from group to group."""
    reply: Reply = await api.request(method, path, **options)
    document = reply.json
    document.pop("conversation_id", None)
    return reply.status, document


async def test_answers_are_the_same_without_docstrings_and_assertions(
    api: Api, database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the service in this process, and by one of `python -OO` on the same database."""
    expected = {name: await answer_of(api, *request) for name, request in REQUESTS.items()}
    await connection.execute("DELETE FROM outbox; DELETE FROM conversation; DELETE FROM attempt")
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    async with service_starter(database_url) as start, apis(await start()) as (optimized,):
        assert expected == {
            name: await answer_of(optimized, *each) for name, each in REQUESTS.items()
        }
    assert all(document.get("detail", "x") for _, document in expected.values())
