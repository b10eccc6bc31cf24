"""A batch of writes as the statements that claim and lead take it: an array for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from stretto.domain import event_id
from stretto.telemetry.request_context import traces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.creation.ports import Write
    from stretto.telemetry.request_context import RequestContext


def attempt_columns(writes: Sequence[Write]) -> tuple[Sequence[object], ...]:
    """Return what a claim writes: group ids, owners, fingerprints and tokens."""
    return (
        [write.group_id for write in writes],
        [write.new_group.owner for write in writes],
        [write.fingerprint for write in writes],
        [write.claim_token for write in writes],
    )


def group_columns(writes: Sequence[Write]) -> tuple[Sequence[object] | None, ...]:
    """Return what a lead writes: conversations, names, descriptions, recipients, ids of events, traces.

    If no request of the batch is sampled, there is no array of traces.
    """
    recipients = [(write.new_group.owner, *write.new_group.members) for write in writes]
    return (
        [write.conversation_id for write in writes],
        [write.new_group.name for write in writes],
        [write.new_group.description for write in writes],
        [_array_literal(users) for users in recipients],
        [event_id(write.conversation_id) for write in writes],
        _trace_contexts([write.request for write in writes]),
    )


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
