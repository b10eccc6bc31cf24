"""A batch of writes as the statements that claim and lead take it: an array for each column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from stretto.domain import event_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.creation.ports import Write


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
        [_trace_context(write) for write in writes] if any(map(_is_sampled, writes)) else None,
    )


def _is_sampled(write: Write) -> bool:
    return write.request is not None and write.request.trace is not None


def _trace_context(write: Write) -> str | None:
    if write.request is None or write.request.trace is None:
        return None
    return write.request.trace.context


def milliseconds(seconds: float) -> str:
    """Return a time-out in PostgreSQL's notation."""
    return f"{seconds * 1000:.0f}ms"


def _array_literal(users: Sequence[str]) -> str:
    """Return a text[] in PostgreSQL's notation.

    The driver cannot send arrays of arrays of different lengths; it can send a list of literals.
    For printable ASCII a quoted element is written exactly as in JSON.
    """
    return "{" + orjson.dumps(users)[1:-1].decode() + "}"
