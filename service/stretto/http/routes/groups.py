"""Routes of groups: create one, read one, delete one, list mine, list the members of one."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

import orjson
from aiohttp import hdrs, web
from aiohttp.web_urldispatcher import _default_expect_handler

from stretto.codec import BODY_BYTES_MAX
from stretto.creation.creator import WAIT_SECONDS_DEFAULT
from stretto.domain import USER_ID_CHARACTERS_MAX
from stretto.errors import NotFound, ParameterError, RequestInvalid, StrettoError, Unauthenticated
from stretto.http.answers import created_fields
from stretto.http.bodies import body_under_way
from stretto.http.requests import (
    read_body,
    read_first_sent,
    read_key,
    read_limit,
    read_query,
    read_wait_seconds,
)
from stretto.http.service import SERVICE, authenticate, json_response
from stretto.http.tokens.scopes import Scope

if TYPE_CHECKING:
    from stretto.domain import Group, UserId
    from stretto.http.tokens.authenticator import Verified


_CURSOR_INVALID: Final = ParameterError("cursor", "is not a cursor of this service")
# Any user id that was ever accepted: some old ones begin or end with a blank.
_MEMBER_CURSOR: Final = re.compile(rf"[ -~]{{1,{USER_ID_CHARACTERS_MAX}}}")
# The header fields that `expect_creation` has found refused, and why.
_REFUSED: Final[web.RequestKey[tuple[list[str], Unauthenticated]]] = web.RequestKey(
    "stretto.refused"
)


async def create_group(request: web.Request) -> web.Response:
    """`POST /v1/groups`: create the group, or return the one that this key has created."""
    fields, refusal = request.get(_REFUSED, (None, None))
    # A host's middleware may have replaced the token.
    if refusal is not None and fields == request.headers.getall(hdrs.AUTHORIZATION, []):
        raise refusal
    token = await authenticate(request, Scope.CREATE)
    read_query(request)
    key = read_key(request.headers)
    first_sent = read_first_sent(request.headers)
    wait_seconds = read_wait_seconds(request.headers, WAIT_SECONDS_DEFAULT)
    service = request.app[SERVICE]
    turn = partial(service.creator.turns.take, token.owner)
    async with body_under_way(request, token.owner) as body:
        answer = await service.creator.create_from(
            token.owner,
            key,
            # Kept by no name here: it is dropped once it is parsed.
            body.noted(await read_body(request, turn)),
            wait_seconds=wait_seconds,
            out_of_range=service.age.out_of_range(first_sent),
            claims=token.claims,
            parsed=body.hand_over,
        )
    return web.Response(
        status=201,
        body=answer.document,
        # Built on the request's path, so that it is right under a host's prefix as well.
        headers=created_fields(request.path, answer),
    )


async def expect_creation(request: web.Request) -> None:
    """Ask for the body with `100 Continue`, unless the handler will refuse the head alone."""
    try:
        await authenticate(request, Scope.CREATE)
    except Unauthenticated as error:
        # Not verified twice: a signature costs more than all else of such a request.
        request[_REFUSED] = request.headers.getall(hdrs.AUTHORIZATION, []), error
    except StrettoError:
        return
    else:
        if (request.content_length or 0) <= BODY_BYTES_MAX:
            await _default_expect_handler(request)


async def read_group(request: web.Request) -> web.Response:
    """`GET /v1/groups/{group_id}`: one group, for its members, or a service that reads any."""
    token = await authenticate(request, Scope.READ)
    read_query(request)
    group_id, member = _readable(request, token)
    reads = request.app[SERVICE].reads.groups
    group = await reads.group_of_member(group_id, member, asker=token.owner)
    if group is None:
        raise NotFound
    return json_response(_group_document(group))


async def delete_group(request: web.Request) -> web.Response:
    """`DELETE /v1/groups/{group_id}`: delete a group for good, as one of its owners."""
    token = await authenticate(request, Scope.DELETE)
    read_query(request)
    group_id = _group_id(request)
    await request.app[SERVICE].deleter.delete(group_id, token.owner)
    return web.Response(status=204)


async def list_groups(request: web.Request) -> web.Response:
    """`GET /v1/groups`: the user's groups, newest first."""
    token = await authenticate(request, Scope.READ)
    query = read_query(request, "limit", "cursor")
    limit = read_limit(query)
    cursor = query.get("cursor")
    after = None if cursor is None else _uuid(cursor)
    if cursor is not None and after is None:
        raise RequestInvalid([_CURSOR_INVALID])
    # One more than asked for shows whether there is a next page.
    groups = await request.app[SERVICE].reads.groups.groups_of_member(token.owner, after, limit + 1)
    page = groups[:limit]
    has_more = len(groups) > limit
    return json_response(
        {
            "groups": [_group_document(group) for group in page],
            "next_cursor": str(page[-1].conversation_id) if has_more else None,
        }
    )


async def list_members(request: web.Request) -> web.Response:
    """`GET /v1/groups/{group_id}/members`: the members of a group, for the same."""
    token = await authenticate(request, Scope.READ)
    query = read_query(request, "limit", "cursor")
    limit = read_limit(query)
    after = query.get("cursor")
    if after is not None and _MEMBER_CURSOR.fullmatch(after) is None:
        raise RequestInvalid([_CURSOR_INVALID])
    group_id, member = _readable(request, token)
    members = await request.app[SERVICE].reads.groups.members_of_group(
        group_id, member, after, limit + 1, asker=token.owner
    )
    if members is None:
        raise NotFound
    page = members[:limit]
    return json_response(
        {
            "members": [
                {"user_id": m.user_id, "role": m.role, "joined_at": m.joined_at} for m in page
            ],
            "next_cursor": page[-1].user_id if len(members) > limit else None,
        }
    )


def _readable(request: web.Request, token: Verified) -> tuple[UUID, UserId | None]:
    """Return the path's group id, and who must be a member; None if the token may read any group."""
    member = None if Scope.READ_ANY in token.scopes else token.owner
    return _group_id(request), member


def _group_id(request: web.Request) -> UUID:
    """Return the group id of the path; raises `NotFound`."""
    group_id = _uuid(request.match_info["group_id"])
    if group_id is None:
        raise NotFound
    return group_id


def _uuid(text: str) -> UUID | None:
    """Return the UUID of its usual spelling; Python would also read digits of other scripts, for one."""
    try:
        read = UUID(text)
    except ValueError:
        return None
    return read if str(read) == text.lower() else None


def _group_document(group: Group) -> dict[str, object]:
    return {
        "group_id": str(group.group_id),
        "conversation_id": str(group.conversation_id),
        "owner_id": group.owner_id,
        "name": group.name,
        "description": group.description,
        "kind": group.kind,
        "metadata": None if group.metadata_text is None else orjson.Fragment(group.metadata_text),
        "created_at": group.created_at,
        "members_count": group.members_count,
    }
