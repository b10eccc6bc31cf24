"""When a process exports its traces, and that nothing it lacks for that keeps it from serving."""

from __future__ import annotations

import logging
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from stretto.telemetry import trace_export
from stretto.telemetry.trace_export import exporting
from stretto.telemetry.tracing import Tracing
from support.traces import SAMPLED

if TYPE_CHECKING:
    from collections.abc import Mapping

SOON_SECONDS = 0.05
# What waits for as long has met a bug.
LONG_SECONDS = 20.0
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
NO_ADDRESSES = (
    "s3cret",
    "me:s3cret@collector.internal:4318",
    "htp://me:s3cret@collector.internal:4318",
    "http://me:s3cret@collector.internal:port",
    "http://me:s3cret@",
    "https://[::",
    "http://collector.internal:4318 ",
)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_SERVICE_NAME": "chat"},
        {"OTEL_TRACES_SAMPLER": "always_on"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
        {**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"},
        {**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"},
    ],
    ids=["nothing", "a name", "a sampler", "an empty endpoint", "no exporter", "disabled"],
)
def test_nothing_is_exported_unless_it_is_asked_for(
    environ: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is said."""
    with exporting(environ) as provider:
        assert provider is None
    assert [] == caplog.records


@pytest.mark.parametrize(
    "environ",
    [ENDPOINT, {"OTEL_TRACES_EXPORTER": "otlp"}, {**ENDPOINT, "OTEL_TRACES_EXPORTER": " OTLP "}],
    ids=["an endpoint", "an exporter", "both"],
)
@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("stretto", {}),
        (None, {"OTEL_SERVICE_NAME": "chat"}),
        (None, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=chat"}),
    ],
)
def test_an_exporter_or_an_endpoint_asks_for_it(
    name: str | None, named: Mapping[str, str], environ: Mapping[str, str]
) -> None:
    """The service has our name, unless it is given another one."""
    with exporting({**environ, **named}) as provider:
        assert provider is not None
        service = provider.resource.attributes["service.name"]
    assert (name == "stretto") == (service == "stretto")


@pytest.mark.parametrize(
    ("cause", "environ"),
    [
        ("not by jaeger", {"OTEL_TRACES_EXPORTER": "jaeger"}),
        ("not by otlp over grpc", {**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}),
        ("not by otlp over grpc", {**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}),
        *(
            ("OTEL_EXPORTER_OTLP_ENDPOINT must", {"OTEL_EXPORTER_OTLP_ENDPOINT": address})
            for address in NO_ADDRESSES
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT must",
            {**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "s3cret"},
        ),
    ],
)
def test_what_is_not_known_is_a_warning(
    cause: str, environ: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The service serves without traces."""
    with exporting(environ) as provider:
        assert provider is None
    (record,) = caplog.records
    assert ("tracing.unavailable", "WARNING") == (record.msg, record.levelname)
    assert cause in vars(record)["cause"]
    assert "s3cret" not in vars(record)["cause"]


@pytest.mark.parametrize(
    "address",
    [
        "https://me:s3cret@collector.internal/v1?key=s3cret",
        "http://otel_collector:4318",
        "http://[::1]:4318",
    ],
)
def test_an_address_that_can_be_called_is_taken(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that no collector is at."""
    with exporting({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": address}) as provider:
        assert provider is not None
    assert [] == caplog.records


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("ValueError", {"OTEL_BSP_MAX_QUEUE_SIZE": "1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}),
        # It is asked for by the SDK, since it is to add credentials to the requests.
        ("RuntimeError", {"OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER": "s3cret"}),
    ],
)
def test_what_the_sdk_refuses_is_a_warning_without_its_text(
    kind: str,
    setting: Mapping[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The SDK's text repeats a setting's value."""
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    with exporting({**ENDPOINT, **setting}) as provider:
        assert provider is None
    (record,) = caplog.records
    assert "tracing.unavailable" == record.msg
    assert kind == vars(record)["kind"]
    assert "s3cret" not in vars(record)["cause"]


def test_without_the_sdk_it_says_what_to_install(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with exporting(ENDPOINT) as provider:
        assert provider is None
    (record,) = caplog.records
    assert "pip install 'stretto[otel]'" in vars(record)["cause"]


@pytest.mark.parametrize(
    ("rate", "sampler", "argument"),
    [
        (0.01, "parentbased_traceidratio", "0.01"),
        (0.0, " ParentBased_TraceIdRatio ", "0"),
        (1.0, "parentbased_traceidratio", "much"),
        (1.0, "parentbased_traceidratio", "7"),
        (1.0, "traceidratio", "0.01"),
        (1.0, "always_on", ""),
    ],
)
def test_a_ratio_is_taken_before_the_sampler_is_asked(
    rate: float, sampler: str, argument: str
) -> None:
    """Any other sampler of the SDK decides by itself."""
    sampling = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    with exporting({**ENDPOINT, **sampling}) as provider:
        assert provider is not None
        tracing = Tracing(provider)
        assert rate == tracing._root_rate
        if rate < 1.0:
            found = [tracing.begin("request", "", "") for _ in range(20_000)]
            assert rate * 10_000 <= sum(each is not None for each in found) <= rate * 40_000
            assert tracing.begin("request", SAMPLED, "") is not None


def test_the_stop_does_not_wait_for_a_collector_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the collector does not take in time is lost."""
    answers, ended = threading.Event(), list[bool]()
    away = SimpleNamespace(shutdown=lambda: ended.append(answers.wait(LONG_SECONDS)))
    monkeypatch.setattr(trace_export, "_provider", lambda *_: away)
    monkeypatch.setattr(trace_export, "STOP_SECONDS", SOON_SECONDS)
    with exporting(ENDPOINT):
        pass
    assert [] == ended
    # Nor are the SDK's last words the log's.
    sdk = logging.getLogger("opentelemetry")
    assert not sdk.propagate
    (stopping,) = (each for each in threading.enumerate() if each.name == "last traces")
    answers.set()
    stopping.join(LONG_SECONDS)
    assert sdk.propagate
