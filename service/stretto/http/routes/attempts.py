"""Routes of attempts: an owner reads the state of an attempt, and how it came there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.domain import group_id
from stretto.errors import NotFound
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


async def read_history(request: web.Request) -> web.Response:
    """`GET /v1/attempts/{key}/history`: what has happened to it beside the normal way."""
    token = await authenticate(request, Scope.READ)
    read_query(request)
    key = read_key_of_path(request)
    service = request.app[SERVICE]
    # The trail before the attempt: where it has an outcome, the look at the attempt returns once a
    # standby has that.
    trail = await service.reads.trail(token.owner, group_id(token.owner, key))
    try:
        await service.lookup.look(token.owner, key)
    except NotFound:
        # Its trail may be all that is left, such as after a crash that has lost its claim.
        if not trail:
            raise
    # Instances and claim tokens are the operator's matter.
    names = ("happened_at", "what", "code", "trace_id")
    entries = [{name: getattr(entry, name) for name in names} for entry in trail]
    return json_response({"history": entries})
