"""Commands over a real nats-server, from one or more consumers on one database."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import nats.aio.client
import nats.errors
import orjson
import pytest
from nats.js.api import ConsumerConfig, DiscardPolicy, RetentionPolicy

from stretto import errors as errors_module
from stretto.assembly.opening import open_component
from stretto.codec import BODY_BYTES_MAX, created_document, problem
from stretto.creation.age import AttemptAge, OutOfRange
from stretto.domain import IdempotencyKey, NewGroup, UserId, group_id
from stretto.errors import (
    AttemptFailed,
    AttemptPending,
    BodyTooLarge,
    DatabaseUnavailable,
    Failure,
    FirstSentOutOfRange,
    GroupDeleted,
    GroupRejected,
    KeyInvalid,
    KeyMissing,
    KeyReused,
    Overloaded,
    RateLimited,
    RequestInvalid,
)
from stretto.nats import client as client_module
from stretto.nats import command_outcomes as outcomes_module
from stretto.nats import command_window as window_module
from stretto.nats import commands as commands_module
from stretto.nats import connection as connection_module
from stretto.nats import outage as outage_module
from stretto.nats import pull as pull_module
from stretto.nats.command_outcomes import REPLY_CHARACTERS_MAX
from stretto.nats.commands import CommandConsumer, CommandSettings
from stretto.nats.connection import NatsConnection
from stretto.nats.deployment import MARK
from stretto.nats.outage import Outage
from stretto.nats.pull import Pull
from stretto.observations import BusConnected, BusFailed, CommandHandled
from stretto.postgres.check import check_database
from stretto.postgres.readiness import rehearse_for_others
from stretto.runtime.backoff import Backoff
from stretto.runtime.mailbox import Mailbox
from stretto.runtime.runner import Runner
from stretto.store_errors import Unreachable
from stretto.telemetry.tracing import Tracing
from support.api_client import TEAM
from support.nats_process import (
    DEADLINE_SECONDS,
    OURS,
    NatsProcess,
    nats_client,
    publish_raw,
    stored,
)
from support.traces import PARENT_ID, SAMPLED, TRACE_ID, UNSAMPLED, Spans
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from stretto.assembly.component import Component
    from stretto.creation.creator import GroupCreator
    from stretto.nats.command_window import Command
    from stretto.observations import Observation
    from support.database import Connection

STREAM, SUBJECT, CONSUMER = OURS.command_stream, OURS.command_subject, OURS.command_consumer
FAST = CommandSettings(workers=4, ack_seconds=0.5, fetch_seconds=0.2)
AGE = AttemptAge(3600)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again soon: nothing here is as slow as a network."""
    for module, name, value in (
        (connection_module, "RETRY", Backoff(0.02, 0.02)),
        (connection_module, "NEXT_SERVER_SECONDS", 0.02),
        (commands_module, "RETRY", Backoff(0.02, 0.02)),
        (commands_module, "DELAY", Backoff(0.02, 30.0)),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture
def spans() -> Spans:
    """Of one consumer."""
    return Spans()


class Sender:
    """Another program, which sends commands and reads what is answered."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.jetstream = client.jetstream()

    async def ready(self) -> None:
        """Wait for the stream and its consumer, which the first consumer makes."""

        async def is_there() -> bool:
            try:
                await self.jetstream.consumer_info(STREAM, CONSUMER)
            except Exception:  # noqa: BLE001 not there yet, in one of several words
                return False
            return True

        await until(is_there)

    async def send(self, document: object = TEAM, **headers: str) -> None:
        """Send a command; its outcome is not awaited."""
        body = document if isinstance(document, bytes) else orjson.dumps(document)
        given = {"Idempotency-Key": "k", "Stretto-Owner": "alice"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        await self.jetstream.publish(
            SUBJECT, body, headers={name: value for name, value in given.items() if value}
        )

    async def ask(self, document: object = TEAM, **headers: str) -> Msg:
        """Send a command and wait for its outcome."""
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(inbox)
        await self.send(document, Stretto_Reply_To=inbox, **headers)
        return await subscription.next_msg(DEADLINE_SECONDS)

    async def settled(self) -> None:
        """Wait until no command is left in the stream."""

        async def is_empty() -> bool:
            return not (await self.jetstream.stream_info(STREAM)).state.messages

        await until(is_empty)

    async def dead(self) -> list[dict[str, Any]]:
        """Return the dead letters."""
        return [
            orjson.loads(message.data) for message in await stored(self.client, OURS.dead_stream)
        ]


@asynccontextmanager
async def sender(server: NatsProcess) -> AsyncIterator[Sender]:
    """Connect a sender."""
    async with nats_client(server.url) as client:
        one = Sender(client)
        await one.ready()
        yield one


async def takes_all(_: str) -> None:
    """Stand for the rehearsal of a database that takes the groups of all others."""


@asynccontextmanager
async def consuming(
    server: NatsProcess,
    creator: GroupCreator,
    observed: list[Observation] | None = None,
    settings: CommandSettings = FAST,
    age: AttemptAge = AGE,
    tracing: Tracing | None = None,
    *,
    rehearse: Callable[[str], Awaitable[None]] = takes_all,
) -> AsyncIterator[tuple[Runner, CommandConsumer]]:
    """Run a consumer with a connection of its own, as one process has it."""
    observed = [] if observed is None else observed
    runner = Runner(observed.append)
    connection = NatsConnection(server.url, observed.append)
    consumer = CommandConsumer(
        *(connection, OURS, creator, age, observed.append, settings),
        outage=Outage(rehearse),
        tracing=tracing,
    )
    async with runner.running(connection), runner.running(consumer):
        yield runner, consumer


async def die(runner: Runner, consumer: CommandConsumer) -> None:
    """End the consumer without a stop, as a process that crashes does."""
    await connection_module.end_tasks([runner._runs[consumer][1]])


class Scripted:
    """Stands for a creator: ends each call as the script has it, and counts them."""

    def __init__(self, creator: GroupCreator, *script: Exception) -> None:
        self.creator = creator
        self.script = list(script)
        self.calls = 0

    async def create_from(self, *given: Any, **options: Any) -> object:
        self.calls += 1
        if self.script:
            raise self.script.pop(0)
        return await self.creator.create_from(*given, **options)


async def groups(connection: Connection) -> int:
    """Return how many groups there are, all of them sound."""
    assert [] == (await check_database(connection, retention_days=30)).violations
    count: int = await connection.fetchval("SELECT count(*) FROM chat_group")
    return count


async def test_a_command_creates_a_group_and_is_answered_as_over_http(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """The same bytes, and the same attempt whichever way the key comes."""
    async with consuming(server, component.creator), sender(server) as bus:
        created = await bus.ask(X_Request_Id="r-1")
        replayed = await bus.ask({"members": ["carol", "bob"], "name": "Team"})
        answer = await component.creator.create(
            IdempotencyKey("k"), NewGroup.parse(UserId("alice"), TEAM)
        )
        await bus.settled()
        assert created_document(answer.group) == created.data == replayed.data
        assert created.headers == {
            "Content-Type": "application/json",
            "Stretto-Status": "201",
            "Idempotency-Status": "created",
            "X-Request-Id": "r-1",
        }
        assert replayed.headers is not None
        assert "true" == replayed.headers["Idempotent-Replayed"]
        assert [] == await bus.dead()
    assert await groups(connection) == 1


async def test_a_command_goes_on_with_the_trace_of_its_sender(
    server: NatsProcess, component: Component, connection: Connection, spans: Spans
) -> None:
    """Its own span is above its write, and in its outcome and its event."""
    tracing = Tracing(spans.provider)
    async with consuming(server, component.creator, tracing=tracing), sender(server) as bus:
        reply = await bus.ask(traceparent=SAMPLED, X_Request_Id="r-1")
        await spans.until("stretto.command", "stretto.batch")
    (command,) = spans.named("stretto.command")
    assert (TRACE_ID, PARENT_ID, "CONSUMER") == (command.trace_id, command.parent_id, command.kind)
    assert {
        "messaging.system": "nats",
        "stretto.outcome": "created",
        "stretto.request_id": "r-1",
    } == command.attributes
    (batch,) = spans.named("stretto.batch")
    assert command.id == batch.parent_id
    carried = f"00-{TRACE_ID}-{command.id}-01"
    assert carried == await connection.fetchval("SELECT trace_context FROM outbox")
    assert reply.headers is not None
    assert ("r-1", carried) == (reply.headers["X-Request-Id"], reply.headers["traceparent"])


@pytest.mark.parametrize("offered", ["", "k", "two words"], ids=["none", "its key", "not plain"])
@pytest.mark.parametrize("parent", ["", UNSAMPLED, SAMPLED[:-1]], ids=["none", "unsampled", "cut"])
async def test_a_command_that_is_not_traced_has_an_id(
    offered: str, parent: str, server: NatsProcess, component: Component, spans: Spans
) -> None:
    """What is no id, and no parent, counts as none, as over HTTP."""
    tracing = Tracing(spans.provider)
    async with consuming(server, component.creator, tracing=tracing), sender(server) as bus:
        reply = await bus.ask(X_Request_Id=offered, traceparent=parent)
        assert reply.headers is not None
        assert re.fullmatch("[0-9a-f]{16}", reply.headers["X-Request-Id"])
        assert "traceparent" not in reply.headers
    assert [] == spans.ended


async def test_a_dead_letter_names_the_trace_of_its_command(
    server: NatsProcess, component: Component, spans: Spans
) -> None:
    """And the id that the log has."""
    tracing = Tracing(spans.provider)
    async with consuming(server, component.creator, tracing=tracing), sender(server) as bus:
        await bus.send(b"no json", traceparent=SAMPLED, X_Request_Id="r-1")
        await bus.settled()
        (letter,) = await stored(bus.client, OURS.dead_stream)
        await spans.until("stretto.command")
    (command,) = spans.named("stretto.command")
    assert "dead_lettered" == command.attributes["stretto.outcome"]
    assert letter.headers is not None
    assert ("r-1", f"00-{TRACE_ID}-{command.id}-01") == (
        letter.headers["X-Request-Id"],
        letter.headers["traceparent"],
    )


async def test_a_command_that_is_broken_off_is_an_error_in_its_trace(
    server: NatsProcess, component: Component, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes again, with the same parent."""
    begun = asyncio.Event()

    async def hang(*_: object) -> None:
        begun.set()
        await asyncio.Future()

    tracing = Tracing(spans.provider)
    with monkeypatch.context() as patch:
        patch.setattr(commands_module, "reply_success", hang)
        async with (
            consuming(server, component.creator, tracing=tracing) as dying,
            sender(server) as bus,
        ):
            await bus.send(traceparent=SAMPLED)
            await begun.wait()
            await die(*dying)
    async with consuming(server, component.creator, tracing=tracing), sender(server) as bus:
        await bus.settled()
        await until(lambda: len(spans.named("stretto.command")) == 2)
    first, second = spans.named("stretto.command")
    assert ("interrupted", "replayed") == (
        first.attributes["error.type"],
        second.attributes["stretto.outcome"],
    )
    assert first.parent_id == second.parent_id == PARENT_ID


async def test_a_thousand_commands_at_two_consumers_make_each_group_once(
    server: NatsProcess, component: Component, connection: Connection, database_url: str
) -> None:
    """Every key comes four times, at two replicas on one database."""
    async with (
        open_component(database_url) as second,
        consuming(server, component.creator),
        consuming(server, second.creator),
        sender(server) as bus,
    ):
        for _ in range(4):
            await asyncio.gather(*(bus.send(Idempotency_Key=f"k{number}") for number in range(250)))
        await bus.settled()
        assert [] == await bus.dead()
    assert await groups(connection) == 250


async def test_a_command_may_have_all_that_a_request_may_have(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """Kind, metadata and roles, by the same rules."""
    members = ["bob", {"user_id": "carol", "role": "admin"}]
    document = {"name": "Team", "members": members, "kind": "project", "metadata": {"a": 1}}
    async with consuming(server, component.creator), sender(server) as bus:
        created = await bus.ask(document)
        reused = await bus.ask({**document, "metadata": {"a": 2}})
    codes = [each.headers["Stretto-Status"] for each in (created, reused) if each.headers]
    assert ["201", "422"] == codes
    row = await connection.fetchrow("SELECT group_kind, metadata FROM chat_group")
    assert ("project", '{"a": 1}') == tuple(row or ())


async def test_a_command_that_the_host_refuses_is_a_dead_letter(
    server: NatsProcess, database_url: str, connection: Connection
) -> None:
    """Nothing is claimed: once the host allows it, it may be published again."""
    answers: list[GroupRejected | None] = [GroupRejected("quota", "Enough."), None]

    async def authorize(new_group: NewGroup) -> None:
        assert new_group.claims is None
        if (answer := answers.pop(0)) is not None:
            raise answer

    async with (
        open_component(database_url, authorize=authorize) as refusing,
        consuming(server, refusing.creator),
        sender(server) as bus,
    ):
        refused = orjson.loads((await bus.ask()).data)
        assert ("creation_refused", "quota") == (refused["code"], refused["failure"]["code"])
        await bus.settled()
        (dead,) = await bus.dead()
        assert "creation_refused" == dead["code"]
        assert await connection.fetchval("SELECT count(*) FROM attempt") == 0
        await bus.ask(base64.b64decode(dead["command"]["body"]))
    assert await groups(connection) == 1


@pytest.mark.parametrize(
    ("document", "headers", "code"),
    [
        (TEAM, {"Idempotency_Key": ""}, KeyMissing.code),
        (TEAM, {"Idempotency_Key": "two words"}, KeyInvalid.code),
        (TEAM, {"Stretto_Owner": ""}, "unauthenticated"),
        (TEAM, {"Stretto_Owner": "x" * 129}, "unauthenticated"),
        (b"no json", {}, "request_invalid"),
        (b'{"name": "a", "name": "b"}', {}, "request_invalid"),
        ({"name": ""}, {}, "request_invalid"),
        (TEAM, {"Idempotency_First_Sent": "soon"}, "request_invalid"),
        (TEAM, {"Idempotency_First_Sent": "@1"}, FirstSentOutOfRange.code),
        (b" " * (BODY_BYTES_MAX + 1), {}, BodyTooLarge.code),
    ],
)
async def test_a_bad_command_is_answered_and_dead_lettered_with_its_problem(
    server: NatsProcess,
    component: Component,
    connection: Connection,
    document: object,
    headers: dict[str, str],
    code: str,
) -> None:
    """The dead letter has the problem and the command itself; nothing is claimed."""
    async with consuming(server, component.creator), sender(server) as bus:
        reply = await bus.ask(document, **headers)
        await bus.settled()
        (dead,) = await bus.dead()
    answer = orjson.loads(reply.data)
    command = dead.pop("command")
    assert answer == dead
    assert code == answer["code"]
    assert reply.headers is not None
    assert str(answer["status"]) == reply.headers["Stretto-Status"]
    assert "application/problem+json" == reply.headers["Content-Type"]
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    assert body == base64.b64decode(command["body"])
    assert 1 == command["sequence"]
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0


@pytest.mark.parametrize(
    ("kept", "body_bytes", "room_bytes"),
    [
        ("headers body sequence", 10, 10_000),
        ("headers sequence", 10_000, 10_000),
        ("sequence", 10, 1000),
    ],
)
async def test_a_dead_letter_keeps_of_its_command_what_fits(
    server: NatsProcess,
    component: Component,
    kept: str,
    body_bytes: int,
    room_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The headers, which name key and owner, rather than the body."""
    monkeypatch.setattr(connection_module, "header_bytes", lambda _: 2**20 - room_bytes)
    async with consuming(server, component.creator), sender(server) as bus:
        await bus.ask(b"x" * body_bytes, X_Filler="h" * 2000)
        await bus.settled()
        (dead,) = await bus.dead()
    assert {*kept.split()} == dead["command"].keys()
    if "headers" in kept:
        assert "alice" == dead["command"]["headers"]["Stretto-Owner"]


async def test_stream_and_consumer_of_an_operator_stay_as_they_are(
    server: NatsProcess, component: Component
) -> None:
    """Their limits are the operator's."""
    async with nats_client(server.url) as client:
        jetstream = client.jetstream()
        await jetstream.add_stream(
            name=STREAM, subjects=[SUBJECT], max_age=60, metadata={MARK: OURS.database}
        )
        await jetstream.add_consumer(STREAM, durable_name=CONSUMER, ack_wait=7)
        async with consuming(server, component.creator), sender(server) as bus:
            await bus.ask()
        assert 60 == (await jetstream.stream_info(STREAM)).config.max_age
        assert 7 == (await jetstream.consumer_info(STREAM, CONSUMER)).config.ack_wait


@pytest.mark.parametrize(
    "subject",
    [
        "stretto.commands.create_group",
        "$JS.API.STREAM.DELETE.x",
        "a b",
        "_INBOX.>",
        "_INBOX.a.>",
        "other.replies.x",
        "",
        "_INBOX." + "a" * (REPLY_CHARACTERS_MAX - 6),
        "_INBOX." + "a" * 5000,
    ],
)
async def test_an_outcome_goes_to_inboxes_only(
    server: NatsProcess, component: Component, connection: Connection, subject: str
) -> None:
    """Elsewhere the service would speak with its own rights for the command's sender."""
    async with consuming(server, component.creator), sender(server) as bus:
        async with nats_client(server.url) as listener:
            heard = await listener.subscribe("$JS.API.STREAM.DELETE.*")
            await bus.jetstream.publish(
                SUBJECT,
                orjson.dumps(TEAM),
                headers={
                    "Idempotency-Key": "k",
                    "Stretto-Owner": "alice",
                    "Stretto-Reply-To": subject,
                },
            )
            await bus.settled()
            await listener.flush()
            assert 0 == heard.pending_msgs
        (dead,) = await bus.dead()
    assert "request_invalid" == dead["code"]
    assert await groups(connection) == 0


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_long_subject_for_the_outcome_does_not_cut_the_connection(
    server: NatsProcess, component: Component, is_guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest one gets its outcome; the server refuses a line of more than 4,096 bytes."""
    if not is_guarded:
        monkeypatch.setattr(outcomes_module, "REPLY_CHARACTERS_MAX", 10_000)
    observed: list[Observation] = []
    longest = "_INBOX." + "a" * (REPLY_CHARACTERS_MAX - 7)
    async with consuming(server, component.creator, observed), sender(server) as bus:
        replies = await bus.client.subscribe(longest)
        await bus.send(Stretto_Reply_To=longest)
        assert b"group_id" in (await replies.next_msg(DEADLINE_SECONDS)).data
        await bus.settled()
        await bus.send(Idempotency_Key="poison", Stretto_Reply_To="_INBOX." + "a" * 5000)
        if is_guarded:
            await bus.settled()
            assert not any(isinstance(each, BusFailed) for each in observed)
        else:
            await until(lambda: 3 <= observed.count(BusConnected()))
            assert "maximum control line exceeded" in str(observed)
            assert 1 == (await bus.jetstream.stream_info(STREAM)).state.messages


def unknown_field(document_bytes: int) -> dict[str, int]:
    """Return a command whose problem document has about so many bytes: it quotes the field."""

    def problem_bytes(slashes: int) -> int:
        try:
            NewGroup.parse(UserId("alice"), {"/" * slashes: 1})
        except RequestInvalid as error:
            return len(orjson.dumps(problem(error)))
        raise AssertionError

    # Four bytes for each: `~1`, in the detail and in the list of errors.
    return {"/" * ((document_bytes - problem_bytes(1)) // 4): 1}


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_problem_that_quotes_too_much_does_not_cut_the_connection(
    server: NatsProcess,
    component: Component,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Just within what the client checks, and with the headers more than the server takes."""
    observed: list[Observation] = []
    # What is quoted is short by now, but a host's own reasons need not be.
    monkeypatch.setattr(errors_module, "QUOTED_CHARACTERS_MAX", 1 << 20)
    if not is_guarded:
        monkeypatch.setattr(connection_module, "header_bytes", lambda _: 0)
    async with consuming(server, component.creator, observed), sender(server) as bus:
        poison = unknown_field(bus.client.max_payload)
        if is_guarded:
            reply = await bus.ask(poison)
            await bus.settled()
            (dead,) = await bus.dead()
            short = problem(RequestInvalid([]))
            assert short == orjson.loads(reply.data)
            command = dead.pop("command")
            assert short == dead
            assert {"sequence", "headers"} == command.keys()
            assert not any(isinstance(each, BusFailed) for each in observed)
        else:
            await bus.send(poison, Stretto_Reply_To=bus.client.new_inbox())
            await until(lambda: 3 <= observed.count(BusConnected()))
            assert "maximum payload violation" in str(observed)
            assert 1 == (await bus.jetstream.stream_info(STREAM)).state.messages


async def test_a_dead_letter_has_as_much_of_the_command_as_its_stream_takes(
    server: NatsProcess, component: Component
) -> None:
    """An operator's limit for dead letters does not bring the command back."""
    async with nats_client(server.url) as client:
        await client.jetstream().add_stream(
            name=OURS.dead_stream,
            subjects=[OURS.dead_subject],
            max_msg_size=1000,
            metadata={MARK: OURS.database},
        )
    async with consuming(server, component.creator), sender(server) as bus:
        await bus.send({"name": "", "description": "x" * 1000})
        await bus.settled()
        (dead,) = await bus.dead()
        assert {"sequence", "headers"} == dead["command"].keys()
        assert "/name" in dead["detail"]
        await bus.send({letter * 100: 1 for letter in "abcdef"})
        await bus.settled()
        assert problem(RequestInvalid([]))["detail"] == (await bus.dead())[1]["detail"]


async def test_a_command_whose_dead_letter_is_not_stored_is_put_off(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """The other commands go on, and it is dead-lettered as soon as there is room in the stream."""
    observed: list[Observation] = []
    async with consuming(server, component.creator, observed), sender(server) as bus:
        info = await bus.jetstream.stream_info(OURS.dead_stream)
        full = replace(info.config, max_bytes=1, discard=DiscardPolicy.NEW)
        await bus.jetstream.update_stream(full)
        await bus.send({"name": ""})
        await until(lambda: 2 <= observed.count(CommandHandled("put_off")))
        await bus.ask()
        (failure,) = [each for each in observed if isinstance(each, BusFailed)]
        assert OURS.dead_stream in failure.cause
        assert "maximum bytes exceeded" in failure.cause
        await bus.jetstream.update_stream(info.config)
        await bus.settled()
        assert 1 == len(await bus.dead())
    assert await groups(connection) == 1


async def test_a_deleted_stream_of_dead_letters_is_made_again(
    server: NatsProcess, component: Component
) -> None:
    """By the first command that needs it: its sender is answered once."""
    observed: list[Observation] = []
    async with consuming(server, component.creator, observed), sender(server) as bus:
        await bus.jetstream.delete_stream(OURS.dead_stream)
        await asyncio.gather(*(bus.ask({"name": ""}, Idempotency_Key=f"k{n}") for n in range(20)))
        await bus.settled()
        assert 20 == len(await bus.dead())
        info = await bus.jetstream.stream_info(OURS.dead_stream)
        assert {MARK: OURS.database}.items() <= (info.config.metadata or {}).items()
    assert [BusConnected(), *([CommandHandled("dead_lettered")] * 20)] == observed


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("status", ["500", "404", "408", "409", "100", "x"])
async def test_a_command_with_a_status_is_dead_lettered_and_not_taken_for_an_answer_of_jetstream(
    server: NatsProcess,
    component: Component,
    connection: Connection,
    status: str,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any sender may set that header; by the header alone it would come again for seven days."""
    if not is_guarded:
        monkeypatch.setattr(
            pull_module, "is_stored", lambda message: "Status" not in (message.headers or {})
        )
    observed: list[Observation] = []
    async with consuming(server, component.creator, observed), sender(server) as bus:
        if is_guarded:
            reply = await bus.ask(Status=status, Description="x")
            assert "the header Status is JetStream's own" == orjson.loads(reply.data)["detail"]
            await bus.settled()
            (dead,) = await bus.dead()
            assert status == dead["command"]["headers"]["Status"]
            assert [BusConnected(), CommandHandled("dead_lettered")] == observed
        else:
            await bus.send(Status=status)
            await bus.ask(Idempotency_Key="another")
            assert [] == await bus.dead()
            assert 1 == (await bus.jetstream.stream_info(STREAM)).state.messages
    assert await groups(connection) == (0 if is_guarded else 1)


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("block", [b"NATS/1.0", b"garbage"])
async def test_headers_that_cannot_be_parsed_do_not_end_the_reading(
    server: NatsProcess,
    component: Component,
    block: bytes,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server takes any bytes; the original client reads nothing more after some of them."""
    if not is_guarded:
        original = nats.aio.client.Client
        for method in ("_process_msg", "_process_headers"):
            monkeypatch.setattr(client_module.Client, method, getattr(original, method))
    observed: list[Observation] = []
    async with (
        consuming(server, component.creator, observed) as (_, consumer),
        sender(server) as bus,
    ):
        await publish_raw(server, SUBJECT.encode(), block)
        if is_guarded:
            await bus.settled()
            (dead,) = await bus.dead()
            assert "key_missing" == dead["code"]
            await bus.ask()
            assert not caplog.records
        else:
            reading: Any = consumer._connection.link().client._reading_task
            await asyncio.wait_for(reading, DEADLINE_SECONDS)
            assert "encountered error" in caplog.text
            assert [] == await bus.dead()


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_worker_that_fails_does_not_cost_what_the_others_hold(
    server: NatsProcess,
    component: Component,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command under way is answered once; interrupted, it would come again."""
    begun, go_on, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(Scripted):
        async def create_from(self, *given: Any, **options: Any) -> object:
            self.calls += 1
            begun.set()
            await go_on.wait()
            return await self.creator.create_from(*given, **options)

    real = Pull.next

    async def fail_once(self: Pull) -> Msg | None:
        if begun.is_set() and not failed.is_set():
            failed.set()
            raise nats.errors.Error("one worker fails")
        return await real(self)

    monkeypatch.setattr(Pull, "next", fail_once)
    settings = replace(FAST, ack_seconds=60)
    if not is_guarded:
        settings = FAST

        async def end_at_once(*_: object) -> None:
            pass

        monkeypatch.setattr(CommandConsumer, "_end_when_idle", end_at_once)
    creator: Any = Slow(component.creator)
    observed: list[Observation] = []
    async with consuming(server, creator, observed, settings), sender(server) as bus:
        asked = asyncio.create_task(bus.ask())
        await failed.wait()
        if not is_guarded:
            await until(lambda: creator.calls == 2)
        go_on.set()
        assert b"group_id" in (await asked).data
        await bus.settled()
        await until(lambda: BusFailed("one worker fails") in observed)
        # The next turn takes commands again.
        await bus.ask(Idempotency_Key="another")
    assert (2 if is_guarded else 3) == creator.calls


async def test_dead_letters_of_a_stream_that_was_made_again_are_no_duplicates(
    server: NatsProcess, component: Component
) -> None:
    """It counts from 1 again, and the commands of before had the same numbers."""
    async with consuming(server, component.creator), sender(server) as bus:
        for number in (1, 2):
            await bus.send({"name": ""})
            await bus.settled()
            assert number == len(await bus.dead())
            await bus.jetstream.delete_stream(STREAM)
            await bus.ready()


async def test_a_consumer_that_was_deleted_is_made_again(
    server: NatsProcess, component: Component
) -> None:
    """JetStream's own answer to a request, by its status, ends the turn."""
    async with consuming(server, component.creator), sender(server) as bus:
        await bus.ask()
        await bus.jetstream.delete_consumer(STREAM, CONSUMER)
        await bus.ask(Idempotency_Key="another")


async def test_another_body_under_the_key_is_dead_lettered_as_reused(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """As over HTTP, it can never succeed under this key."""
    async with consuming(server, component.creator), sender(server) as bus:
        await bus.ask()
        reply = await bus.ask({"name": "Another"})
        await bus.settled()
        (dead,) = await bus.dead()
    assert problem(KeyReused()) == orjson.loads(reply.data)
    assert "key_reused" == dead["code"]
    assert await groups(connection) == 1


async def test_a_command_that_has_waited_too_long_creates_nothing(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """It is as old as its message, or as it says itself; a group that is there is still found."""
    waited: list[float] = [0]
    age = AttemptAge(3600, lambda: time.time() + waited[0])
    async with consuming(server, component.creator, age=age), sender(server) as bus:
        created = await bus.ask()
        waited[0] = 3700
        refused = await bus.ask(Idempotency_Key="late")
        component.creator.forget()
        found = await bus.ask()
        later = f"@{time.time() + waited[0]:.0f}"
        sent_again = await bus.ask(Idempotency_Key="late", Idempotency_First_Sent=later)
        await bus.settled()
        (dead,) = await bus.dead()
    assert problem(OutOfRange(0, 1).error()) == orjson.loads(refused.data)
    assert "first_sent_out_of_range" == dead["code"]
    assert created.data == found.data
    assert sent_again.headers is not None
    assert "created" == sent_again.headers["Idempotency-Status"]
    assert await groups(connection) == 2


async def test_where_our_clock_is_behind_a_plain_command_is_new(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """The stream's clock is ahead of ours. One that says so itself is refused, and reported."""
    observed: list[Observation] = []
    age = AttemptAge(3600, lambda: time.time() - 400)
    async with (
        consuming(server, component.creator, observed, age=age),
        sender(server) as bus,
    ):
        created = await bus.ask()
        now = f"@{time.time():.0f}"
        refused = await bus.ask(Idempotency_Key="ahead", Idempotency_First_Sent=now)
        await bus.settled()
        (dead,) = await bus.dead()
    assert created.headers is not None
    assert "created" == created.headers["Idempotency-Status"]
    assert "ahead of the service's clock" in orjson.loads(refused.data)["detail"]
    assert "first_sent_out_of_range" == dead["code"]
    assert await groups(connection) == 1


async def test_an_attempt_that_failed_is_reported_and_not_tried_again(
    server: NatsProcess, connection: Connection, database_url: str
) -> None:
    """It is settled: acknowledged, and no dead letter."""

    async def reject(*_: object) -> None:
        raise GroupRejected("quota", "No more groups.")

    observed: list[Observation] = []
    async with (
        open_component(database_url, on_create=reject) as component,
        consuming(server, component.creator, observed),
        sender(server) as bus,
    ):
        reply = await bus.ask()
        await bus.settled()
        assert [] == await bus.dead()
    failed = AttemptFailed(Failure("quota", "No more groups."))
    assert problem(failed) == orjson.loads(reply.data)
    assert CommandHandled("failed") in observed
    assert await groups(connection) == 0


async def test_a_command_whose_group_was_deleted_is_reported_and_creates_no_other(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """As a failed attempt: acknowledged, and no dead letter; also with another body, and too late."""
    waited: list[float] = [0]
    age = AttemptAge(3600, lambda: time.time() + waited[0])
    observed: list[Observation] = []
    async with (
        consuming(server, component.creator, observed, age=age),
        sender(server) as bus,
    ):
        await bus.ask()
        await component.deleter.delete(group_id(UserId("alice"), "k"), UserId("alice"))
        replies = [await bus.ask(), await bus.ask({"name": "Another"})]
        await bus.send()
        waited[0] = 3700
        replies.append(await bus.ask())
        await bus.settled()
        assert [] == await bus.dead()
    for reply in replies:
        assert problem(GroupDeleted()) == orjson.loads(reply.data)
        assert reply.headers is not None
        assert "410" == reply.headers["Stretto-Status"]
    assert 4 == observed.count(CommandHandled("failed"))
    assert await groups(connection) == 1
    assert 0 == await connection.fetchval("SELECT count(*) FROM conversation")


async def test_a_command_that_cannot_be_settled_yet_is_put_off_and_then_settled(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """Pending, rejected, no database, a bug of ours: it is redelivered, and answered once."""
    creator: Any = Scripted(
        component.creator,
        AttemptPending(),
        Overloaded(),
        DatabaseUnavailable(),
        RuntimeError("a bug"),
    )
    observed: list[Observation] = []
    async with consuming(server, creator, observed), sender(server) as bus:
        reply = await bus.ask()
        await bus.settled()
        assert reply.headers is not None
        assert "201" == reply.headers["Stretto-Status"]
        assert [] == await bus.dead()
    assert 5 == creator.calls
    assert 4 == observed.count(CommandHandled("put_off"))
    assert await groups(connection) == 1


class Away:
    """Stands for a creator whose database is away until it is said to be back."""

    def __init__(self, creator: GroupCreator) -> None:
        self.creator = creator
        self.is_back = False
        self.tried: list[IdempotencyKey] = []

    async def create_from(
        self, owner: UserId, key: IdempotencyKey, *given: Any, **by: Any
    ) -> object:
        self.tried.append(key)
        if not self.is_back:
            raise DatabaseUnavailable from Unreachable("away")
        return await self.creator.create_from(owner, key, *given, **by)


async def test_commands_stay_in_the_stream_while_the_database_is_away(
    server: NatsProcess,
    component: Component,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Put off, they would take places, and be rejected beyond a share; all are done afterwards."""
    monkeypatch.setattr(outage_module, "TRY_SECONDS", 0.05)
    creator: Any = Away(component.creator)
    observed: list[Observation] = []
    async with nats_client(server.url) as client:
        bus = Sender(client)
        await bus.jetstream.add_stream(
            name=STREAM,
            subjects=[SUBJECT],
            metadata={MARK: OURS.database},
            retention=RetentionPolicy.WORK_QUEUE,
        )
        for number in range(200):
            await bus.send(Idempotency_Key=f"k{number}")
        async with consuming(server, creator, observed):
            # The first ones find it out together, the others one after the other.
            await until(lambda: 2 * FAST.workers <= len(creator.tried))
            assert (await bus.jetstream.consumer_info(STREAM, CONSUMER)).num_pending >= 100
            creator.is_back = True
            await bus.settled()
    assert 0 == observed.count(CommandHandled("rejected"))
    assert await groups(connection) == 200


FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON chat_group FOR EACH ROW WHEN (%s)
EXECUTE FUNCTION full_disk()"""


@pytest.mark.parametrize("is_of_all", [True, False])
async def test_commands_stay_in_the_stream_while_the_disk_is_full(
    server: NatsProcess,
    component: Component,
    connection: Connection,
    is_of_all: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not where only one owner's groups meet that: then others are not kept waiting."""
    monkeypatch.setattr(outage_module, "TRY_SECONDS", 0.05)
    monkeypatch.setattr(outage_module, "REHEARSAL_SECONDS", 0.05)
    await connection.execute(FULL % ("true" if is_of_all else "NEW.owner_id = 'alice'"))
    rehearse = partial(rehearse_for_others, component.database, component.write_stores)
    observed: list[Observation] = []
    put_off = CommandHandled("put_off")
    async with nats_client(server.url) as client:
        bus = Sender(client)
        await bus.jetstream.add_stream(
            name=STREAM,
            subjects=[SUBJECT],
            metadata={MARK: OURS.database},
            retention=RetentionPolicy.WORK_QUEUE,
        )
        async with consuming(server, component.creator, observed, rehearse=rehearse):
            await bus.send(Idempotency_Key="first")
            await until(lambda: put_off in observed)
            for number in range(200):
                await bus.send(Idempotency_Key=f"k{number}")
            asked = asyncio.create_task(bus.ask(Stretto_Owner="bob"))
            await until(lambda: observed.count(put_off) >= FAST.workers)
            if is_of_all:
                assert (await bus.jetstream.consumer_info(STREAM, CONSUMER)).num_pending >= 100
            else:
                assert b"group_id" in (await asked).data
            await connection.execute("DROP FUNCTION full_disk CASCADE")
            assert b"group_id" in (await asked).data
            await bus.settled()
    assert 0 == observed.count(CommandHandled("rejected"))
    assert await groups(connection) == 202


async def test_a_command_that_was_tried_often_in_an_outage_is_done_soon_after_it(
    server: NatsProcess, component: Component, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pauses do not grow meanwhile: with them, it would come half a minute later."""
    monkeypatch.setattr(outage_module, "TRY_SECONDS", 0.01)
    monkeypatch.setattr(commands_module, "DELAY", Backoff(0.02, 10 * DEADLINE_SECONDS))
    creator: Any = Away(component.creator)
    async with consuming(server, creator), sender(server) as bus:
        asked = asyncio.create_task(bus.ask())
        await until(lambda: 16 <= len(creator.tried))
        creator.is_back = True
        assert b"group_id" in (await asked).data


class OfOwners:
    """Stands for a creator: notes whose command comes, and has the script's answer for one owner."""

    def __init__(self, creator: GroupCreator, greedy: Callable[[], Awaitable[object]]) -> None:
        self.creator = creator
        self.greedy = greedy
        self.owners: list[str] = []

    async def create_from(self, owner: UserId, *given: Any, **options: Any) -> object:
        self.owners.append(owner)
        if owner == "greedy":
            await self.greedy()
        return await self.creator.create_from(owner, *given, **options)


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_commands_that_are_put_off_leave_places_for_other_owners(
    server: NatsProcess,
    component: Component,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beyond the owner's share they are settled: by an error that is read, or a dead letter."""

    async def limit() -> None:
        raise RateLimited

    if not is_guarded:
        monkeypatch.setattr(window_module.PutOff, "of", lambda *_: 0)
        monkeypatch.setattr(window_module, "QUEUED_MAX", 1)
    observed: list[Observation] = []
    creator: Any = OfOwners(component.creator, limit)
    async with nats_client(server.url) as client:
        bus = Sender(client)
        await bus.jetstream.add_stream(
            name=STREAM, subjects=[SUBJECT], metadata={MARK: OURS.database}
        )
        places = ConsumerConfig(durable_name=CONSUMER, max_ack_pending=64)
        await bus.jetstream.add_consumer(STREAM, places)
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        for number in range(200):
            asked = {"Stretto_Reply_To": inbox} if number % 2 else {}
            await bus.send(Idempotency_Key=f"k{number}", Stretto_Owner="greedy", **asked)
        async with consuming(server, creator, observed):
            if is_guarded:
                await bus.ask()
                info = await bus.jetstream.consumer_info(STREAM, CONSUMER)
                # Queued, put off, under way, or about to be.
                assert info.num_ack_pending <= 4 + 4 + FAST.workers + FAST.fetchers
                await until(lambda: 150 <= observed.count(CommandHandled("rejected")))
                dead = await bus.dead()
                assert {each["code"] for each in dead} <= {RateLimited.code, Overloaded.code}
                assert 50 <= len(dead) <= 100
                assert 50 <= replies.pending_msgs <= 100
                reply = await replies.next_msg()
                assert "same-key" == orjson.loads(reply.data)["retry"]
            else:
                await bus.send()
                await until(lambda: 500 <= observed.count(CommandHandled("put_off")))
                assert {"greedy"} == set(creator.owners)


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_backlog_of_one_owner_does_not_delay_the_command_of_another(
    server: NatsProcess,
    component: Component,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the last one in the stream; the owners take turns, and nothing is delivered twice."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await go_on.wait()

    if not is_guarded:
        monkeypatch.setattr(window_module, "Mailbox", lambda places, _: Mailbox(places))
    creator: Any = OfOwners(component.creator, slow)
    settings = replace(FAST, workers=1)
    async with consuming(server, creator, settings=settings), sender(server) as bus:
        for number in range(50):
            await bus.send(Idempotency_Key=f"k{number}", Stretto_Owner="greedy")
        await bus.send()

        async def is_taken() -> bool:
            return not (await bus.jetstream.consumer_info(STREAM, CONSUMER)).num_pending

        await until(is_taken)
        go_on.set()
        await bus.settled()
        assert 51 == len(creator.owners)
    assert is_guarded == (creator.owners.index("alice") <= 3)


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_queued_command_is_not_delivered_again_while_it_waits(
    server: NatsProcess,
    component: Component,
    is_guarded: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server hears in time that it is kept."""
    go_on = asyncio.Event()
    if not is_guarded:
        monkeypatch.setattr(window_module, "KEPT_PER_ACK_WAIT", 0.001)
    creator: Any = OfOwners(component.creator, go_on.wait)
    # Long enough for a busy machine to say three times that it is kept.
    settings = replace(FAST, workers=1, ack_seconds=1.5)
    async with consuming(server, creator, settings=settings), sender(server) as bus:
        for number in range(3):
            await bus.send(Idempotency_Key=f"k{number}", Stretto_Owner="greedy")

        async def is_redelivered() -> bool:
            info = await bus.jetstream.consumer_info(STREAM, CONSUMER)
            return bool(info.num_redelivered)

        if is_guarded:
            await asyncio.sleep(2 * settings.ack_seconds)
            assert not await is_redelivered()
        else:
            await until(is_redelivered)
        go_on.set()
        await bus.settled()


async def test_what_a_stopping_process_has_queued_comes_to_another_at_once(
    server: NatsProcess, component: Component
) -> None:
    """It is given back; otherwise the server would wait for its acknowledgement."""
    go_on = asyncio.Event()
    creator: Any = OfOwners(component.creator, go_on.wait)
    patient = replace(FAST, workers=1, ack_seconds=10 * DEADLINE_SECONDS)
    async with AsyncExitStack() as stack:
        runner, consumer = await stack.enter_async_context(
            consuming(server, creator, settings=patient)
        )
        bus = await stack.enter_async_context(sender(server))
        for number in range(5):
            await bus.send(Idempotency_Key=f"k{number}", Stretto_Owner="greedy")

        async def is_taken() -> bool:
            info = await bus.jetstream.consumer_info(STREAM, CONSUMER)
            return bool(info.num_ack_pending == 5)

        await until(is_taken)
        await until(lambda: bool(creator.owners))
        stopping = asyncio.create_task(runner.stop(consumer), name="stopping")
        go_on.set()
        await stopping
        assert 1 == len(creator.owners)
        await stack.enter_async_context(consuming(server, component.creator))
        await bus.settled()


async def test_a_crash_before_the_acknowledgement_leads_to_a_replay(
    server: NatsProcess, component: Component, connection: Connection, database_url: str
) -> None:
    """The group is there, the command comes again, and the other replica finds the group."""
    async with AsyncExitStack() as stack:
        dying = await stack.enter_async_context(consuming(server, component.creator))
        bus = await stack.enter_async_context(sender(server))
        crashed = asyncio.Event()

        async def cut(*_: object) -> None:
            crashed.set()
            await asyncio.Future()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(commands_module, "reply_success", cut)
            asked = asyncio.create_task(bus.ask())
            await crashed.wait()
            # Gone in the midst of it: nothing of it is acknowledged.
            await die(*dying)
        assert await groups(connection) == 1
        second = await stack.enter_async_context(open_component(database_url))
        await stack.enter_async_context(consuming(server, second.creator))
        reply = await asked
        await bus.settled()
        assert reply.headers is not None
        assert "replayed" == reply.headers["Idempotency-Status"]
    assert await groups(connection) == 1


async def test_without_the_late_acknowledgement_a_crash_would_lose_the_command(
    server: NatsProcess,
    component: Component,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the test above shows not to happen: acknowledge first, and the group is never made."""
    taken = asyncio.Event()

    async def acknowledge_first(
        self: CommandConsumer, link: object, window: object, command: Command
    ) -> None:
        await command.message.ack_sync()
        taken.set()
        await asyncio.Future()

    monkeypatch.setattr(CommandConsumer, "_handle", acknowledge_first)
    async with consuming(server, component.creator) as dying, sender(server) as bus:
        await bus.send()
        await taken.wait()
        await die(*dying)
        monkeypatch.undo()
        async with consuming(server, component.creator):
            await bus.settled()
    assert await groups(connection) == 0


async def test_commands_survive_a_killed_server(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """What was accepted is worked off after the restart; a sender that is unsure sends again."""
    async with consuming(server, component.creator):
        async with sender(server) as bus:
            for number in range(50):
                await bus.send(Idempotency_Key=f"k{number}")
        await server.kill()
        await server.start()
        async with sender(server) as bus:
            for number in range(100):
                await bus.send(Idempotency_Key=f"k{number}")
            await bus.settled()
            assert [] == await bus.dead()
    assert await groups(connection) == 100


async def test_stopping_ends_what_is_under_way_and_takes_nothing_more(
    server: NatsProcess, component: Component, connection: Connection
) -> None:
    """A command that was begun is answered; the next waits in the stream for another replica."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Scripted):
        async def create_from(self, *given: Any, **options: Any) -> object:
            begun.set()
            await go_on.wait()
            return await super().create_from(*given, **options)

    creator: Any = Slow(component.creator)
    async with AsyncExitStack() as stack:
        runner, consumer = await stack.enter_async_context(consuming(server, creator))
        bus = await stack.enter_async_context(sender(server))
        asked = asyncio.create_task(bus.ask())
        await begun.wait()
        stopping = asyncio.create_task(runner.stop(consumer))
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert b"group_id" in (await asked).data
        await runner.stop(consumer)
        await bus.send(Idempotency_Key="later")
        assert 1 == (await bus.jetstream.stream_info(STREAM)).state.messages
    assert 1 == creator.calls
    assert await groups(connection) == 1


async def test_permissions_of_the_runbook_let_senders_command_and_nothing_else(
    tmp_path: Path, component: Component
) -> None:
    """As docs/operations.md has them: commands and their outcomes, but no events of one's own."""
    runbook = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    found = re.search(r"^    authorization: \{.*?^    \}$", runbook, re.DOTALL | re.MULTILINE)
    assert found is not None
    (tmp_path / "nats.conf").write_text(found[0].replace("…", "secret"))
    refused = asyncio.Queue[str]()

    async def on_error(error: Exception) -> None:
        refused.put_nowait(str(error).lower())

    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            NatsProcess(tmp_path / "nats", "--config", str(tmp_path / "nats.conf"))
        )
        own, others = (
            server.url.replace("//", f"//{user}:secret@") for user in ("stretto", "backend")
        )
        observed: list[Observation] = []
        runner = await stack.enter_async_context(Runner(observed.append))
        connection = NatsConnection(own, observed.append)
        runner.start(connection)
        runner.start(
            CommandConsumer(
                *(connection, OURS, component.creator, AGE, observed.append, FAST),
                outage=Outage(takes_all),
            )
        )
        watcher = Sender(await stack.enter_async_context(nats_client(own)))
        await watcher.ready()
        client = await nats.connect(others, error_cb=on_error)
        stack.push_async_callback(client.close)
        reply = await Sender(client).ask()
        assert b"group_id" in reply.data
        async with asyncio.timeout(DEADLINE_SECONDS):
            await client.publish("stretto.events.group_created", b"{}")
            assert "publish" in await refused.get()
            await client.subscribe("stretto.events.>")
            assert "subscription" in await refused.get()
    assert not any("failed" in type(event).__name__.lower() for event in observed)
