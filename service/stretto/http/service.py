"""What every handler needs, and the middleware that turns errors into problem documents."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final

import orjson
from aiohttp import hdrs, web

from stretto.creation.flight import public_error
from stretto.errors import InternalError, RequestInvalid, StrettoError
from stretto.http.bodies import BodyClient
from stretto.http.problems import final_problem, problem_of_exception, problem_response
from stretto.http.request_ids import context_of
from stretto.http.request_spans import begin_span, end_span, is_traced
from stretto.runtime.shared import Shared
from stretto.store_errors import StoreError
from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stretto.creation.age import AttemptAge
    from stretto.creation.creator import GroupCreator
    from stretto.creation.deletion import GroupDeleter
    from stretto.creation.lookup import AttemptLookup
    from stretto.creation.reads import Reads
    from stretto.events.hub import SessionHub
    from stretto.events.scan import Ask, Stretch
    from stretto.http.admission import LoadShedder
    from stretto.http.cors import Cors
    from stretto.http.settings import StreamSettings
    from stretto.http.tokens.authenticator import Authenticator, Verified
    from stretto.http.tokens.scopes import Scope
    from stretto.runtime.mailbox import Mailbox
    from stretto.runtime.runner import Runner
    from stretto.telemetry.metrics import Metrics
    from stretto.telemetry.tracing import Tracing

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Unknown paths share one label: a scanner must not fill the registry. The parser refuses unknown
# methods.
_NO_ROUTE: Final = "none"


@dataclass(frozen=True, slots=True)
class Service:
    """The running parts behind the routes."""

    creator: GroupCreator
    lookup: AttemptLookup
    deleter: GroupDeleter
    reads: Reads
    age: AttemptAge
    authenticator: Authenticator
    metrics: Metrics
    hub: SessionHub
    history: Mailbox[Ask, Stretch]
    streams: StreamSettings
    cors: Cors
    shedder: LoadShedder
    draining: asyncio.Event
    """Set when the process will stop: `/readyz` is 503, and connections end with their next answer."""
    runner: Runner
    tracing: Tracing | None = None
    """None without a provider of tracers."""
    exposition: Shared[bytes] = field(default_factory=Shared)
    database_asked: Shared[bool] = field(default_factory=Shared)
    """Whether the database takes our work, as `/readyz` asks."""

    async def own_exposition(self) -> bytes:
        """Return the metrics of this process in Prometheus' text format."""
        return self.metrics.exposition()


SERVICE: Final = web.AppKey("stretto.service", Service)
INSTANCE: Final[web.AppKey[Callable[[], Awaitable[bytes]]]] = web.AppKey("stretto.instance")
"""In a worker: what returns the metrics of all workers."""
BEGAN: Final = web.RequestKey("stretto.began", float)
"""When our own server took the request, by `perf_counter`: it may wait for a turn before its handler."""


async def authenticate(request: web.Request, scope: Scope) -> Verified:
    """Return what the request's token says; raises `Unauthenticated` or `InsufficientScope`."""
    fields = request.headers.getall(hdrs.AUTHORIZATION, [])
    authorization = fields[0] if len(fields) == 1 else None
    token = await verify(request, authorization)
    token.require(scope)
    return token


async def verify(request: web.Request, authorization: str | None) -> Verified:
    """Return what a token says, and note whose connection it is: it may be verified only now.

    A session may go on for a day, and what waits for its client must not count as strangers'.
    """
    token = await request.app[SERVICE].authenticator.verify(authorization)
    if isinstance(request.protocol, BodyClient):
        request.protocol.user = token.owner
    return token


def json_response(document: object, *, status: int = 200) -> web.Response:
    """Return the document as JSON."""
    body = orjson.dumps(document, default=str)
    return web.Response(status=status, body=body, content_type="application/json")


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every error as a problem document, and count every request."""
    # A host's own server does not note it.
    began = request.get(BEGAN) or perf_counter()
    service = request.app[SERVICE]
    route = request.match_info.route.resource
    label = route.canonical if route else _NO_ROUTE
    with context_of(request) as context:
        if service.tracing is not None and is_traced(label):
            context.trace = begin_span(service.tracing, request, label)
        try:
            preflight = service.cors.preflight(request)
            response = await _answer(request, handler) if preflight is None else preflight
        except asyncio.CancelledError:
            end_span(context, request.method, label, None)
            raise
    end_span(context, request.method, label, response.status)
    # A stream lasts as long as its session: that is not the time of an answer.
    seconds = None if response.prepared else perf_counter() - began
    service.metrics.count_request(request.method, label, response.status, seconds)
    return response


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except StrettoError as error:
        return final_problem(error)
    except StoreError as error:
        return final_problem(public_error(error))
    except web.HTTPException as exception:
        return problem_of_exception(exception)
    except asyncio.CancelledError:
        raise
    except Exception as error:  # noqa: BLE001 the last resort: no client sees a bare error page
        is_left = request.transport is None or request.transport.is_closing()
        if isinstance(error, ConnectionError) and is_left:
            # Counted, and never sent.
            return problem_response(RequestInvalid([], "The client left before its answer."))
        logger.exception("request.crashed")
        return problem_response(InternalError())
