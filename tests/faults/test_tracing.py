"""A real service that exports its traces to a real collector, or to none that answers."""

from __future__ import annotations

import asyncio
import base64
import signal
from typing import TYPE_CHECKING

import orjson
import pytest

from support.api_client import token_of
from support.nats_process import NatsProcess, commanded, nats_client
from support.raw_client import creation, raw_clients
from support.service_process import apis
from support.traces import PARENT_ID, SAMPLED, TRACE_ID, collecting_traces
from support.webhook_receiver import receiving

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from support.service_process import StartService

DEADLINE_SECONDS = 60
SECRET = f"whsec_{base64.b64encode(b'a secret of an endpoint, long').decode()}"
BOB = {"Authorization": f"Bearer {token_of('bob')}"}
NAMES = {
    "POST /v1/groups",
    "stretto.mailbox",
    "stretto.batch",
    "stretto.claim_and_lead",
    "stretto.publish",
    "stretto.push",
    "stretto.webhook",
}


def sampled_creation(key: str) -> bytes:
    """Return a creation that its client traces."""
    body = b'{"name": "Team", "members": ["bob"]}'
    line = f"Host: x\r\ntraceparent: {SAMPLED}\r\n".encode()
    return creation(token_of("alice"), key, body).replace(b"Host: x\r\n", line)


async def test_one_trace_leads_from_the_click_to_every_receiver(
    start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over OTLP, from a process that is set up by OpenTelemetry's own variables."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        collecting_traces() as collector,
        receiving() as receiver,
        NatsProcess(tmp_path) as nats,
    ):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        service = await start_service(
            NATS_URL=nats.url,
            WEBHOOK_URL=receiver.url,
            WEBHOOK_SECRET=SECRET,
            WEBHOOK_ALLOW_PRIVATE="true",
        )
        async with (
            apis(service) as (api,),
            raw_clients(service.url) as raw,
            nats_client(nats.url) as client,
            api.session.ws_connect(f"{api.url}/v1/events", headers=BOB) as session,
        ):
            published = await client.subscribe("stretto.events.>")
            await client.flush()
            assert "position" in await session.receive_json()
            assert 201 == (await (await raw.connect(sampled_creation("k"))).answer())[0]
            event = (await session.receive_json())["event"]
            message = await published.next_msg(timeout=DEADLINE_SECONDS)
            await receiver.until(1)
            await collector.until(lambda: NAMES <= {each.name for each in collector.spans})
    spans = {each.name: each for each in collector.spans}
    request = spans["POST /v1/groups"]
    assert {"stretto"} == collector.services
    assert {TRACE_ID} == {each.trace_id for each in collector.spans}
    assert PARENT_ID == request.parent_id
    for name in ("stretto.mailbox", "stretto.batch", "stretto.publish", "stretto.push"):
        assert request.id == spans[name].parent_id, name
    assert spans["stretto.batch"].id == spans["stretto.claim_and_lead"].parent_id
    carried = f"00-{TRACE_ID}-{request.id}-01"
    assert carried == event["traceparent"] == orjson.loads(message.data)["traceparent"]
    assert carried == (message.headers or {})["traceparent"]
    fields, body = receiver.requests[0]
    assert carried == orjson.loads(body)["traceparent"]
    # The receiver goes on below the very request that it has got.
    assert f"00-{TRACE_ID}-{spans['stretto.webhook'].id}-01" == fields["traceparent"]


async def test_one_trace_leads_from_a_command_to_its_receivers(
    start_service: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a request over HTTP."""
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        collecting_traces() as collector,
        NatsProcess(tmp_path) as nats,
    ):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        service = await start_service(NATS_URL=nats.url)
        async with (
            apis(service) as (api,),
            nats_client(nats.url) as client,
            api.session.ws_connect(f"{api.url}/v1/events", headers=BOB) as session,
        ):
            published = await client.subscribe("stretto.events.>")
            await client.flush()
            assert "position" in await session.receive_json()
            document = {"name": "Team", "members": ["bob"]}
            reply = await commanded(client, "k", document, traceparent=SAMPLED)
            event = (await session.receive_json())["event"]
            message = await published.next_msg(timeout=DEADLINE_SECONDS)
            names = NAMES - {"POST /v1/groups", "stretto.webhook"} | {"stretto.command"}
            await collector.until(lambda: names <= {each.name for each in collector.spans})
    spans = {each.name: each for each in collector.spans}
    command = spans["stretto.command"]
    assert {TRACE_ID} == {each.trace_id for each in collector.spans}
    assert PARENT_ID == command.parent_id
    for name in ("stretto.mailbox", "stretto.batch", "stretto.publish", "stretto.push"):
        assert command.id == spans[name].parent_id, name
    carried = f"00-{TRACE_ID}-{command.id}-01"
    assert carried == event["traceparent"] == (message.headers or {})["traceparent"]
    assert carried == (reply.headers or {})["traceparent"]


async def test_what_was_not_sent_yet_is_sent_at_the_stop(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK gathers spans for seconds."""
    async with asyncio.timeout(DEADLINE_SECONDS), collecting_traces() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
        service = await start_service()
        async with raw_clients(service.url) as raw:
            assert 201 == (await (await raw.connect(sampled_creation("k"))).answer())[0]
        service.signal(signal.SIGTERM)
        assert 0 == await service.exited()
        assert "POST /v1/groups" in {each.name for each in collector.spans}


async def test_a_collector_that_does_not_answer_holds_nothing_up(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an answer nor the stop."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        writer.close()

    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{host}:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    async with asyncio.timeout(DEADLINE_SECONDS):
        service = await start_service()
        async with raw_clients(service.url) as raw:
            for number in range(50):
                client = await raw.connect(sampled_creation(f"k{number}"))
                assert 201 == (await client.answer())[0]
        service.signal(signal.SIGTERM)
        assert 0 == await service.exited()
    silent.close()
    await silent.wait_closed()
    assert b"Traceback" not in b"".join(service.log)


async def test_the_log_says_that_no_collector_takes_the_traces_and_has_no_secret_of_it(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the spans that are sent at the stop alone, and at the lowest level."""
    address = "http://me:s3cret@127.0.0.1:9/s3cret/v1/traces?api_key=s3cret"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key: s3cret")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
    async with asyncio.timeout(DEADLINE_SECONDS):
        service = await start_service(LOG_LEVEL="debug")
        async with raw_clients(service.url) as raw:
            assert 201 == (await (await raw.connect(sampled_creation("k"))).answer())[0]
        service.signal(signal.SIGTERM)
        assert 0 == await service.exited()
        await service.workers_ended()
    assert b"s3cret" not in b"".join(service.log)
    said = [orjson.loads(line) for line in service.log]
    events = [each["event"] for each in said]
    assert {"tracing.sdk_warned", "tracing.not_exported"} <= {*events}
    assert events.index("tracing.not_exported") < events.index("service.stopped")
    kinds = {each["kind"] for each in said if each["event"] == "tracing.not_exported"}
    assert {"ConnectionError"} == kinds
