"""Routes for operators: liveness, readiness, metrics."""

from __future__ import annotations

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from stretto.http import readiness
from stretto.http.service import INSTANCE, SERVICE


async def livez(_: web.Request) -> web.Response:
    """`GET /livez`: 200 as long as the event loop runs."""
    return readiness.alive()


async def readyz(request: web.Request) -> web.Response:
    """`GET /readyz`: 503 if the process stops, knows no key, or nothing can be read or written.

    An issuer that goes away changes nothing while its keys are known: another instance would have
    none.

    An actor that no request waits for, such as the relay, is named and changes nothing: another
    instance would not mend it (ADR 0023).
    """
    service = request.app[SERVICE]
    if (refusal := readiness.refusal(service)) is not None:
        return refusal
    asked = service.database_asked.get(readiness.asking(service))
    return readiness.answer(service, does_database_answer=await asked)


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`: of this instance, in Prometheus' text format.

    It takes milliseconds to write, and needs no token: all that ask meanwhile get the next one.
    """
    service = request.app[SERVICE]
    body = await service.exposition.get(request.app.get(INSTANCE, service.own_exposition))
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})
