"""The consumers of the examples: killed at any moment, and each event has its effect once (G8).

Each has a database of its own. Its twin is the same program without the inbox.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import re
import signal
import time
from collections import Counter
from contextlib import asynccontextmanager
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson
import pytest
import pytest_asyncio
from nats.js.api import ConsumerConfig
from nats.js.errors import NotFoundError

import stretto
from stretto.webhook.rules import parse_secrets, sign
from support.api_client import connected_api
from support.database import connect, first_row, own_database
from support.example_process import EXAMPLES, started
from support.killed_program import CREATED, INBOX, KilledProgram, wire, without
from support.nats_process import OURS, NatsProcess, nats_client
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nats.js import JetStreamContext

    from support.api_client import Api
    from support.database import Connection
    from support.service_process import StartService

GROUPS: Final = 16
# While groups are created, and until each has had its effect.
PAUSE_SECONDS_MAX: Final = 0.1
DEADLINE_SECONDS: Final = 90
# The consumer's word: each event comes with that subject too, to be answered there.
ACKNOWLEDGED: Final = b"PUB $JS.ACK."
# Of `created_renamed_deleted`.
EVENTS: Final = 4
# An event that a killed consumer had comes again after this.
ACK_WAIT_SECONDS: Final = 0.5
AGAIN_SECONDS: Final = 0.5
SECRETS: Final = [f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2)]
EVENT_ID: Final = "3e2964e8-b8ea-5bcb-931a-7149452ce90c"
GROUP_ID: Final = "25a0e460-4708-55b1-9f71-c1c276c285b1"
EVENT: Final = {
    "id": EVENT_ID,
    "type": "group.created",
    "subject": GROUP_ID,
    "data": {"name": "Team"},
}


@pytest_asyncio.fixture
async def shop_url() -> AsyncIterator[str]:
    """A database of the consumer's own, in which nothing is ours."""
    async with own_database(os.environ["TEST_POSTGRES_URL"]) as url:
        connection = await connect(url)
        await connection.execute("DROP SCHEMA stretto CASCADE")
        await connection.close()
        yield url


@pytest_asyncio.fixture
async def shop(shop_url: str) -> AsyncIterator[Connection]:
    """A connection of the test's to it."""
    connection = await connect(shop_url)
    yield connection
    connection.terminate()


async def greeted(shop: Connection) -> Counter[str]:
    """Return how often each group was greeted."""
    if not await shop.fetchval("SELECT to_regclass('greeting') IS NOT NULL"):
        return Counter()
    rows = await shop.fetch("SELECT group_id FROM greeting")
    return Counter(row["group_id"] for row in rows)


async def created(api: Api, seed: int) -> Counter[str]:
    """Create groups, some time apart; return the ids, each once."""
    pauses = random.Random(seed)
    ids = []
    for number in range(GROUPS):
        ids.append((await api.create(f"k{number}")).json["group_id"])
        await asyncio.sleep(pauses.uniform(0, PAUSE_SECONDS_MAX))
    return Counter(ids)


@pytest.fixture
def seed() -> int:
    """Shown with the arguments of a test that fails."""
    return random.randrange(2**32)


async def stream_of(jetstream: JetStreamContext) -> Any:
    """Return what NATS says of the stream of events, once it is there."""
    try:
        return await jetstream.stream_info(OURS.event_stream)
    except NotFoundError:
        return None


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_consumer_on_nats_that_is_killed_greets_each_group_once(
    *,
    is_guarded: bool,
    start_service: StartService,
    server: NatsProcess,
    shop_url: str,
    shop: Connection,
    seed: int,
    tmp_path: Path,
) -> None:
    """NATS delivers again; without the inbox some are greeted twice."""
    name = "consume_jetstream.py"
    program = KilledProgram(name if is_guarded else without(INBOX, name, tmp_path), seed)
    service = await start_service(NATS_URL=server.url)
    async with (
        nats_client(server.url) as bus,
        connected_api(service.url) as api,
        wire(server.port, lambda chunk: program.is_lost(chunk, ACKNOWLEDGED)) as port,
    ):
        jetstream = bus.jetstream()
        await until(lambda: stream_of(jetstream))
        config = ConsumerConfig(
            durable_name="greeter", filter_subject="stretto.events.>", ack_wait=ACK_WAIT_SECONDS
        )
        await jetstream.add_consumer(OURS.event_stream, config)
        async with program.running(f"nats://127.0.0.1:{port}", shop_url):
            expected = await created(api, seed)
            program.spare()

            async def is_over() -> bool:
                counts = await greeted(shop)
                if not is_guarded:
                    return program.words_lost > 0 and max(counts.values(), default=0) > 1
                state = await jetstream.consumer_info(OURS.event_stream, "greeter")
                return counts.keys() == expected.keys() and not (
                    state.num_pending or state.num_ack_pending
                )

            await until(is_over, DEADLINE_SECONDS)
        state = await jetstream.consumer_info(OURS.event_stream, "greeter")
    counts = await greeted(shop)
    assert is_guarded == (expected == counts)
    assert program.words_lost
    assert state.delivered is not None
    assert not is_guarded or GROUPS < state.delivered.consumer_seq


@asynccontextmanager
async def sending_again_soon(database_url: str) -> AsyncIterator[None]:
    """Have failed deliveries sent again soon, instead of after minutes and hours."""

    async def keep_on() -> None:
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            await connection.execute(
                "UPDATE outbox_delivery SET due_at = clock_timestamp(), tries = 1 WHERE tries > 0"
            )

    connection = await connect(database_url)
    hurrying = asyncio.create_task(keep_on(), name="sending again")
    yield
    hurrying.cancel()
    await asyncio.wait((hurrying,))
    connection.terminate()


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_webhooks_receiver_that_is_killed_greets_each_group_once(
    *,
    is_guarded: bool,
    start_service: StartService,
    database_url: str,
    connection: Connection,
    shop_url: str,
    shop: Connection,
    seed: int,
    unused_tcp_port: int,
    tmp_path: Path,
) -> None:
    """The service sends again; without the inbox some are greeted twice."""
    name = "consume_webhook.py"
    program = KilledProgram(name if is_guarded else without(INBOX, name, tmp_path), seed)
    arguments = (str(unused_tcp_port), shop_url)
    async with (
        wire(unused_tcp_port, lambda chunk: program.is_lost(chunk, b" 204 ")) as port,
        program.running(*arguments, STRETTO_WEBHOOK_SECRET=SECRETS[0]),
        sending_again_soon(database_url),
    ):
        service = await start_service(
            WEBHOOK_URL=f"http://127.0.0.1:{port}/",
            WEBHOOK_SECRET=" ".join(SECRETS),
            WEBHOOK_ALLOW_PRIVATE="true",
        )
        async with connected_api(service.url) as api:
            expected = await created(api, seed)
        program.spare()

        async def is_over() -> bool:
            counts = await greeted(shop)
            if not is_guarded:
                return program.words_lost > 0 and max(counts.values(), default=0) > 1
            left = await connection.fetchval("SELECT count(*) FROM outbox_delivery")
            return counts.keys() == expected.keys() and not left

        await until(is_over, DEADLINE_SECONDS)
    assert is_guarded == (expected == await greeted(shop))
    assert program.words_lost


async def created_renamed_deleted(api: Api, connection: Connection) -> str:
    """Create a group, change it, delete it; return its id."""
    answer = await api.create("k", {"name": "Team", "members": ["bob"]})
    group = UUID(answer.json["group_id"])
    for change in (
        stretto.rename_group(connection, group, name="Another"),
        stretto.add_members(connection, group, {"carol": "member"}),
        stretto.delete_group(connection, group),
    ):
        async with connection.transaction():
            assert await change
    return str(group)


@pytest.mark.parametrize("looks_at_type", [True, False])
async def test_a_consumer_on_nats_greets_no_group_again_that_changes(
    *,
    looks_at_type: bool,
    start_service: StartService,
    connection: Connection,
    server: NatsProcess,
    shop_url: str,
    shop: Connection,
    tmp_path: Path,
) -> None:
    """Each change has an event of its own; without a look at its type some greet again."""
    name = "consume_jetstream.py"
    program = name if looks_at_type else without(CREATED, name, tmp_path)
    service = await start_service(NATS_URL=server.url)
    async with (
        nats_client(server.url) as bus,
        connected_api(service.url) as api,
        started(program, server.url, shop_url),
    ):
        group = await created_renamed_deleted(api, connection)

        async def is_over() -> bool:
            if not looks_at_type:
                return (await greeted(shop))[group] > 1
            try:
                state = await bus.jetstream().consumer_info(OURS.event_stream, "greeter")
            except NotFoundError:
                return False
            return state.ack_floor is not None and state.ack_floor.stream_seq >= EVENTS

        await until(is_over, DEADLINE_SECONDS)
    assert looks_at_type == ({group: 1} == await greeted(shop))
    if looks_at_type:
        assert ["alice", "bob"] == await shop.fetchval("SELECT member_ids FROM greeting")


@pytest.mark.parametrize("looks_at_type", [True, False])
async def test_a_webhooks_receiver_greets_no_group_again_that_changes(
    *,
    looks_at_type: bool,
    start_service: StartService,
    connection: Connection,
    shop_url: str,
    shop: Connection,
    unused_tcp_port: int,
    tmp_path: Path,
) -> None:
    """The same behind a webhook."""
    name, answered = "consume_webhook.py", 0
    program = name if looks_at_type else without(CREATED, name, tmp_path)

    def count(chunk: bytes) -> bool:
        nonlocal answered
        answered += chunk.count(b" 204 ")
        return False

    async with (
        wire(unused_tcp_port, count) as port,
        started(program, str(unused_tcp_port), shop_url, STRETTO_WEBHOOK_SECRET=SECRETS[0]),
    ):
        service = await start_service(
            WEBHOOK_URL=f"http://127.0.0.1:{port}/",
            WEBHOOK_SECRET=SECRETS[0],
            WEBHOOK_ALLOW_PRIVATE="true",
        )
        async with connected_api(service.url) as api:
            group = await created_renamed_deleted(api, connection)

        async def is_over() -> bool:
            return answered >= EVENTS if looks_at_type else (await greeted(shop))[group] > 1

        await until(is_over, DEADLINE_SECONDS)
    assert looks_at_type == ({group: 1} == await greeted(shop))
    if looks_at_type:
        assert ["alice", "bob"] == await shop.fetchval("SELECT member_ids FROM greeting")


async def test_a_consumer_waits_for_its_stream_and_ends_in_order(
    start_service: StartService, server: NatsProcess, shop_url: str, shop: Connection
) -> None:
    """It says so once, goes on when NATS was away, and sets aside what cannot be read."""
    async with started("consume_jetstream.py", server.url, shop_url) as process:
        assert process.stdout is not None
        first = await process.stdout.readline()
        assert first.startswith(b"waiting: NotFoundError"), first
        service = await start_service(NATS_URL=server.url)
        async with connected_api(service.url) as api:
            for number in (1, 2):
                await api.create(f"k{number}")
                await until(lambda number=number: has_greeted(shop, number))  # type: ignore[misc]
                await server.kill()
                await server.start()
        async with nats_client(server.url) as bus:
            await bus.jetstream().publish(OURS.event_subject, b"no event")
        aside = await first_row(shop, "SELECT reason, event FROM set_aside")
        assert aside["reason"].startswith("JSONDecodeError")
        assert b"no event" == aside["event"]
        process.send_signal(signal.SIGTERM)
        rest = await process.stdout.read()
        assert 0 == await process.wait()
    assert b"NotFoundError" not in rest
    assert 2 == await shop.fetchval("SELECT count(*) FROM inbox")


async def test_a_consumer_with_a_wrong_password_says_so_once(shop_url: str, tmp_path: Path) -> None:
    """Not at each try, and without the client's own traceback."""
    tries = 0

    def count(chunk: bytes) -> bool:
        nonlocal tries
        tries += chunk.count(b"CONNECT ")
        return False

    async with (
        NatsProcess(tmp_path, "--user", "stretto", "--pass", "right") as server,
        wire(server.port, count) as port,
        started(
            "consume_jetstream.py", f"nats://stretto:wrong@127.0.0.1:{port}", shop_url
        ) as process,
    ):
        assert process.stdout is not None
        await until(lambda: tries > 2)
        process.send_signal(signal.SIGTERM)
        output = await process.stdout.read()
        assert 0 == await process.wait()
    # Beside it only Python's warnings of what NATS's client leaves open, which the test turns on.
    assert output.startswith(b"waiting: Error(\"nats: 'Authorization Violation'\")\n")
    assert 1 == output.count(b"waiting: ")
    assert b"nats: encountered error" not in output


async def test_the_inbox_of_the_page_has_an_effect_once(shop: Connection) -> None:
    """The snippet as it stands, for the same event twice."""
    page = (EXAMPLES.parent / "docs/consuming.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"stretto": stretto, "UUID": UUID, "connection": shop, "event": EVENT}
    exec(f"async def run():\n{indent(snippet, '    ')}", names)
    await shop.execute("CREATE SCHEMA shop; CREATE TABLE shop.greeting (group_id text)")
    for _ in range(2):
        await names["run"]()
    assert 1 == await shop.fetchval("SELECT count(*) FROM shop.greeting")


async def has_greeted(shop: Connection, count: int) -> bool:
    """Return whether so many groups were greeted."""
    return count == len(await greeted(shop))


async def test_a_webhooks_receiver_takes_what_is_signed_and_nothing_else(
    shop_url: str, shop: Connection, unused_tcp_port: int
) -> None:
    """With any of its secrets, and recently; what is refused leaves no trace."""
    url, body = f"http://127.0.0.1:{unused_tcp_port}/", orjson.dumps(EVENT)
    genuine = parse_secrets(SECRETS[1])
    now = int(time.time())
    cases: list[tuple[int, tuple[bytes, ...], bytes, int]] = [
        (401, parse_secrets(SECRETS[0]), body, now),
        (401, genuine, body + b" ", now),
        (401, genuine, body, now - 400),
        (401, genuine, body, now + 400),
        (401, (), body, now),
        (204, genuine, body, now),
        (204, genuine, body, now),
    ]
    arguments = ("consume_webhook.py", str(unused_tcp_port), shop_url)
    async with started(*arguments, STRETTO_WEBHOOK_SECRET=SECRETS[1]) as process:
        assert process.stdout is not None
        await process.stdout.readline()
        async with connected_api(url) as api:
            for expected, secrets, sent, at in cases:
                headers = {
                    "webhook-id": EVENT_ID,
                    "webhook-timestamp": str(at),
                    "webhook-signature": sign(secrets, EVENT_ID, at, body),
                }
                async with api.session.post(url, data=sent, headers=headers) as response:
                    assert expected == response.status
                assert (expected == 204) == bool(await greeted(shop))
            async with api.session.post(url, data=body, headers={"webhook-id": "\xe9"}) as response:
                assert 401 == response.status
        assert {GROUP_ID: 1} == await greeted(shop)
        process.send_signal(signal.SIGTERM)
        await process.stdout.read()
        assert 0 == await process.wait()
