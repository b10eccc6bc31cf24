"""SdkLog: says in our own words what OpenTelemetry's SDK logs.

The SDK, and the HTTP client below it, log addresses, headers and texts of errors as they are: with a
collector's password or key in them. So none of their lines reaches the log. Each warning becomes a line
of ours with the kind of the failure, or the module that warns, and which setting to look at.

They arise in the SDK's thread. The event loop, where there is one, logs them, and so folds them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Callable

_LIBRARIES: Final = ("opentelemetry", "urllib3", "requests")
_EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_HEADERS: Final = "look at OTEL_EXPORTER_OTLP_HEADERS"
_CERTIFICATES: Final = (
    "look at OTEL_EXPORTER_OTLP_CERTIFICATE and …_CLIENT_CERTIFICATE, …_CLIENT_KEY"
)
# What to look at where spans were not taken, by the kind of the failure.
_EXPORT_REMEDIES: Final = {
    "HTTP 401": _HEADERS,
    "HTTP 403": _HEADERS,
    "InvalidHeader": _HEADERS,
    "SSLError": _CERTIFICATES,
    "OSError": _CERTIFICATES,
    "ProxyError": "look at HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
}
_EXPORT_REMEDY: Final = "look at the collector, and at OTEL_EXPORTER_OTLP_ENDPOINT"
# What to look at for other warnings, by the module that warns.
_REMEDIES: Final = {
    "opentelemetry.util.re": f"{_HEADERS}: a list of name=value, separated by commas",
    "opentelemetry.exporter.otlp.proto.http._common": (
        "look at OTEL_EXPORTER_OTLP_TIMEOUT and OTEL_EXPORTER_OTLP_COMPRESSION"
    ),
    "opentelemetry.sdk.trace.sampling": (
        "look at OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG: without them all is sampled"
    ),
    "opentelemetry.sdk.trace.export": "look at the numbers in OTEL_BSP_…",
    "opentelemetry.sdk.resources": "look at OTEL_RESOURCE_ATTRIBUTES",
    "opentelemetry.sdk._shared_internal": (
        "spans are dropped: lower OTEL_TRACES_SAMPLER_ARG, or raise OTEL_BSP_MAX_QUEUE_SIZE"
    ),
    "opentelemetry.trace.span": "a client's tracestate is not in order, and is left out",
}
_REMEDY: Final = "look at the settings OTEL_…"


class SdkLog(logging.Handler):
    """Takes the place of all handlers of the libraries' loggers, from `begin` to `end`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._failure = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    def begin(self) -> None:
        """Take the libraries' lines."""
        for library in map(logging.getLogger, _LIBRARIES):
            library.addHandler(self)
            library.propagate = False

    def end(self) -> None:
        """Let the libraries log as before."""
        for library in map(logging.getLogger, _LIBRARIES):
            library.removeHandler(self)
            library.propagate = True

    def failed(self, kind: str) -> None:
        """Take the kind of the last try's failure, or "": the exporter's next line is about it."""
        self._failure = kind

    def emit(self, record: logging.LogRecord) -> None:
        """Log that there was such a line, without its text."""
        if record.name == _EXPORTER:
            self._say(_not_exported, self._failure or "unknown")
        else:
            self._say(_sdk_warned, record.name)

    def _say(self, line: Callable[[str], object], kind: str) -> None:
        if self._loop is None:
            line(kind)
            return
        # The thread may go on after the loop's end.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(line, kind)


def _not_exported(kind: str) -> None:
    remedy = _EXPORT_REMEDIES.get(kind, _EXPORT_REMEDY)
    logger.warning("tracing.not_exported", kind=kind, remedy=remedy)


def _sdk_warned(kind: str) -> None:
    logger.warning("tracing.sdk_warned", kind=kind, remedy=_REMEDIES.get(kind, _REMEDY))
