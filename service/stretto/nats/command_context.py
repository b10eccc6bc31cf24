"""The context of a command: its id and its span, by the same rules as those of a request over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.telemetry.request_context import (
    CURRENT_REQUEST,
    ID_FIELD,
    RequestContext,
    taken_id,
)
from stretto.telemetry.trace_context import TRACEPARENT, TRACESTATE, as_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stretto.telemetry.tracing import Tracing

KEY: Final = "Idempotency-Key"


def context_of(headers: Mapping[str, str], tracing: Tracing | None) -> RequestContext:
    """Return the context of one delivery of a command; its span begins, if it is sampled."""
    context = RequestContext(taken_id(headers.get(ID_FIELD), headers.get(KEY, "")))
    if tracing is not None:
        parent, state = headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")
        context.trace = tracing.begin("stretto.command", parent, state, is_message=True)
    return context


def end_span(context: RequestContext, outcome: str | None) -> None:
    """End the span of a delivery, if it is sampled; without an outcome, it was interrupted."""
    if context.trace is not None:
        attributes = {"messaging.system": "nats", "stretto.request_id": context.id}
        if outcome is not None:
            attributes["stretto.outcome"] = outcome
        context.trace.end(attributes, None if outcome is not None else "interrupted")


def own_headers() -> dict[str, str]:
    """Return how an outcome names its command: by its id, and by its span, if that is sampled."""
    context = CURRENT_REQUEST.get()
    if context is None:
        return {}
    trace_context = None if context.trace is None else context.trace.context
    return {ID_FIELD: context.id, **as_fields(trace_context)}
