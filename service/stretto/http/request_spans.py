"""The span of a request: which requests have one, and what it says.

Routes of the contract have one, but for `/v1/events`: a session is no request, and lasts for hours.
Health checks and metrics have none, and a creation that is rejected before it is parsed has none:
under an overload, a span would cost as much as the rejection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.telemetry.trace_context import TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from stretto.telemetry.request_context import RequestContext
    from stretto.telemetry.tracing import Trace, Tracing

_PARENT: Final = TRACEPARENT.encode()
_STATE: Final = TRACESTATE.encode()


def is_traced(route: str) -> bool:
    """Whether requests of a route have spans."""
    return "/v1/" in route and not route.endswith("/events")


def begin_span(tracing: Tracing, request: web.Request, route: str) -> Trace | None:
    """Begin the span of a request; None if it is not sampled."""
    parents = request.headers.getall(TRACEPARENT, [])
    # More than one parent is none (W3C Trace Context, 4.3); states may come in several fields.
    parent = parents[0] if len(parents) == 1 else ""
    state = ",".join(request.headers.getall(TRACESTATE, []))
    return tracing.begin(f"{request.method} {route}", parent, state)


def begin_plain_span(tracing: Tracing, name: str, fields: Mapping[bytes, bytes]) -> Trace | None:
    """Begin the span of a request on the fast path; None if it is not sampled."""
    parent = fields.get(_PARENT)
    if parent is None:
        return tracing.begin_root(name)
    return tracing.begin(name, parent.decode(), fields.get(_STATE, b"").decode())


def end_span(context: RequestContext, method: str, route: str, status: int | None) -> None:
    """End the span of a request, if it is sampled; without a status, its client has left."""
    if context.trace is None:
        return
    attributes: dict[str, str | int] = {
        "http.request.method": method,
        "http.route": route,
        "stretto.request_id": context.id,
    }
    error = "client_left"
    if status is not None:
        attributes["http.response.status_code"] = status
        # What a client has done wrong is no error of the server's span.
        error = str(status) if status >= 500 else ""
    context.trace.end(attributes, error or None)
