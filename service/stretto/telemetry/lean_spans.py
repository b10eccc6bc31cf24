"""Spans that the process exports, made at a third of the cost of the SDK's.

A span of OpenTelemetry's SDK is built for any program: it checks limits, takes locks and is copied at
its end. Ours are used by one thread, have a few attributes of known length, and end once. So `Tracer`
and `Span` are our own, behind OpenTelemetry's API. The SDK samples and exports. A host that hands in a
provider has the SDK's spans.

Only a process that exports has the SDK installed: `trace_export.py` imports this where it does.
"""

from __future__ import annotations

import time
from random import getrandbits
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Decision, ParentBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracer,
    SpanContext,
    SpanKind,
    Status,
    TraceFlags,
    get_current_span,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Link, Span, StatusCode, Tracer, TraceState
    from opentelemetry.util.types import AnyValue, Attributes


class LeanProvider(TracerProvider):
    """The SDK's, with tracers of ours."""

    def __init__(
        self, processor: SpanProcessor, resource: Resource, root_rate: float | None
    ) -> None:
        """Take what exports the spans, and the share of traces that begin here.

        `Tracing` draws that share itself, so that most requests do not come to the sampler: those
        without a parent that do are chosen. None leaves the choice to the sampler that the
        environment names.
        """
        sampler = None if root_rate is None else ParentBased(ALWAYS_ON)
        super().__init__(sampler=sampler, resource=resource, shutdown_on_exit=False)
        self.root_rate = 1.0 if root_rate is None else root_rate
        self._processor = processor
        # It ends with this provider.
        self.add_span_processor(processor)

    def get_tracer(
        self,
        instrumenting_module_name: str,
        instrumenting_library_version: str | None = None,
        schema_url: str | None = None,
        attributes: Attributes = None,
    ) -> Tracer:
        """Return a tracer of ours."""
        scope = InstrumentationScope(
            instrumenting_module_name, instrumenting_library_version, schema_url, attributes
        )
        resource = _SameResource(self.resource.attributes, self.resource.schema_url)
        return _LeanTracer(self.sampler, self._processor, resource, scope)


class _SameResource(Resource):
    """The resource of all spans: the export takes its hash for each, which would be one of its text."""

    __hash__ = object.__hash__


class _LeanTracer(NoOpTracer):
    """Begins spans."""

    def __init__(
        self,
        sampler: Sampler,
        processor: SpanProcessor,
        resource: Resource,
        scope: InstrumentationScope,
    ) -> None:
        self._sampler = sampler
        self._processor = processor
        self._resource = resource
        self._scope = scope

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        start_time: int | None = None,
        *_: object,
        **__: object,
    ) -> Span:
        """Begin a span; the sampler decides of one that has no parent in this process."""
        parent = get_current_span(context).get_span_context()
        if parent.is_valid and not parent.is_remote:
            # Only what is sampled has children.
            trace_id, flags = parent.trace_id, parent.trace_flags
            state: TraceState | None = parent.trace_state
        else:
            trace_id = parent.trace_id if parent.is_valid else getrandbits(128)
            sampled = self._sampler.should_sample(context, trace_id, name, kind, attributes, links)
            # Our own trace ids are random (W3C Trace Context 2, 3.2.2.5.2).
            is_random = parent.trace_flags.random_trace_id if parent.is_valid else True
            flags = TraceFlags(
                (TraceFlags.SAMPLED if sampled.decision is Decision.RECORD_AND_SAMPLE else 0)
                | (TraceFlags.RANDOM_TRACE_ID if is_random else 0)
            )
            attributes, state = sampled.attributes, sampled.trace_state
        own = SpanContext(
            trace_id, getrandbits(64), is_remote=False, trace_flags=flags, trace_state=state
        )
        if not flags.sampled:
            return NonRecordingSpan(own)
        return _LeanSpan(
            self._processor,
            dict(attributes or {}),
            name=name,
            context=own,
            parent=parent if parent.is_valid else None,
            resource=self._resource,
            links=links or (),
            kind=kind,
            start_time=time.time_ns() if start_time is None else start_time,
            instrumentation_scope=self._scope,
        )


class _LeanSpan(NonRecordingSpan, ReadableSpan):
    """A sampled span; what the API has beside these methods does nothing."""

    _context: SpanContext

    def __init__(
        self, processor: SpanProcessor, attributes: dict[str, AnyValue], **readable: Any
    ) -> None:
        """Take what exports it, its first attributes, and what else a `ReadableSpan` has."""
        ReadableSpan.__init__(self, attributes=attributes, **readable)
        self._processor = processor
        self._own = attributes

    def is_recording(self) -> bool:
        """Whether it has not ended."""
        return self._end_time is None

    def set_attribute(self, key: str, value: AnyValue) -> None:
        """Set an attribute."""
        self._own[key] = value

    def set_attributes(self, attributes: Mapping[str, AnyValue]) -> None:
        """Set attributes."""
        self._own.update(attributes)

    def set_status(self, status: Status | StatusCode, *_: object, **__: object) -> None:
        """Set the status, without a description: that would be the text of an error."""
        self._status = Status(status.status_code if isinstance(status, Status) else status)

    def end(self, end_time: int | None = None) -> None:
        """End it, once, and hand it to what exports it."""
        if self._end_time is None:
            self._end_time = time.time_ns() if end_time is None else end_time
            self._processor.on_end(self)
