"""Exports the traces of a process over OTLP/HTTP, as OpenTelemetry's own variables (`OTEL_*`) say.

OpenTelemetry's default is to export to a collector on this machine. Here nothing is exported unless an
exporter or an endpoint is named: an operator who has neither would only get a line of errors every few
seconds. Spans are sent by a thread of the SDK's; if its queue is full, it drops them.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.sdk.trace import TracerProvider

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP: Final = "http/protobuf"
# At the stop, for the spans that are not sent yet: a collector may be away.
STOP_SECONDS: Final = 2.0


@contextmanager
def exporting(environ: Mapping[str, str]) -> Iterator[TracerProvider | None]:
    """Yield what makes tracers whose spans are exported; None if that is not wanted or cannot be had.

    A service without traces serves. So what is missing for them is a warning.
    """
    provider = None
    if _is_wanted(environ):
        try:
            provider = _provider(environ)
        except (ImportError, ValueError) as error:
            cause = str(error)
            if isinstance(error, ImportError):
                cause = "OpenTelemetry's SDK is not installed: pip install 'stretto[otel]'"
            logger.warning("tracing.unavailable", cause=cause)
    try:
        yield provider
    finally:
        if provider is not None:
            # It waits for its exporter, for longer than a stop may take.
            stopping = threading.Thread(target=provider.shutdown, name="last traces", daemon=True)
            stopping.start()
            stopping.join(STOP_SECONDS)


def _is_wanted(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return exporter != "none" and bool(exporter or _first(environ, _ENDPOINTS))


def _provider(environ: Mapping[str, str]) -> TracerProvider:
    """Return a provider; the SDK reads everything else from the environment by itself."""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    protocol = _first(environ, _PROTOCOLS) or _HTTP
    if (exporter, protocol) != ("otlp", _HTTP):
        message = f"traces are exported by otlp over {_HTTP}, not by {exporter} over {protocol}"
        raise ValueError(message)
    # Only those who export have it installed.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from stretto.telemetry.lean_spans import LeanProvider  # noqa: PLC0415

    named = "OTEL_SERVICE_NAME" in environ or SERVICE_NAME in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if named else {SERVICE_NAME: "stretto"})
    return LeanProvider(BatchSpanProcessor(OTLPSpanExporter()), resource, _root_rate(environ))


def _root_rate(environ: Mapping[str, str]) -> float | None:
    """Return the share of traces that begin here, if the sampler is the usual one: by a ratio.

    None leaves it to the SDK, as it does what is no number.
    """
    if environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() != "parentbased_traceidratio":
        return None
    try:
        rate = float(environ.get("OTEL_TRACES_SAMPLER_ARG", ""))
    except ValueError:
        return None
    return rate if 0.0 <= rate <= 1.0 else None


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := environ.get(name, "").strip())), "")
