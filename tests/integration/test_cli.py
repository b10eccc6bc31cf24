"""The command as operators use it: real processes, their output and their exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import orjson
import pytest

from stretto.config import SETTINGS
from stretto.domain import group_id
from stretto.http.openapi import DOCUMENT
from support.api_client import SECRET, Api, connected_api, token_of
from support.command_process import ended, started, stretto
from support.environment import QUIET, environment
from support.service_process import ServiceProcess
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

COMMANDS = (
    *("serve", "migrate", "token", "attempt", "groups", "url", "psql", "sweep", "events", "bus"),
    *("check", "size", "openapi"),
)


async def backend(connection: Connection, query: str) -> int:
    """Return the server process that runs a query, once one does: there is no other signal."""
    running = """SELECT pid FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()
                   AND state = 'active' AND query ~ $1"""
    pid: int = await until(lambda: connection.fetchval(running, query))
    return pid


@asynccontextmanager
async def held_up_migration(
    connection: Connection, database_url: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Start a migration that waits for another one; yields it and its server process."""
    await connection.execute("SELECT pg_advisory_lock($1)", int.from_bytes(b"stretto", "big"))
    process = await started("migrate", DATABASE_URL=database_url)
    try:
        trying = """SELECT pid FROM pg_stat_activity
                    WHERE datname = current_database() AND application_name = 'stretto'
                      AND query ~ 'pg_try_advisory_xact_lock|BEGIN|COMMIT'"""
        yield process, await until(lambda: connection.fetchval(trying))
    finally:
        await connection.execute("SELECT pg_advisory_unlock_all()")
        await process.communicate()


async def test_help_names_every_command_setting_and_exit_code() -> None:
    """Line by line, as it can be read."""
    code, text, _ = await stretto("--help")
    lines = [line.strip() for line in text.splitlines()]
    assert code == 0
    for command in COMMANDS:
        assert any(line.startswith(f"{command} ") for line in lines)
    for name in SETTINGS:
        assert any(line.startswith(f"STRETTO_{name.upper()} ") for line in lines)
    for exit_code in ("0", "1", "2", "3", "4", "5", "6", "74", "130"):
        assert any(line.startswith(f"{exit_code} ") for line in lines)


@pytest.mark.parametrize("command", [("check",), ("openapi",), ("--version",), ("--help",)])
async def test_output_that_cannot_be_written_has_its_own_exit_code(
    command: tuple[str, ...], database_url: str
) -> None:
    """It is not the database that has failed."""
    full = os.open("/dev/full", os.O_WRONLY)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stretto", *command),
        stdout=full,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**QUIET, PYTHONUNBUFFERED="", STRETTO_DATABASE_URL=database_url),
    )
    os.close(full)
    _, errors = await process.communicate()
    assert (74, "stretto: the output cannot be written: No space left on device\n") == (
        process.returncode,
        errors.decode(),
    )


@pytest.mark.parametrize("command", [("check",), ("openapi",), ("--version",), ("--help",)])
@pytest.mark.parametrize("buffering", ["", "1"])
async def test_output_whose_reader_has_gone_is_no_error(
    command: tuple[str, ...], buffering: str, database_url: str
) -> None:
    """As under `| head`: 1 would mean that a guarantee does not hold."""
    reader, writer = os.pipe()
    os.close(reader)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stretto", *command),
        stdout=writer,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**QUIET, PYTHONUNBUFFERED=buffering, STRETTO_DATABASE_URL=database_url),
    )
    os.close(writer)
    _, errors = await process.communicate()
    assert (0, "") == (process.returncode, errors.decode())


@pytest.mark.parametrize("lost", ["no reader", "no room"])
async def test_messages_that_cannot_be_written_end_no_command(
    lost: str, database_url: str, connection: Connection
) -> None:
    """Nor does the progress of a sweep: what it was to delete is deleted, and it ends with 0."""
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, claimed_at,
                                settled_at, failure_code, failure_detail)
           VALUES (gen_random_uuid(), 'alice', '0123456789abcdef',
                   gen_random_uuid(), 'failed', '2001-01-01', '2001-01-01', 'refused', '')"""
    )
    if lost == "no room":
        writer = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, writer = os.pipe()
        os.close(reader)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stretto", "sweep"),
        stdout=asyncio.subprocess.PIPE,
        stderr=writer,
        env=environment(STRETTO_DATABASE_URL=database_url),
    )
    os.close(writer)
    output, _ = await process.communicate()
    assert (0, "deleted 1 of attempt") == (process.returncode, output.decode()[:20])


@pytest.mark.parametrize("command", COMMANDS)
async def test_every_command_explains_itself(command: str) -> None:
    """With an example, its flags' settings and its exit codes, each on a line of its own."""
    code, text, _ = await stretto(command, "--help")
    lines = text.splitlines()
    assert code == 0
    assert lines[lines.index("  Example:") + 1].startswith("    ")
    assert any(line.split()[0].isdigit() for line in lines[lines.index("  Exit codes:") + 1 :])
    assert "..." not in text
    if "--database-url" in text:
        assert "[env:STRETTO_DATABASE_URL]" in text


async def test_the_list_of_commands_is_not_cut_short() -> None:
    """Each is reported in one line."""
    lines = (await stretto("--help"))[1].splitlines()
    commands = lines[lines.index("Commands:") + 1 :][: len(COMMANDS)]
    assert list(COMMANDS) == [line.split()[0] for line in commands]
    assert [] == [line for line in commands if line.endswith("...")]


async def test_a_database_is_migrated_once(database_url: str, connection: Connection) -> None:
    """The second time there is nothing to do."""
    newest = await connection.fetchval("SELECT max(number) FROM schema_version")
    await connection.execute("DROP SCHEMA stretto CASCADE")
    assert (0, f"applied: {newest}\n") == (await stretto("migrate", DATABASE_URL=database_url))[:2]
    assert (0, "up to date\n") == (await stretto("migrate", DATABASE_URL=database_url))[:2]


@pytest.mark.parametrize(
    "command", [("check",), ("sweep",), ("events",), ("attempt", "alice", "k"), ("serve",)]
)
async def test_a_database_without_tables_learns_what_to_do(
    command: tuple[str, ...], database_url: str, connection: Connection
) -> None:
    """Exit 2, which is not the 1 of a violation, nor a database that may answer soon."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    code, _, errors = await stretto(*command, DATABASE_URL=database_url, JWT_SECRET=SECRET)
    assert code == 2
    assert "stretto migrate" in errors


async def test_a_token_of_a_new_secret_says_where_it_is_good(tmp_path: Path) -> None:
    """The operator may have forgotten a setting; the second time the secret is known."""
    place = str(tmp_path / "data")
    code, _, errors = await stretto("token", "alice", DATA_DIR=place)
    assert 0 == code
    assert f"STRETTO_JWT_SECRET is not set: this is a new secret, in {place}/jwt-secret" in errors
    assert (0, "") == (await stretto("token", "alice", DATA_DIR=place))[::2]


@pytest.mark.parametrize("hours", ["inf", "nan", "1e306", "87601"])
async def test_a_token_is_not_good_for_ever(hours: str) -> None:
    """What cannot be written as a date is refused, and no traceback is shown."""
    code, _, errors = await stretto("token", "alice", "--hours", hours, JWT_SECRET=SECRET)
    assert code == 2
    assert "Invalid value for '--hours': must be a number from 0.01 to 87600" in errors
    assert 0 == (await stretto("token", "alice", "--hours", "87600", JWT_SECRET=SECRET))[0]


async def test_a_made_token_is_accepted(database_url: str) -> None:
    """It names the user, and what it allows where that is required: all, unless it says less."""
    strict = {"JWT_SECRET": SECRET, "JWT_REQUIRE_SCOPES": "true"}
    tokens = [
        (await stretto("token", "alice", "--hours", "1", *options, **settings))[1].strip()
        for options, settings in (
            ((), {"JWT_SECRET": SECRET}),
            ((), strict),
            (("--scope", "stretto:events", "--scope", "stretto:read"), strict),
            (("--scope", "stretto:events"), strict),
        )
    ]
    code, _, errors = await stretto("token", "alice", "--scope", "stretto:all", **strict)
    assert (2, True) == (code, "stretto:read_any" in errors)
    statuses = []
    for settings in ({}, {"JWT_REQUIRE_SCOPES": "true"}):
        async with (
            ServiceProcess({"DATABASE_URL": database_url, **settings}) as service,
            connected_api(service.url) as api,
        ):
            for token in tokens:
                headers = {"Authorization": f"Bearer {token}"}
                reply = await api.get("/v1/groups", user=None, headers=headers)
                statuses.append(reply.status)
    assert [200, 200, 200, 403, 403, 200, 200, 403] == statuses


async def test_an_attempt_is_shown_or_missed(database_url: str, api: Api) -> None:
    """By owner and key."""
    created = (await api.create("k")).json
    code, output, _ = await stretto("attempt", "alice", "k", DATABASE_URL=database_url)
    assert code == 0
    assert {"status": "succeeded", **created}.items() <= orjson.loads(output).items()
    assert (await stretto("attempt", "alice", "other", DATABASE_URL=database_url))[0] == 1


async def test_of_a_deleted_group_is_shown_when_it_was_deleted(
    database_url: str, api: Api, connection: Connection
) -> None:
    """All that its tombstone can say to a customer who misses it."""
    created = (await api.create("k")).json
    headers = {"Authorization": f"Bearer {token_of('alice')}"}
    path = f"/v1/groups/{created['group_id']}"
    assert 204 == (await api.request("DELETE", path, headers=headers)).status
    deleted_at = await connection.fetchval("SELECT deleted_at FROM chat_group")
    for more in ((), ("--heal",)):
        code, output, _ = await stretto("attempt", "alice", "k", *more, DATABASE_URL=database_url)
        assert 0 == code
        assert orjson.loads(output) == {
            "status": "group_deleted",
            "record": "deleted",
            "group_id": created["group_id"],
            "deleted_at": deleted_at.isoformat(),
        }


@pytest.mark.parametrize(("expected", "days"), [("swept", 31), ("deleted", 29)])
async def test_showing_an_attempt_that_is_gone_writes_nothing(
    expected: str, days: int, database_url: str, api: Api, connection: Connection
) -> None:
    """What is known comes from its group: the record is gone, by its age or before its time."""
    created = (await api.create("k")).json
    created_at = await connection.fetchval(
        f"""WITH gone AS (DELETE FROM attempt)
            UPDATE chat_group SET created_at = created_at - interval '{days} days'
            RETURNING created_at"""
    )
    for more in ((), ("--heal",)):
        code, output, _ = await stretto("attempt", "alice", "k", *more, DATABASE_URL=database_url)
        assert code == 0
        assert orjson.loads(output) == {
            **created,
            "status": "succeeded",
            "record": expected,
            "created_at": created_at.isoformat(),
            "claimed_at": None,
            "settled_at": None,
            "failure": None,
        }
        assert await connection.fetchval("SELECT count(*) FROM attempt") == 0
    looked_up = (await api.get("/v1/attempts/k")).json
    assert {created_at.isoformat()} == {looked_up["claimed_at"], looked_up["settled_at"]}
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 0


async def test_a_pending_attempt_is_healed_where_asked_and_else_only_shown(
    database_url: str, api: Api, connection: Connection
) -> None:
    """Its group exists, so that it has succeeded either way."""
    await api.create("k")
    await connection.execute(
        """DELETE FROM attempt;
           INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token)
           SELECT group_id, owner_id, fingerprint, group_id FROM chat_group"""
    )
    for expected, more in (("pending", ()), ("succeeded", ("--heal",))):
        code, output, _ = await stretto("attempt", "alice", "k", *more, DATABASE_URL=database_url)
        assert (0, "succeeded", "kept") == (
            code,
            orjson.loads(output)["status"],
            orjson.loads(output)["record"],
        )
        assert expected == await connection.fetchval("SELECT status FROM attempt")


async def test_of_an_unknown_key_is_said_what_can_be_known(database_url: str) -> None:
    """It never came, or its record is gone: without a group that cannot be known."""
    code, _, errors = await stretto("attempt", "alice", "k", DATABASE_URL=database_url)
    assert code == 1
    for words in (str(group_id("alice", "k")), "was ever accepted", "swept after 30 days"):
        assert words in errors


async def test_an_owners_groups_are_listed_newest_first(database_url: str, api: Api) -> None:
    """A line of JSON each; those that others own are not among them."""
    created = [
        (await api.create(f"k{n}", {"name": f"Group {n}", "members": ["bob"]})).json
        for n in range(3)
    ]
    await api.create("other", {"name": "Not hers", "members": ["alice"]}, user="bob")
    command = ("groups", "alice", "--limit", "2")
    code, output, errors = await stretto(*command, DATABASE_URL=database_url)
    first = [orjson.loads(line) for line in output.splitlines()]
    assert (0, ["Group 2", "Group 1"]) == (code, [group["name"] for group in first])
    assert created[2].items() <= first[0].items()
    shown = {
        "group_id",
        "conversation_id",
        "name",
        "kind",
        "metadata",
        "created_at",
        "members_count",
    }
    assert shown == {*first[0]}
    assert (2, None, None) == tuple(
        first[0][each] for each in ("members_count", "kind", "metadata")
    )
    assert f"--before {first[1]['conversation_id']}" in errors
    more = ("--before", first[1]["conversation_id"])
    code, output, errors = await stretto(*command, *more, DATABASE_URL=database_url)
    assert (0, "Group 0", "") == (code, orjson.loads(output)["name"], errors)
    assert (0, "", "") == await stretto("groups", "nobody", DATABASE_URL=database_url)
    await api.create("chosen", {"name": "T", "kind": "project", "metadata": {"b": 1}}, user="dave")
    _, output, _ = await stretto("groups", "dave", DATABASE_URL=database_url)
    assert ("project", {"b": 1}) == tuple(
        orjson.loads(output)[each] for each in ("kind", "metadata")
    )


async def test_check_finds_what_was_planted(
    database_url: str, api: Api, connection: Connection
) -> None:
    """Exit 0 on a sound database, 1 with the group's id on a broken one."""
    created = (await api.create("k")).json
    code, output, _ = await stretto("check", DATABASE_URL=database_url)
    assert (0, "1 attempts, 1 groups, 1 events: no violations\n") == (code, output)
    await connection.execute("DELETE FROM outbox")
    code, output, _ = await stretto("check", DATABASE_URL=database_url)
    assert code == 1
    assert f"{created['group_id']}: group without its event" in output


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ("no reader", (1, "")),
        ("no room", (74, "stretto: the output cannot be written: No space left on device\n")),
    ],
)
async def test_a_check_that_cannot_list_what_it_has_found(
    lost: str, expected: tuple[int, str], database_url: str, connection: Connection
) -> None:
    """More than a buffer of it: to a reader that has gone, or on a full disk."""
    await connection.execute(
        "INSERT INTO conversation SELECT gen_random_uuid() FROM generate_series(1, 1000)"
    )
    reader, writer = os.pipe()
    os.close(reader)
    if lost == "no room":
        os.close(writer)
        writer = os.open("/dev/full", os.O_WRONLY)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stretto", "check"),
        stdout=writer,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**QUIET, PYTHONUNBUFFERED="", STRETTO_DATABASE_URL=database_url),
    )
    os.close(writer)
    _, errors = await process.communicate()
    assert expected == (process.returncode, errors.decode())


@pytest.mark.parametrize("closed", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
async def test_closed_streams_change_no_exit_code(
    closed: str, database_url: str, connection: Connection
) -> None:
    """A check says by its code alone whether the database is sound, and a service serves."""
    script = f'exec "$@" {closed}'
    settings = {"STRETTO_DATABASE_URL": database_url, "STRETTO_JWT_SECRET": SECRET}

    async def run(*arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", script, "sh", sys.executable, "-m", "stretto", *arguments),
            stdout=asyncio.subprocess.DEVNULL,
            env=environment(**settings, STRETTO_DRAIN_SECONDS="0"),
        )

    assert 0 == await (await run("check")).wait()
    await connection.execute(
        "INSERT INTO conversation (conversation_id, kind) VALUES (gen_random_uuid(), 'group')"
    )
    assert 1 == await (await run("check")).wait()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    service = await run("serve", "--port", str(port))
    try:
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                assert service.returncode is None
                with suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                        return answer.status == 200
                return False

            await until(is_ready, 30)
        service.terminate()
        assert 0 == await service.wait()
    finally:
        if service.returncode is None:
            service.kill()
            await service.wait()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
async def test_help_needs_no_utf_8(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a name in an output: what the encoding lacks is escaped."""
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    code, output, _ = await stretto("--help")
    assert 0 == code
    assert output.isascii()
    assert "\\u" not in output


async def test_what_an_encoding_lacks_is_escaped(
    api: Api, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of groups are their owners'."""
    await api.create("k", {"name": "caf\u00e9"})
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, output, _ = await stretto("groups", "alice", DATABASE_URL=database_url)
    assert 0 == code
    assert "caf\\xe9" in output


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_stop_ends_the_wait_for_the_database(workers: str) -> None:
    """At once, and in order: nothing was served yet."""
    asked = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    url = f"postgresql://u:secret@127.0.0.1:{port}/x"
    async with server, asyncio.timeout(30):
        service = await started("serve", DATABASE_URL=url, JWT_SECRET=SECRET, WORKERS=workers)
        await asked.wait()
        service.terminate()
        code, _, errors = await ended(service)
    assert 0 == code, errors
    assert "service.stopped" in errors


async def test_sweep_deletes_what_is_past_its_retention(
    database_url: str, api: Api, connection: Connection
) -> None:
    """After counting it, if asked; the key still finds its group."""
    await api.create("old")
    await api.create("new")
    await connection.execute(
        f"""CREATE TEMP TABLE kept AS SELECT * FROM attempt; TRUNCATE attempt;
            UPDATE kept SET settled_at = settled_at - interval '8 days'
            WHERE group_id = '{group_id("alice", "old")}';
            INSERT INTO attempt SELECT * FROM kept"""
    )
    settings = {"DATABASE_URL": database_url, "RETENTION_DAYS": "7"}
    _, counted, told = await stretto("sweep", "--dry-run", **settings)
    assert "would delete 1 of attempt" in counted
    assert "the rest for 7 (STRETTO_RETENTION_DAYS)" in told
    assert "deleted 1 of attempt" in (await stretto("sweep", **settings))[1]
    assert await connection.fetchval("SELECT count(*) FROM attempt") == 1
    reply = await api.create("old")
    assert (201, "true") == (reply.status, reply.headers["Idempotent-Replayed"])


async def test_the_openapi_document_can_be_printed() -> None:
    """As the service sends it."""
    assert DOCUMENT.decode() == (await stretto("openapi"))[1]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (("serve",), {"DATABASE_URL": "postgresql://127.0.0.1:1/x"}),
        (("serve",), {"PORT": "x"}),
        (("serve",), {"PROT": "1"}),
        (("token", "ü"), {"JWT_SECRET": SECRET}),
        (("token", "alice"), {"JWKS_URL": "http://127.0.0.1/keys"}),
        (("attempt", "alice", "two words"), {}),
        (("check",), {"DATABASE_URL": "nonsense"}),
        (("nonsense",), {}),
        (("serve", "--nonsense"), {}),
    ],
)
async def test_wrong_usage_is_reported_at_once(
    arguments: tuple[str, ...], settings: dict[str, str]
) -> None:
    """Exit 2, and the reason in words."""
    code, _, errors = await stretto(*arguments, **settings)
    assert code == 2
    assert errors


async def test_all_errors_of_the_settings_are_reported_at_once() -> None:
    """By the names under which they were set, whatever the command."""
    faulty = {"PORT": "-1", "PROT": "1", "JWT_SECRET": "short", "JWKS_URL": "http://127.0.0.1/"}
    for command in ("serve", "check", "psql"):
        code, _, errors = await stretto(command, **faulty)
        assert code == 2
        for name in ("PORT", "PROT", "JWT_SECRET", "JWKS_URL"):
            assert f"STRETTO_{name}" in errors


async def test_a_wrong_password_is_not_waited_for(database_url: str) -> None:
    """It does not become right."""
    user, _, rest = database_url.partition("@")
    wrong = user[: user.rindex(":")] + ":wrong@" + rest
    code, _, errors = await stretto("check", DATABASE_URL=wrong)
    assert code == 3
    assert "within 10 s" not in errors
    assert "SQLSTATE 28P01" in errors
    assert "a password that the server takes" in errors


async def test_a_taken_port_is_named(database_url: str) -> None:
    """Exit 5."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, _, errors = await stretto(
            "serve", DATABASE_URL=database_url, JWT_SECRET=SECRET, PORT=port
        )
    assert code == 5
    assert port in errors


async def test_a_port_that_workers_would_share_is_named_if_taken(database_url: str) -> None:
    """Exit 5, as for one process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code, _, errors = await stretto(
            "serve", DATABASE_URL=database_url, JWT_SECRET=SECRET, PORT=port, WORKERS="2"
        )
    assert code == 5
    assert port in errors


async def test_ctrl_c_ends_a_short_command_with_130(
    database_url: str, connection: Connection
) -> None:
    """Without a traceback, and without waiting for the statement."""
    async with held_up_migration(connection, database_url) as (process, _):
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(30):
            assert (await ended(process))[0] == 130


async def test_a_connection_that_breaks_under_a_command_is_reported(
    database_url: str, connection: Connection
) -> None:
    """Exit 3: the same command may be given again."""
    async with held_up_migration(connection, database_url) as (process, pid):
        await connection.execute("SELECT pg_terminate_backend($1)", pid)
        code, _, errors = await ended(process)
    assert code == 3
    assert "stretto: the " in errors
    assert (0, "up to date\n") == (await stretto("migrate", DATABASE_URL=database_url))[:2]


async def test_the_version_is_printed() -> None:
    """That of the package."""
    assert (0, f"stretto {version('stretto')}\n", "") == await stretto("--version")


async def test_a_shell_completes_commands() -> None:
    """What `--show-completion` prints asks the command itself for them."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("stretto")),
        stdout=asyncio.subprocess.PIPE,
        env=environment(_STRETTO_COMPLETE="complete_bash", COMP_WORDS="stretto se", COMP_CWORD="1"),
    )
    assert b"serve" == (await process.communicate())[0].strip()


async def test_a_wrong_flag_is_reported_as_the_flag() -> None:
    """Not as a variable that was never set."""
    code, _, errors = await stretto("serve", "--port", "99999999")
    assert code == 2
    assert "--port: " in errors
    assert "STRETTO_PORT" not in errors


async def test_secrets_come_from_files_for_every_worker(server_url: str, tmp_path: Path) -> None:
    """Also the password of the database, from a passfile; a worker meets no setting twice."""
    parts = urlsplit(server_url)
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    passfile, secret, url = (tmp_path / name for name in ("pgpass", "secret", "url"))
    passfile.touch(mode=0o600)
    passfile.write_text(f"*:*:*:*:{password}\n")
    secret.write_text(f"{SECRET}\n")
    place = f"{user}@{parts.netloc.rpartition('@')[2]}"
    url.write_text(f"{parts._replace(netloc=place).geturl()}&passfile={passfile}\n")
    settings = {"JWT_SECRET_FILE": str(secret), "JWT_SECRET": "", "DATABASE_URL_FILE": str(url)}
    async with ServiceProcess({**settings, "WORKERS": "2"}) as service:
        port = service.url.rpartition(":")[2]
        assert port != "0"
        async with connected_api(service.url) as api:
            assert (await api.get("/v1/groups")).status == 200
        service.signal(signal.SIGTERM)
        assert await service.exited() == 0


async def test_ctrl_c_ends_the_service_with_0(database_url: str) -> None:
    """It was asked to stop, and did."""
    async with ServiceProcess({"DATABASE_URL": database_url}) as service:
        (started,) = (line for line in service.log if b'"service.started"' in line)
        assert service.process.pid == orjson.loads(started)["pid"]
        service.signal(signal.SIGINT)
        assert await service.exited() == 0


async def test_no_key_and_no_token_is_ever_logged(database_url: str) -> None:
    """Whatever goes right or wrong."""
    async with ServiceProcess({"DATABASE_URL": database_url, "LOG_LEVEL": "debug"}) as service:
        async with connected_api(service.url) as api:
            await api.create("a-very-secret-key")
            await api.create("a-very-secret-key", {"name": "Other"})
            await api.get("/v1/attempts/a-very-secret-key")
        service.signal(signal.SIGTERM)
        await service.exited()
    log = b"".join(service.log).decode()
    assert "secret-key" not in log
    assert token_of("alice").split(".")[1][:20] not in log


async def test_psql_sees_the_tables_and_passes_its_exit_code_on(
    database_url: str, api: Api
) -> None:
    """With psql's own arguments."""
    created = (await api.create("k")).json
    query = "select group_id from chat_group"
    code, output, _ = await stretto("psql", "-Atc", query, DATABASE_URL=database_url)
    assert (0, created["group_id"]) == (code, output.strip())
    assert (await stretto("psql", "-c", "nonsense", DATABASE_URL=database_url))[0] == 1
    # Another database of the same server.
    elsewhere = ("-d", "postgres", "-Atc", "SELECT current_database()")
    code, output, _ = await stretto("psql", *elsewhere, DATABASE_URL=database_url)
    assert (0, "postgres") == (code, output.strip())
    script = ("psql", "-v", "ON_ERROR_STOP=1", "-f", os.devnull)
    assert (await stretto(*script, DATABASE_URL=database_url))[0] == 0


async def test_ctrl_c_in_psql_is_psqls(database_url: str, connection: Connection) -> None:
    """It cancels the query; neither the database nor psql is taken away."""
    process = await started("psql", "-c", "SELECT pg_sleep(60)", DATABASE_URL=database_url)
    await backend(connection, "pg_sleep")
    os.killpg(process.pid, signal.SIGINT)
    code, _, errors = await ended(process)
    assert code == 1
    assert "canceling statement due to user request" in errors


async def test_what_is_shown_of_an_attempt_is_as_it_was_stored(
    database_url: str, connection: Connection
) -> None:
    """A host's words are no markup of ours."""
    detail = "[/red] [bold]no[/bold] :smile: \x1b[31m"
    await connection.execute(
        """INSERT INTO attempt (group_id, owner_id, fingerprint, claim_token, status, failure_code,
                                failure_detail, settled_at)
           VALUES ($1, 'alice', '0123456789abcdef', $1, 'failed', 'quota', $2, clock_timestamp())""",
        group_id("alice", "k"),
        detail,
    )
    code, output, _ = await stretto("attempt", "alice", "k", DATABASE_URL=database_url)
    assert code == 0
    assert {"code": "quota", "detail": detail} == orjson.loads(output)["failure"]
