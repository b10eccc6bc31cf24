"""Requests whose leader has gone, and those that are only slow."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError, ServiceUnavailableError

from stretto.nats import requests
from stretto.nats.requests import Unsent, acknowledged, answered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
    return SimpleNamespace(jetstream=SimpleNamespace(publish=publish))


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


async def test_nothing_to_send_needs_no_answer() -> None:
    """As when every event of a batch was refused."""
    assert [] == await acknowledged(link_of(silence), [])
