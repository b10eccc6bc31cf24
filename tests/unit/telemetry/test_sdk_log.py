"""What the log says in place of OpenTelemetry's SDK, which logs addresses and headers as they are."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider

from stretto.telemetry.logs import flush_log
from stretto.telemetry.sdk_log import SdkLog
from stretto.telemetry.trace_export import exporting

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "s3cret"


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Return the lines of the log: event, kind, remedy."""
    fields = [vars(each) for each in caplog.records if each.name != "asyncio"]
    return [
        (each.get("event", each["msg"]), each.get("kind", ""), each.get("remedy", ""))
        for each in fields
    ]


@contextmanager
def sdk_log() -> Iterator[None]:
    """Have the SDK's lines taken meanwhile."""
    log = SdkLog()
    log.begin()
    try:
        yield
    finally:
        log.end()


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "OTEL_EXPORTER_OTLP_HEADERS"), (404, "OTEL_EXPORTER_OTLP_ENDPOINT")],
)
async def test_a_refusal_of_the_collector_is_said_without_its_words_and_its_address(
    status: int,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At the lowest level, at which the HTTP client logs each request's path."""
    caplog.set_level(logging.DEBUG)
    app = web.Application()

    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=status, reason=SECRET)

    app.router.add_post("/{path:.*}", refuse)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/{SECRET}/v1/traces?key={SECRET}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", address)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
        with exporting(os.environ) as provider:
            assert isinstance(provider, TracerProvider)
            provider.get_tracer("test").start_span("a span").end()
            assert await asyncio.to_thread(provider.force_flush)
            # The thread has handed its line over.
            await asyncio.sleep(0)
    finally:
        await runner.cleanup()
        flush_log()
    ((event, kind, advice),) = said(caplog)
    assert ("tracing.not_exported", f"HTTP {status}") == (event, kind)
    assert remedy in advice
    assert SECRET not in str([vars(each) for each in caplog.records])


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [
        ("opentelemetry.util.re", "OTEL_EXPORTER_OTLP_HEADERS", f"x-api-key: {SECRET}"),
        (
            "opentelemetry.exporter.otlp.proto.http._common",
            "OTEL_EXPORTER_OTLP_TIMEOUT",
            SECRET,
        ),
        (
            "opentelemetry.exporter.otlp.proto.http._common",
            "OTEL_EXPORTER_OTLP_COMPRESSION",
            SECRET,
        ),
        ("opentelemetry.sdk.trace.sampling", "OTEL_TRACES_SAMPLER", SECRET),
        ("opentelemetry.sdk.trace.export", "OTEL_BSP_MAX_QUEUE_SIZE", SECRET),
        ("opentelemetry.sdk.resources", "OTEL_RESOURCE_ATTRIBUTES", SECRET),
    ],
)
def test_a_setting_that_the_sdk_does_not_understand_is_named_without_its_value(
    kind: str,
    setting: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The SDK's line repeats the value."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv(setting, value)
    with exporting(os.environ) as provider:
        assert provider is not None
    ((event, warned, remedy),) = {*said(caplog)}
    assert ("tracing.sdk_warned", kind) == (event, warned)
    assert setting.removesuffix("MAX_QUEUE_SIZE") in remedy
    assert SECRET not in str([vars(each) for each in caplog.records])


@pytest.mark.parametrize("library", ["opentelemetry.x", "urllib3.connection", "requests"])
def test_no_line_of_a_library_is_logged(library: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nor a traceback."""
    caplog.set_level(logging.DEBUG)
    with sdk_log():
        logging.getLogger(library).error("to %s", SECRET, exc_info=ValueError(SECRET))
        logging.getLogger(library).info(SECRET)
    assert [("tracing.sdk_warned", library, "look at the settings OTEL_…")] == said(caplog)
    assert SECRET not in str([vars(each) for each in caplog.records])
    logging.getLogger(library).warning("as before")
    assert "as before" == said(caplog)[-1][0]


async def test_lines_that_repeat_are_folded_also_those_of_a_thread(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A collector that is away fails every batch."""
    with sdk_log():
        for _ in range(10):
            await asyncio.to_thread(logging.getLogger("opentelemetry.x").warning, "no")
        await asyncio.sleep(0)
        flush_log()
    assert [None, 9] == [vars(each).get("folded") for each in caplog.records]


async def test_a_line_after_the_loops_end_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The last batch may be under way while the process ends."""
    log = SdkLog()
    other = asyncio.new_event_loop()
    log._loop = other
    other.close()
    log.emit(logging.makeLogRecord({"name": "opentelemetry.x"}))
    assert [] == said(caplog)


def test_what_failed_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """A line that follows a try which did not fail is about something else."""
    log = SdkLog()
    log.begin()
    exporter = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    try:
        log.failed("SSLError")
        exporter.error("no")
        log.failed("")
        exporter.warning("no")
    finally:
        log.end()
    assert ["SSLError", "unknown"] == [kind for _, kind, _ in said(caplog)]
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in said(caplog)[0][2]
