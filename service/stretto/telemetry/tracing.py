"""Tracing: spans of a request and of all that follows from it, by OpenTelemetry's API.

Only a sampled request has a `Trace`. Any other has None in its place, and no part does more than to see
that. The API is imported when a host, or the process, hands in a provider of tracers; without one,
nothing of OpenTelemetry need be installed.

A batch works for many requests: its span is the child of one of them and links to all. What is done for
an event is a child of the request that has created the group. The event carries that context
(`trace_context.py`), so the trace goes on in other processes.

Samplers and processors of spans are a host's code, and run in the middle of a write or of an answer.
What they raise is reported and goes no further: the work goes on, untraced where no span has begun.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from importlib.metadata import version
from random import random
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from stretto.kinds import is_a
from stretto.telemetry.trace_context import Parent, as_text, read_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanKind, TracerProvider

_NO_ATTRIBUTES: Final[Mapping[str, str | int]] = MappingProxyType({})


class _Guard:
    """A block of calls that may run a host's code: what that raises ends here.

    A cancellation too: nothing is awaited in the block, so it is none of the task's.
    """

    def __init__(self, report: Callable[[BaseException], object]) -> None:
        self._report = report

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: TracebackType | None) -> bool:
        # A signal's handler raises these, for the process.
        if error is None or is_a(error, (KeyboardInterrupt, SystemExit)):
            return False
        self._report(error)
        return True


class Tracing:
    """Begins the spans of a component."""

    def __init__(
        self, provider: TracerProvider, report: Callable[[BaseException], object] = lambda _: None
    ) -> None:
        """Take a host's provider, and what is called with each error of the host's code."""
        # Only those who trace have it installed.
        from opentelemetry import context, trace  # noqa: PLC0415

        self.api = trace
        self.guard = _Guard(report)
        self.tracer = provider.get_tracer("stretto", version("stretto"))
        self._root_rate: float = getattr(provider, "root_rate", 1.0)
        """The share of the requests without a parent that the sampler is asked for."""
        self.no_parent = context.Context()

    def begin(
        self, name: str, traceparent: str, tracestate: str, *, is_message: bool = False
    ) -> Trace | None:
        """Begin the span of a request, whose parent may be none; None if it is not sampled.

        Most are not, and a look at the sampler of the SDK takes half as long as an exact repeat. So a
        parent that is not sampled decides by itself, and without one, chance does.
        """
        parent = read_parent(traceparent)
        if parent is None:
            return self.begin_root(name, is_message=is_message)
        if not parent.is_sampled:
            return None
        return self._begun(name, self._kind(is_message), parent, tracestate)

    def begin_root(self, name: str, *, is_message: bool = False) -> Trace | None:
        """Begin the span of a request that has no parent; None if it is not sampled."""
        if random() >= self._root_rate:
            return None
        return self._begun(name, self._kind(is_message))

    def _kind(self, is_message: bool) -> SpanKind:  # noqa: FBT001
        return self.api.SpanKind.CONSUMER if is_message else self.api.SpanKind.SERVER

    def resume(
        self, name: str, trace_context: str | None, *, is_client: bool = False
    ) -> Trace | None:
        """Begin a span of what is done for an event; None if its request was not sampled."""
        if not trace_context:
            return None
        traceparent, _, tracestate = trace_context.partition(" ")
        parent = read_parent(traceparent)
        if parent is None or not parent.is_sampled:
            return None
        kind = self.api.SpanKind.CLIENT if is_client else self.api.SpanKind.PRODUCER
        return self._begun(name, kind, parent, tracestate)

    def _begun(
        self, name: str, kind: SpanKind, parent: Parent | None = None, tracestate: str = ""
    ) -> Trace | None:
        with self.guard:
            context = self.no_parent if parent is None else self._context_of(parent, tracestate)
            span = self.tracer.start_span(name, context=context, kind=kind)
            return Trace(self, span) if span.get_span_context().trace_flags.sampled else None
        return None

    def _context_of(self, parent: Parent, tracestate: str) -> Context:
        """Return a context of the API in which another process's span is the current one."""
        api = self.api
        remote = api.SpanContext(
            parent.trace_id,
            parent.span_id,
            is_remote=True,
            trace_flags=api.TraceFlags(parent.flags),
            trace_state=api.TraceState.from_header([tracestate]) if tracestate else None,
        )
        context: Context = api.set_span_in_context(api.NonRecordingSpan(remote), self.no_parent)
        return context


class Trace:
    """A sampled span."""

    __slots__ = ("_own", "_queued_ns", "_span", "_state", "_tracing")

    def __init__(self, tracing: Tracing, span: Span) -> None:
        self._tracing = tracing
        self._span = span
        # Read under the guard: a sampler may have returned a state of any type.
        self._own = span.get_span_context()
        self._state: str = self._own.trace_state.to_header()
        self._queued_ns = 0
        """Since when a write of this request waits in the mailbox; 0 if none does."""

    @property
    def id(self) -> str:
        """The trace's id, as `traceparent` has it: the same in every span of the trace."""
        return f"{self._own.trace_id:032x}"

    @property
    def context(self) -> str:
        """The span as a parent, as an event carries it."""
        parent = Parent(self._own.trace_id, self._own.span_id, self._own.trace_flags)
        return as_text(parent, self._state)

    def child(
        self, name: str, *, links: Sequence[Trace] = (), began_ns: int | None = None
    ) -> Trace | None:
        """Begin a span below this one, now or at an earlier time; None if a host's code raises."""
        api = self._tracing.api
        with self._tracing.guard:
            span = self._tracing.tracer.start_span(
                name,
                context=api.set_span_in_context(self._span, self._tracing.no_parent),
                links=[api.Link(each._own) for each in links],  # noqa: SLF001
                start_time=began_ns,
            )
            return Trace(self._tracing, span)
        return None

    def end(
        self, attributes: Mapping[str, str | int] = _NO_ATTRIBUTES, error: object = None
    ) -> None:
        """End the span; `error` is the name of a failure, or what has one: its text is left out."""
        with self._tracing.guard:
            if attributes:
                self._span.set_attributes(dict(attributes))
            if error is not None:
                api = self._tracing.api
                # Not `isinstance`: a host's error may have code of its own for it.
                name = error if type(error) is str else type(error).__name__
                self._span.set_attribute("error.type", name)
                self._span.set_status(api.Status(api.StatusCode.ERROR))
        with self._tracing.guard:
            self._span.end()

    def queued(self) -> None:
        """Note that a write is handed to the writers."""
        self._queued_ns = time.time_ns()

    def taken(self, batch: Trace) -> None:
        """Record the wait for a writer, whose batch begins now."""
        if self._queued_ns:
            wait = self.child("stretto.mailbox", links=[batch], began_ns=self._queued_ns)
            self._queued_ns = 0
            if wait is not None:
                wait.end()


_BATCH: Final[ContextVar[Trace | None]] = ContextVar("stretto.batch", default=None)


# Most blocks are not recorded: a generator that only yields would cost each of them a microsecond.
_UNRECORDED: Final = nullcontext()


def batch_span(traces: Sequence[Trace], writes: int) -> AbstractContextManager[None]:
    """Record the batch in the block, in which these of its requests are sampled."""
    return _recorded_batch(traces, writes) if traces else _UNRECORDED


@contextmanager
def _recorded_batch(traces: Sequence[Trace], writes: int) -> Iterator[None]:
    batch = traces[0].child("stretto.batch", links=traces)
    if batch is None:
        yield
        return
    for trace in traces:
        trace.taken(batch)
    before = _BATCH.set(batch)
    try:
        yield
    finally:
        _BATCH.reset(before)
        batch.end({"stretto.writes": writes})


def span_of(trace: Trace | None, name: str) -> AbstractContextManager[None]:
    """Record the block, if this is a sampled request."""
    return _UNRECORDED if trace is None else _recorded(trace, name)


@contextmanager
def _recorded(trace: Trace, name: str) -> Iterator[None]:
    span = trace.child(name)
    try:
        yield
    except BaseException as error:
        if span is not None:
            span.end(error=error)
        raise
    if span is not None:
        span.end()


def step_of_batch(name: str) -> AbstractContextManager[None]:
    """Record the block as a step of the batch that is being written, if that is recorded."""
    return span_of(_BATCH.get(), name)
