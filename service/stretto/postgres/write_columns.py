"""A batch of writes as the statements that claim and lead take it: an array for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson

from stretto.domain import event_id
from stretto.telemetry.request_context import traces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.creation.ports import Write
    from stretto.domain import NewGroup
    from stretto.telemetry.request_context import RequestContext

# A claim waits for a row only while another claim of its key commits, which takes a few
# milliseconds. A longer wait ends the claim, so that it does not delay the other keys of the batch.
# A claim that is alone, because its batch was delayed, waits less.
CLAIM_LOCK_SECONDS: Final = 0.1
CLAIM_ALONE_LOCK_SECONDS: Final = 0.02


def attempt_columns(writes: Sequence[Write]) -> tuple[Sequence[object], ...]:
    """Return what a claim writes: group ids, owners, fingerprints and tokens."""
    return (
        [write.group_id for write in writes],
        [write.new_group.owner for write in writes],
        [write.fingerprint for write in writes],
        [write.claim_token for write in writes],
    )


def claim_columns(writes: Sequence[Write]) -> tuple[object, ...]:
    """Return what a claim takes: what it writes, and how long it waits for a row."""
    seconds = CLAIM_ALONE_LOCK_SECONDS if len(writes) == 1 else CLAIM_LOCK_SECONDS
    return (*attempt_columns(writes), milliseconds(seconds))


def lead_ids(writes: Sequence[Write]) -> tuple[Sequence[object], ...]:
    """Return which attempts a lead is of: their group ids and tokens."""
    return [write.group_id for write in writes], [write.claim_token for write in writes]


def group_columns(writes: Sequence[Write]) -> tuple[Sequence[object] | None, ...]:
    """Return what a lead writes: an array for each of its columns, but none for one without values.

    In order: conversations, names, descriptions, recipients, ids of events, traces, kinds, metadata,
    and how many recipients behind the owner are admins.
    """
    groups = [write.new_group for write in writes]
    are_plain = all(group.is_plain for group in groups)
    return (
        [write.conversation_id for write in writes],
        [group.name for group in groups],
        [group.description for group in groups],
        [_array_literal(_recipients(group)) for group in groups],
        [event_id(write.conversation_id) for write in writes],
        _trace_contexts([write.request for write in writes]),
        None if are_plain else [group.kind for group in groups],
        None if are_plain else [group.metadata for group in groups],
        None if are_plain else [len(group.admins) for group in groups],
    )


def _recipients(group: NewGroup) -> tuple[str, ...]:
    """Return the owner, then the admins, then all other members: a place says the role."""
    if not group.admins:
        return group.owner, *group.members
    admins = {*group.admins}
    return group.owner, *group.admins, *(user for user in group.members if user not in admins)


def _trace_contexts(requests: Sequence[RequestContext | None]) -> list[str | None] | None:
    if not traces_of(requests):
        return None
    return [None if each is None or each.trace is None else each.trace.context for each in requests]


def milliseconds(seconds: float) -> str:
    """Return a time-out in PostgreSQL's notation."""
    return f"{seconds * 1000:.0f}ms"


def _array_literal(users: Sequence[str]) -> str:
    """Return a text[] in PostgreSQL's notation.

    The driver cannot send arrays of arrays of different lengths; it can send a list of literals.
    For printable ASCII a quoted element is written exactly as in JSON.
    """
    return "{" + orjson.dumps(users)[1:-1].decode() + "}"
