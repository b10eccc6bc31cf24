"""The examples run as they stand, each as the program that its reader would start."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from stretto.domain import NAME_CHARACTERS_MAX, USER_ID_CHARACTERS_MAX
from support.api_client import SECRET, TEAM, connected_api, token_of
from support.environment import QUIET, environment
from support.example_process import DEADLINE_SECONDS, EXAMPLES, output_of, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from support.api_client import Reply
    from support.database import Connection
    from support.service_process import StartService

# Of a host in another framework: it stays an example that one reads at a glance.
HOST_LINES_MAX: Final = 40


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
            # The log says why, on stderr: the program has not configured it.
            "write.failed kind=Refused cause=quota_exceeded writes=1",
            "Team 3: quota_exceeded",
            "counted: 2",
        ] == await output_of("hook.py", empty_database_url)
        assert await connection.fetchval("SELECT count(*) FROM chat_group") == 2 * run
        assert await connection.fetchval("SELECT sum(groups) FROM team_quota") == 2 * run


async def test_changes_are_made_with_the_hosts_rows_and_once(
    empty_database_url: str, connection: Connection
) -> None:
    """What was so already has no row of the host's, and what was refused changes nothing."""
    for run in (1, 2):
        assert ["added: dave", "added: nobody", "refused: last_owner"] == await output_of(
            "changes.py", empty_database_url
        )
        assert run == await connection.fetchval("SELECT count(*) FROM public.audit")
        members = "SELECT count(*) FROM conversation_member WHERE role <> 'member'"
        assert 2 * run == await connection.fetchval(members)


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


async def test_client_creates_once_and_is_refused_another_body(
    start_service: StartService, tmp_path: Path
) -> None:
    """Against a real service process; what is done is no intention any more."""
    service = await start_service()
    folder = tmp_path / "intentions"
    first, second, refusal, read = await output_of(
        "client.py", service.url, token_of("alice"), str(folder)
    )
    assert ([], "Team has 3 members") == (list(folder.iterdir()), read)
    id_ = first.split()[1]
    assert [f"group {id_} (replay: False)", f"group {id_} (replay: True)"] == [first, second]
    assert "refused: key_reused, retry: new-key" == refusal


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


@asynccontextmanager
async def served(host: str, database_url: str, port: int) -> AsyncIterator[str]:
    """Serve a host of another framework by uvicorn; it must end well. Yields its URL."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--lifespan", "on"),
        *("--port", str(port), host),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment(**QUIET, STRETTO_DATABASE_URL=database_url),
    )
    output = b""
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert process.stdout is not None
            while b"Uvicorn running on" not in output:
                line = await process.stdout.readline()
                assert line, output.decode()
                output += line
            yield f"http://127.0.0.1:{port}"
            process.terminate()
            rest, _ = await process.communicate()
        assert b"Application shutdown complete" in rest, rest.decode()
        assert b"Traceback" not in output + rest, rest.decode()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize(
    "host", ["fastapi_host:app", "starlette_host:app", "django_host:application"]
)
async def test_a_host_of_another_framework_creates_once_and_answers_errors(
    host: str, database_url: str, connection: Connection, unused_tcp_port: int
) -> None:
    """As stretto's own HTTP API does: the same bytes, and problem documents."""
    async with served(host, database_url, unused_tcp_port) as url, connected_api(url) as api:

        async def post(key: str, body: object) -> Reply:
            headers = {"X-User": "alice", "Idempotency-Key": key}
            return await api.request("POST", "/groups", user=None, headers=headers, json=body)

        first, again = [await post("k", TEAM) for _ in range(2)]
        assert [201, 201] == [first.status, again.status]
        assert first.body == again.body
        assert ["created", "replayed"] == [
            reply.headers["Idempotency-Status"] for reply in (first, again)
        ]
        assert "Idempotent-Replayed" not in first.headers
        assert "true" == again.headers["Idempotent-Replayed"]
        assert "application/json" == again.headers["Content-Type"]
        for key, body, status, code in (
            ("k", {"name": "Another"}, 422, "key_reused"),
            ("", TEAM, 400, "key_invalid"),
            ("other", {"name": ""}, 400, "request_invalid"),
        ):
            refused = await post(key, body)
            assert (status, code) == (refused.status, refused.json["code"])
            assert "application/problem+json" == refused.headers["Content-Type"]
        listed = await api.get("/groups", user=None, headers={"X-User": "bob"})
        assert ["Team"] == listed.json
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("give the URL of a database", ()),
        ("the chat cannot start: ", ("postgresql://chat@127.0.0.1:1/chat",)),
        ("the chat cannot start: ", ("localhost/chat",)),
    ],
)
async def test_a_chat_without_its_database_says_so(
    message: str, arguments: tuple[str, ...]
) -> None:
    """In one line, and not by a traceback."""
    async with started("chat", *arguments) as process:
        output, _ = await process.communicate()
        assert 1 == process.returncode
    (line,) = output.decode().splitlines()
    assert line.startswith(message)


def test_the_chats_page_takes_no_name_that_a_group_may_not_have() -> None:
    """Its user would learn of it only from the answer."""
    page = (EXAMPLES / "chat/page/index.html").read_text()
    limits = dict(re.findall(r'<input id="(\w+)" required maxlength="(\d+)"', page))
    assert (NAME_CHARACTERS_MAX, USER_ID_CHARACTERS_MAX) == (
        int(limits["name"]),
        int(limits["user"]),
    )


def test_a_host_of_another_framework_is_short() -> None:
    """What is longer is not read."""
    hosts = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*_host.py")}
    assert 3 == len(hosts)
    assert [] == [name for name, lines in hosts.items() if lines > HOST_LINES_MAX]
