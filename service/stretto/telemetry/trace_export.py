"""Exports the traces of a process over OTLP/HTTP, as OpenTelemetry's own variables (`OTEL_*`) say.

OpenTelemetry's default is to export to a collector on this machine. Here nothing is exported unless an
exporter or an endpoint is named: an operator who has neither would only get a line of errors every few
seconds. Spans are sent by a thread of the SDK's; if its queue is full, it drops them.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from stretto.hosts import is_host
from stretto.telemetry.logs import logger
from stretto.telemetry.sdk_log import SdkLog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.sdk.trace import TracerProvider

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_CREDENTIAL_PROVIDERS: Final = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)
_HTTP: Final = "http/protobuf"
# At the stop, for the spans that are not sent yet: a collector may be away.
STOP_SECONDS: Final = 2.0


class _Refused(Exception):
    """A setting that names what we do not export by; its text has no secret."""


@contextmanager
def exporting(environ: Mapping[str, str]) -> Iterator[TracerProvider | None]:
    """Yield what makes tracers whose spans are exported; None if that is not wanted or cannot be had.

    A service without traces serves. So what is missing for them is a warning.
    """
    if not _is_wanted(environ):
        yield None
        return
    sdk_log = SdkLog()
    # The SDK warns of settings from its import on.
    sdk_log.begin()
    provider = None
    try:
        provider = _provider(environ, sdk_log)
    except _Refused as error:
        logger.warning("tracing.unavailable", cause=str(error))
    except ImportError:
        cause = "OpenTelemetry's SDK is not installed: pip install 'stretto[otel]'"
        logger.warning("tracing.unavailable", cause=cause)
    except Exception as error:  # noqa: BLE001 the SDK's own, or a plugin's of it
        # Its text may have a setting's value in it.
        cause = "OpenTelemetry's SDK refuses a setting: look at OTEL_BSP_… and the others of OTEL_…"
        logger.warning("tracing.unavailable", kind=type(error).__name__, cause=cause)
    try:
        yield provider
    finally:
        # It waits for its exporter, for longer than a stop may take.
        stopping = threading.Thread(
            target=_stop, args=(provider, sdk_log), name="last traces", daemon=True
        )
        stopping.start()
        stopping.join(STOP_SECONDS)


def _stop(provider: TracerProvider | None, sdk_log: SdkLog) -> None:
    if provider is not None:
        provider.shutdown()
    # Not before: what the SDK says of its last tries has the same secrets.
    sdk_log.end()


def _is_wanted(environ: Mapping[str, str]) -> bool:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    return exporter != "none" and bool(exporter or _first(environ, _ENDPOINTS))


def _provider(environ: Mapping[str, str], sdk_log: SdkLog) -> TracerProvider:
    """Return a provider; the SDK reads everything else from the environment by itself."""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    protocol = _first(environ, _PROTOCOLS) or _HTTP
    if (exporter, protocol) != ("otlp", _HTTP):
        message = f"traces are exported by otlp over {_HTTP}, not by {exporter} over {protocol}"
        raise _Refused(message)
    _require_address(environ)
    # Only those who export have it installed.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter,
    )
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from stretto.telemetry.collector import CollectorSession  # noqa: PLC0415
    from stretto.telemetry.lean_spans import LeanProvider  # noqa: PLC0415

    # With ours the SDK would not ask the operator's provider for one that adds credentials.
    has_own = bool(_first(environ, _CREDENTIAL_PROVIDERS))
    exporter_over_http = OTLPSpanExporter(
        session=None if has_own else CollectorSession(sdk_log.failed)
    )
    named = "OTEL_SERVICE_NAME" in environ or SERVICE_NAME in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    resource = Resource.create({} if named else {SERVICE_NAME: "stretto"})
    return LeanProvider(BatchSpanProcessor(exporter_over_http), resource, _root_rate(environ))


def _require_address(environ: Mapping[str, str]) -> None:
    """Raise `_Refused` for a collector's address that can never be called, without repeating it."""
    name = next((each for each in _ENDPOINTS if environ.get(each, "").strip()), None)
    if name is None:
        return
    try:
        # Not stripped: the SDK takes it as it is.
        parts = urlsplit(environ[name])
        _ = parts.port
        is_address = parts.scheme in {"http", "https"} and is_host(parts.hostname or "")
    except ValueError:
        is_address = False
    if not is_address:
        message = f"{name} must look like http://collector.internal:4318"
        raise _Refused(message)


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
