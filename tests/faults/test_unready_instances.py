"""Clients of haproxy's sample, run from `deploy/`, get whole answers while neither instance is ready."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from stretto.codec import PROBLEM_CONTENT_TYPE, problem
from stretto.errors import DatabaseUnavailable
from support.api_client import hosted_api
from support.proxies import running_sample
from support.raw_client import raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.raw_client import RawClient, RawClients

DEADLINE_SECONDS = 60
CLIENTS = 20
OK = 200
REFUSED = 503
REQUESTS = {
    "a request": b"POST /v1/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
    "a session": b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n",
}
AT_ONCE = b"GET /v1/at-once HTTP/1.1\r\nHost: x\r\n\r\n"
# As large as the service takes, of which the end never comes.
PART = b"POST /v1/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 262144\r\n\r\n{"


class Instance:
    """Answers when it is told to; its health check and requests for `/v1/at-once` at once."""

    def __init__(self) -> None:
        self.is_ready = True
        self.waiting: list[asyncio.Future[int]] = []

    def app(self) -> web.Application:
        """Return what serves."""
        app = web.Application()
        app.router.add_get("/readyz", self._check)
        app.router.add_get("/v1/at-once", self._answer)
        app.router.add_route("*", "/v1/{rest}", self._wait)
        return app

    async def _check(self, _: web.Request) -> web.Response:
        return web.Response(status=OK if self.is_ready else REFUSED)

    async def _answer(self, _: web.Request) -> web.Response:
        return web.json_response({})

    async def _wait(self, request: web.Request) -> web.Response:
        await request.read()
        self.waiting.append(asyncio.get_running_loop().create_future())
        return web.json_response({}, status=await self.waiting[-1])


class Pair:
    """Two instances behind haproxy, and what connects to that."""

    def __init__(self, instances: tuple[Instance, Instance], clients: RawClients) -> None:
        self._instances = instances
        self.clients = clients

    async def asked(self, request: bytes) -> list[RawClient]:
        """Send a request from each of many clients, and wait until the instances have them all."""
        asking = [await self.clients.connect(request) for _ in range(CLIENTS)]
        await until(lambda: sum(len(each.waiting) for each in self._instances) == CLIENTS)
        return asking

    def answer(self, status: int) -> None:
        """Answer all that wait."""
        for each in self._instances:
            while each.waiting:
                each.waiting.pop().set_result(status)

    async def become_unready(self) -> None:
        """Say so at the next health check, and wait until haproxy asks neither of them any more."""
        for each in self._instances:
            each.is_ready = False

        # On one connection: haproxy bounds those of an address.
        client = await self.clients.connect()

        async def is_noticed() -> bool:
            client.send(AT_ONCE)
            return (await client.answer())[0] == REFUSED

        await until(is_noticed)


@asynccontextmanager
async def pair_behind_haproxy(folder: Path) -> AsyncIterator[Pair]:
    """Run two instances behind haproxy."""
    instances = Instance(), Instance()
    async with asyncio.timeout(DEADLINE_SECONDS), AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(hosted_api(each.app()))).url for each in instances]
        url = await stack.enter_async_context(running_sample("haproxy", folder, *urls))
        tls = ssl.create_default_context(cafile=folder / "server.crt")
        yield Pair(instances, await stack.enter_async_context(raw_clients(url, tls)))


async def check_document(client: RawClient) -> None:
    """Check that a client gets what the service would say, whole; the detail is the proxy's own."""
    status, headers, document = await client.answer()
    assert (REFUSED, "1") == (status, headers["retry-after"])
    assert PROBLEM_CONTENT_TYPE == headers["content-type"]
    assert problem(DatabaseUnavailable()) | {"detail": document["detail"]} == document


async def refused(pair: Pair, request: bytes) -> list[RawClient]:
    """Have both instances refuse a request of each client, when a second try finds none ready.

    The first try is on a connection that has served before, as haproxy keeps them.
    """
    before = await pair.asked(request)
    pair.answer(OK)
    assert [OK] * CLIENTS == [(await client.answer())[0] for client in before]
    clients = await pair.asked(request)
    await pair.become_unready()
    pair.answer(REFUSED)
    return clients


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
async def test_what_instances_refuse_that_are_not_ready_is_answered_behind_a_shipped_haproxy(
    request_: bytes, tmp_path: Path
) -> None:
    """Else haproxy closes the connection: it takes the client for one that tries again by itself."""
    async with pair_behind_haproxy(tmp_path) as pair:
        for client in await refused(pair, request_):
            await check_document(client)


async def test_a_second_try_that_finds_no_instance_is_logged_once_by_a_shipped_haproxy(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As what it is, and not as another request, which haproxy sends to itself."""
    said: list[str] = []

    def tries() -> int:
        said.append(capfd.readouterr().err)
        return "".join(said).count(" stretto/no_instance ")

    async with pair_behind_haproxy(tmp_path) as pair:
        await refused(pair, REQUESTS["a request"])
        await until(lambda: tries() == CLIENTS)
    assert " no_instance/" not in "".join((*said, capfd.readouterr().err))


async def test_a_body_that_has_not_come_is_not_waited_for_while_no_instance_is_ready(
    tmp_path: Path,
) -> None:
    """Such a request could not be tried a second time, and what it lacks may never come."""
    async with pair_behind_haproxy(tmp_path) as pair:
        await pair.become_unready()
        for client in [await pair.clients.connect(PART) for _ in range(CLIENTS)]:
            await check_document(client)
