"""Creations of all sizes, cut anywhere: each is answered, directly and behind real proxies.

`TEST_CREATIONS=200 pytest tests/faults/test_creations_in_pieces.py` sends 600, 200 in each way.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from stretto.codec import BODY_BYTES_MAX
from support.api_client import token_of
from support.proxies import haproxy_before, nginx_before, running_haproxy, running_nginx
from support.raw_client import creation, raw_clients
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.service_process import ServiceProcess, StartService

CREATIONS = int(os.environ.get("TEST_CREATIONS", "20"))
DEADLINE_SECONDS = 100
PIECES_MAX = 5
SEED = 10
# So many at once: more bodies are on their way than one turn of the loop reads.
CLIENTS = 10
DOCUMENT = b'{"name": "Team"}'


@asynccontextmanager
async def way_to(service: ServiceProcess, way: str) -> AsyncIterator[str]:
    """Yield a URL under which the service is reached."""
    if way == "haproxy":
        async with running_haproxy(haproxy_before(service.url)) as url:
            yield url
    elif way == "nginx":
        async with running_nginx(nginx_before(service.url)) as url:
            yield url
    else:
        yield service.url


def pieces(chance: random.Random, number: int) -> list[bytes]:
    """Return a creation of up to the largest size, cut at any places."""
    size = chance.choice([len(DOCUMENT), chance.randint(1024, BODY_BYTES_MAX), BODY_BYTES_MAX])
    request = creation(token_of("alice"), f"k{number}", DOCUMENT.ljust(size))
    cuts = sorted(chance.sample(range(1, len(request)), chance.randint(0, PIECES_MAX - 1)))
    return [request[start:end] for start, end in pairwise([0, *cuts, len(request)])]


@pytest.mark.parametrize("way", ["direct", "haproxy", "nginx"])
async def test_every_creation_is_answered_however_it_is_cut(
    way: str, start_service: StartService
) -> None:
    """Head and body in one to five pieces; none is cut off."""
    chance = random.Random(SEED)
    service = await start_service()
    waiting = [pieces(chance, number) for number in range(CREATIONS)]
    statuses: list[int] = []
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        way_to(service, way) as url,
        raw_clients(url) as raw,
    ):

        async def work() -> None:
            client = await raw.connect()
            while waiting:
                for piece in waiting.pop():
                    client.send(piece)
                    await until(lambda: not client.transport.get_write_buffer_size())
                    # The others send meanwhile, and the pieces arrive one by one.
                    await asyncio.sleep(0)
                statuses.append((await client.answer())[0])

        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(work())
    assert [201] * CREATIONS == statuses
    assert not any(b"request.cut_off" in line for line in service.log)
