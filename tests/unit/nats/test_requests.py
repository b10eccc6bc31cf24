"""Requests whose leader has gone, and those that are only slow."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from stretto.nats import requests
from stretto.nats.requests import Unsent, acknowledged, answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

DEADLINE_SECONDS = 20
NO_LEADER = ServiceUnavailableError(code=503, err_code=10008)
NOT_LEADER = APIError(code=500, err_code=10009)
LOST = [NatsTimeout(), NoStreamResponseError(), NO_LEADER, NOT_LEADER]
ACK = PubAck(stream="s", seq=1)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is as slow as a network."""
    monkeypatch.setattr(requests, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(requests, "QUIET_SECONDS", 0.1)


async def silence() -> Any:
    """Wait as for an answer that never comes."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("error", [None, *LOST])
async def test_a_question_without_a_leaders_answer_is_asked_again(error: Exception | None) -> None:
    """Until there is one; none of the earlier questions is left behind."""
    asked = 0

    async def ask() -> int:
        nonlocal asked
        asked += 1
        if asked == 3:
            return asked
        if error is not None:
            raise error
        await silence()
        return 0

    assert 3 == await answered(ask)
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_a_slow_server_is_heard_although_it_is_asked_again() -> None:
    """The first answer counts, to whichever question it is."""
    first = asyncio.Event()
    asked = 0

    async def ask() -> str:
        nonlocal asked
        asked += 1
        if asked == 1:
            await first.wait()
            return "slow"
        if asked == 3:
            first.set()
        await silence()
        return ""

    assert "slow" == await answered(ask)


@pytest.mark.parametrize("error", [NotFoundError(code=404), ServiceUnavailableError()])
async def test_what_a_leader_refuses_is_not_asked_again(error: Exception) -> None:
    """Nor what a server without JetStream says."""
    asked = 0

    async def ask() -> None:
        nonlocal asked
        asked += 1
        raise error

    with pytest.raises(type(error)):
        await answered(ask)
    assert 1 == asked


async def test_a_question_is_given_up_when_no_leader_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller decides what then."""
    monkeypatch.setattr(requests, "LEADER_SECONDS", 0.05)
    with pytest.raises(TimeoutError):
        await answered(silence)
    assert {asyncio.current_task()} == asyncio.all_tasks()


def link_of(publish: Callable[..., Awaitable[PubAck]]) -> Any:
    """Return what sends a message by that function."""

    async def flush(_: int) -> None:
        # The server has everything.
        return

    return SimpleNamespace(
        jetstream=SimpleNamespace(publish=publish),
        client=SimpleNamespace(flush=flush),
        ended=asyncio.get_running_loop().create_future(),
    )


async def test_each_message_has_its_own_answer() -> None:
    """An acknowledgement, a refusal, or none."""
    refusal = APIError(code=400, err_code=10054)
    answers = [ACK, refusal, *LOST, None]

    async def publish(subject: str, body: bytes, headers: dict[str, str]) -> PubAck:
        assert (b"body", {"a": "b"}) == (body, headers)
        answer = answers[int(subject)]
        if isinstance(answer, Exception):
            raise answer
        return answer or await silence()

    messages = [Unsent(str(number), b"body", {"a": "b"}) for number in range(len(answers))]
    async with asyncio.timeout(DEADLINE_SECONDS):
        found = await acknowledged(link_of(publish), messages)
    assert [ACK, refusal, None, None, None, None, None] == found
    assert {asyncio.current_task()} == asyncio.all_tasks()


async def test_a_slow_server_is_waited_for_while_it_acknowledges_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of them in the time after which silence would be the end."""
    monkeypatch.setattr(requests, "QUIET_SECONDS", 0.5)

    async def publish(subject: str, *_: object, **__: object) -> PubAck:
        await asyncio.sleep(int(subject) * 0.15)
        return ACK

    messages = [Unsent(str(number), b"", {}) for number in range(5)]
    assert [ACK] * 5 == await acknowledged(link_of(publish), messages)


@pytest.fixture
async def reported() -> AsyncIterator[list[str]]:
    """What asyncio reports as an error of no task that anything has looked at."""
    found: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: found.append(context["message"]))
    yield found
    loop.set_exception_handler(None)


async def forgotten(senders: list[asyncio.Task[Any]]) -> None:
    """Return once nothing refers to the cancelled senders, nor to what they have sent."""
    assert senders.pop().cancelled()
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()


async def test_messages_without_an_answer_are_looked_at_where_their_sender_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, reported: list[str]
) -> None:
    """Those that had ended before, while it waits on for the others."""
    waits = 0
    wait = asyncio.wait

    async def publish(subject: str, *_: object, **__: object) -> PubAck:
        if subject == "0":
            raise NatsTimeout
        return await silence()  # type: ignore[no-any-return]

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal waits
        waits += 1
        if waits == 2:
            senders[0].cancel()
        return await wait(*arguments, **options)

    messages = [Unsent(str(number), b"", {}) for number in range(2)]
    senders = [asyncio.create_task(acknowledged(link_of(publish), messages))]
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "wait", counted)
        await wait(senders)
    await forgotten(senders)
    assert (3, []) == (waits, reported)


async def test_messages_that_end_after_their_sender_was_given_up_are_looked_at(
    reported: list[str],
) -> None:
    """The NATS client swallows a cancellation, and the sender does not wait for it any more."""
    is_sent, is_cancelled, is_answered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def publish(*_: object, **__: object) -> PubAck:
        is_sent.set()
        try:
            await silence()
        except asyncio.CancelledError:
            is_cancelled.set()
        await is_answered.wait()
        raise NatsTimeout

    senders = [asyncio.create_task(acknowledged(link_of(publish), [Unsent("0", b"", {})]))]
    await is_sent.wait()
    senders[0].cancel()
    await is_cancelled.wait()
    senders[0].cancel()
    await asyncio.wait(senders)
    is_answered.set()
    await forgotten(senders)
    assert [] == reported


async def test_nothing_to_send_needs_no_answer() -> None:
    """As when every event of a batch was refused."""
    assert [] == await acknowledged(link_of(silence), [])


@pytest.mark.parametrize("is_slow", [True, False])
async def test_a_slow_link_is_waited_for_while_messages_are_on_their_way(
    is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To send them again would only make it slower. The server answers a ping behind them."""
    monkeypatch.setattr(requests, "SLOW_SECONDS", 0.01)
    arrived = asyncio.Event()

    async def publish(*_: object, **__: object) -> PubAck:
        await arrived.wait()
        return ACK

    async def flush(_: int) -> None:
        if is_slow:
            await asyncio.sleep(0.02)
            # The acknowledgement comes behind the answer to the ping.
            asyncio.get_running_loop().call_later(0.02, arrived.set)

    link = link_of(publish)
    link.client.flush = flush
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert [ACK if is_slow else None] == await acknowledged(link, [Unsent("0", b"", {})])


@pytest.mark.parametrize("has_ended", [True, False])
async def test_a_ping_lasts_until_its_answer_or_as_long_as_the_connection(
    has_ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client stops reading, in silence, at the answer to a ping that was cancelled."""
    monkeypatch.setattr(requests, "QUIET_SECONDS", 0.01)
    pinged = asyncio.Event()
    answer = asyncio.get_running_loop().create_future()

    async def publish(*_: object, **__: object) -> PubAck:
        await silence()
        return ACK

    async def flush(_: int) -> None:
        pinged.set()
        await answer

    link = link_of(publish)
    link.client.flush = flush
    asking = asyncio.create_task(acknowledged(link, [Unsent("0", b"", {})]))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await pinged.wait()
        asking.cancel()
        await asyncio.wait([asking])
        (ping,) = asyncio.all_tasks() - {asyncio.current_task()}
        assert 0 == ping.cancelling()
        if has_ended:
            link.ended.set_result(None)
        else:
            answer.set_result(None)
        await asyncio.wait([ping])
    assert has_ended == ping.cancelled()


@pytest.mark.parametrize("error", [None, AssertionError("Client.connect must be called first")])
async def test_a_connection_that_ends_under_a_ping_was_lost(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no cancellation of the caller, and no crash, whatever the client says of it."""
    monkeypatch.setattr(requests, "QUIET_SECONDS", 0.01)

    async def publish(*_: object, **__: object) -> PubAck:
        await silence()
        return ACK

    link = link_of(publish)

    async def flush(_: int) -> None:
        if error is not None:
            raise error
        link.ended.set_result(None)
        await silence()

    link.client.flush = flush
    with pytest.raises(ConnectionResetError):
        await acknowledged(link, [Unsent("0", b"", {})])
    assert {asyncio.current_task()} == asyncio.all_tasks()
