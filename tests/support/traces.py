"""Spans that are kept in memory, and a collector that takes them over OTLP/HTTP."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from stretto.telemetry.lean_spans import LeanProvider
from stretto.telemetry.request_context import RequestContext
from stretto.telemetry.tracing import Tracing
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.sampling import Sampler

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00"


@dataclass(frozen=True)
class Span:
    """What a collector gets of a span."""

    name: str
    trace_id: str
    id: str
    parent_id: str
    links: tuple[str, ...] = ()
    """Ids of the spans that it links to."""
    attributes: dict[str, Any] = field(default_factory=dict, compare=False)
    kind: str = ""


class Spans:
    """A provider of tracers, and the spans that have ended."""

    def __init__(self, sampler: Sampler | None = None, *, is_lean: bool = False) -> None:
        """Take a sampler; by default, only what has a sampled parent is sampled.

        With `is_lean`, the spans are those of a process that exports, else those of a host.
        """
        self.exporter = InMemorySpanExporter()
        processor = SimpleSpanProcessor(self.exporter)
        self.provider: TracerProvider
        if is_lean:
            self.provider = LeanProvider(processor, Resource.create({}), None)
            self.provider.sampler = sampler or ParentBased(ALWAYS_OFF)
        else:
            self.provider = TracerProvider(
                sampler=sampler or ParentBased(ALWAYS_OFF), shutdown_on_exit=False
            )
            self.provider.add_span_processor(processor)

    @property
    def ended(self) -> list[Span]:
        """Return them in the order of their ends."""
        return [_of_sdk(each) for each in self.exporter.get_finished_spans()]

    def named(self, name: str) -> list[Span]:
        """Return those of a name."""
        return [each for each in self.ended if each.name == name]

    async def until(self, *names: str) -> None:
        """Wait until spans of these names have ended."""
        await until(lambda: {*names} <= {each.name for each in self.ended})


RAISING_PLACES = ("on_start", "on_end", "sampler")


def raising_spans(place: str, error: BaseException) -> Spans:
    """Return a host's spans, whose code raises at a place, each time that it is called."""

    def fail(*_: object, **__: object) -> None:
        raise error

    sampler = ParentBased(ALWAYS_OFF)
    if place == "sampler":
        sampler.should_sample = fail  # type: ignore[method-assign,assignment]
    spans = Spans(sampler)
    if place != "sampler":
        processor = SpanProcessor()
        setattr(processor, place, fail)
        spans.provider.add_span_processor(processor)
    return spans


def traced_request() -> RequestContext:
    """Return the context of a request that its client traces."""
    request = RequestContext()
    request.trace = Tracing(Spans().provider).begin("request", SAMPLED, "")
    return request


class Collector:
    """Takes traces as a collector does."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self._has_got = asyncio.Condition()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds for the spans that have come."""
        async with self._has_got:
            await self._has_got.wait_for(holds)

    async def handle(self, request: web.Request) -> web.Response:
        """Take a batch of spans."""
        body = await request.read()
        # aiohttp has undone it, where it is named in the usual way.
        if body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        async with self._has_got:
            for each in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.services |= {
                    pair.value.string_value
                    for pair in each.resource.attributes
                    if pair.key == "service.name"
                }
                self.spans += [_of_wire(span) for scope in each.scope_spans for span in scope.spans]
            self._has_got.notify_all()
        return web.Response(content_type="application/x-protobuf")


@asynccontextmanager
async def collecting_traces() -> AsyncIterator[Collector]:
    """Run a collector on the loopback."""
    collector = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", collector.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        collector.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield collector
    finally:
        await runner.cleanup()


def _of_sdk(span: ReadableSpan) -> Span:
    own = span.get_span_context()
    assert own is not None
    return Span(
        span.name,
        f"{own.trace_id:032x}",
        f"{own.span_id:016x}",
        "" if span.parent is None else f"{span.parent.span_id:016x}",
        tuple(f"{link.context.span_id:016x}" for link in span.links),
        dict(span.attributes or {}),
        span.kind.name,
    )


def _of_wire(span: Any) -> Span:
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple(link.span_id.hex() for link in span.links),
        {pair.key: _value(pair.value) for pair in span.attributes},
    )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))
