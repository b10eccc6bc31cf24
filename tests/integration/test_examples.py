"""The examples run as they stand, each as the program that its reader would start."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pytest

from stretto.domain import event_id
from stretto.webhook.rules import parse_secrets, sign
from support.api_client import SECRET, TEAM, connected_api, token_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection
    from support.service_process import StartService

EXAMPLES: Final = Path(__file__).parents[2] / "examples"
DEADLINE_SECONDS: Final = 30


@asynccontextmanager
async def started(
    example: str, *arguments: str, **settings: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start an example; it is killed where it does not end by itself."""
    clean = {name: value for name, value in os.environ.items() if "STRETTO_" not in name}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", str(EXAMPLES / example), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # Without asyncio's debug mode, in which the framework logs every request.
        env={**clean, "PYTHONUNBUFFERED": "1", "PYTHONASYNCIODEBUG": "", **settings},
    )
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def output_of(example: str, *arguments: str, **settings: str) -> list[str]:
    """Run an example to its end, which must be a good one; return its lines."""
    async with started(example, *arguments, **settings) as process:
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode().splitlines()


@pytest.fixture
async def empty_database_url(database_url: str, connection: Connection) -> str:
    """A database without any tables, as a reader has it."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    return database_url


async def test_embedded_makes_its_tables_and_one_group(
    empty_database_url: str, connection: Connection
) -> None:
    """Two calls, one group, and the second call says so."""
    created, replayed = await output_of("embedded.py", empty_database_url)
    id_ = await connection.fetchval("SELECT group_id FROM chat_group")
    assert [f"created: group {id_}", f"replayed: group {id_}"] == [created, replayed]


async def test_embedded_runs_again_on_a_database_of_the_environment(database_url: str) -> None:
    """The tables are there already: the next run makes the next group."""
    runs = [await output_of("embedded.py", STRETTO_DATABASE_URL=database_url) for _ in range(2)]
    assert len({line.split()[-1] for run in runs for line in run}) == 2


async def test_hook_counts_what_was_created_and_refuses_the_rest(
    empty_database_url: str, connection: Connection
) -> None:
    """The rejected group left neither a group nor a count behind, in every run."""
    for run in (1, 2):
        assert [
            "Team 1: created",
            "Team 2: created",
            "Team 3: quota_exceeded",
            "counted: 2",
        ] == await output_of("hook.py", empty_database_url)
        assert await connection.fetchval("SELECT count(*) FROM chat_group") == 2 * run
        assert await connection.fetchval("SELECT sum(groups) FROM team_quota") == 2 * run


async def test_counter_counts_each_group_once_although_events_come_twice(
    empty_database_url: str, connection: Connection
) -> None:
    """In every run."""
    for run in (1, 2):
        lines = await output_of("counter.py", empty_database_url)
        received, counted = (line.split(": ") for line in lines)
        assert ("received", "counted", "3") == (received[0], *counted)
        assert 6 <= int(received[1])
        assert 3 * run == await connection.fetchval(
            "SELECT sum(groups) FROM public.groups_of_owner"
        )


async def test_client_creates_once_and_is_refused_another_body(start_service: StartService) -> None:
    """Against a real service process."""
    service = await start_service()
    first, second, refusal = await output_of("client.py", service.url, token_of("alice"))
    id_ = first.split()[1]
    assert [f"group {id_} (replay: False)", f"group {id_} (replay: True)"] == [first, second]
    assert "refused: key_reused, retry: new-key" == refusal


async def test_webhook_takes_what_is_signed_and_nothing_else(
    start_service: StartService, unused_tcp_port: int
) -> None:
    """From a real service; what was changed on its way is refused."""
    secrets = [f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2)]
    url = f"http://127.0.0.1:{unused_tcp_port}/"
    arguments = ("webhook.py", str(unused_tcp_port))
    async with started(*arguments, STRETTO_WEBHOOK_SECRET=secrets[1]) as receiver:
        assert receiver.stdout is not None
        await receiver.stdout.readline()
        service = await start_service(
            WEBHOOK_URL=url, WEBHOOK_SECRET=" ".join(secrets), WEBHOOK_ALLOW_PRIVATE="true"
        )
        async with connected_api(service.url) as api:
            created = (await api.create("k")).json
            event = str(event_id(UUID(created["conversation_id"])))
            assert (await receiver.stdout.readline()).decode().startswith("(Press")
            line = (await receiver.stdout.readline()).decode()
            assert line.startswith(f'{event}: {{"specversion"')
            now = int(time.time())
            for expected, signed, sent, at in (
                (204, b"{}", b"{}", now),
                (401, b"{}", b"{ }", now),
                (401, b"{}", b"{}", now - 400),
            ):
                signature = sign(parse_secrets(secrets[1]), event, at, signed)
                headers = {
                    "webhook-id": event,
                    "webhook-timestamp": str(at),
                    "webhook-signature": signature,
                }
                async with api.session.post(url, data=sent, headers=headers) as response:
                    assert expected == response.status
        assert f"{event}: again\n" == (await receiver.stdout.readline()).decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_mounted_serves_host_and_contract_and_ends_without_a_trace(
    number: signal.Signals, database_url: str, unused_tcp_port: int
) -> None:
    """Its own pool is closed by itself: it neither hangs nor complains."""
    url = f"http://127.0.0.1:{unused_tcp_port}"
    async with started(
        "mounted.py", database_url, str(unused_tcp_port), TOKEN_SECRET=SECRET
    ) as process:
        assert process.stdout is not None
        started_line = await process.stdout.readline()
        assert url in started_line.decode()
        async with connected_api(url) as api:
            headers = {"Idempotency-Key": "k"}
            replies = [
                await api.request("POST", "/chat/v1/groups", headers=headers, json=TEAM)
                for _ in range(2)
            ]
            assert ["created", "replayed"] == [
                reply.headers["Idempotency-Status"] for reply in replies
            ]
            assert (await api.get("/teams")).json == {"teams": 1}
            process.send_signal(number)
            rest = await process.stdout.read()
            assert await process.wait() == 0
    # What is left is the other half of the framework's greeting.
    assert re.fullmatch(r"\(Press CTRL\+C to quit\)\n", rest.decode())
