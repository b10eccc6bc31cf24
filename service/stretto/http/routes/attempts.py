"""Route of attempts: an owner reads the state of an attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.http.requests import read_key_of_path, read_query, read_wait_seconds
from stretto.http.service import SERVICE, authenticate, json_response
from stretto.http.tokens.scopes import Scope

if TYPE_CHECKING:
    from aiohttp import web


async def read_attempt(request: web.Request) -> web.Response:
    """`GET /v1/attempts/{key}`: the attempt's state; waits only if `Prefer: wait` says so."""
    token = await authenticate(request, Scope.READ)
    read_query(request)
    key = read_key_of_path(request)
    wait_seconds = read_wait_seconds(request.headers, default_seconds=0)
    report = await request.app[SERVICE].lookup.look_up(token.owner, key, wait_seconds)
    failure = report.failure
    return json_response(
        {
            "status": report.status,
            "group_id": str(report.group_id),
            "conversation_id": report.conversation_id and str(report.conversation_id),
            "claimed_at": report.claimed_at,
            "settled_at": report.settled_at,
            "failure": failure and {"code": failure.code, "detail": failure.detail},
        }
    )
