from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import asyncpg
import pytest

from stretto.embedded import cluster as embedded_cluster
from stretto.embedded import place as embedded_place
from stretto.embedded import postgres as embedded
from stretto.embedded.account import Account, server_account
from stretto.embedded.lock_file import ServerLocks
from stretto.embedded.postgres import EmbeddedError, embedded_postgres, running_url
from support.command_process import stretto
from support.embedded_servers import FAST, IS_ROOT, ask, running_owner, said
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stretto.embedded.place import ServerPlace

DEADLINE_SECONDS = 120
# Opens the server, says so, and closes it when its input ends.
OWNER = """
import asyncio, signal, sys
from functools import partial
from pathlib import Path
from stretto.embedded import postgres as embedded

real = embedded.stop_server

async def main():
    loop = asyncio.get_running_loop()
    # Has any signal wake the loop: one that comes just before the loop waits would be seen when it
    # wakes, and nothing else wakes it here.
    loop.add_signal_handler(signal.SIGUSR1, str)

    def stop(place):
        # Said by the loop: by then it does nothing but wait for this stop.
        loop.call_soon_threadsafe(partial(print, "stopping", flush=True))
        return real(place)

    embedded.stop_server = stop
    fast = {"fsync": "off", "shared_buffers": "16MB"}
    folder = Path(sys.argv[1])
    async with embedded.embedded_postgres(folder, notify=str, settings=fast) as server:
        print(server.pid, server.owned, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@contextmanager
def other_program() -> Iterator[subprocess.Popen[bytes]]:
    """Run any program as the server's account."""
    user = server_account().uid if IS_ROOT else None
    with subprocess.Popen(["sleep", "100"], cwd="/", user=user) as process:
        try:
            yield process
        finally:
            process.kill()


def is_running(data_dir: Path) -> bool:
    """Whether a server runs there; its process may stay a while, ended but not reaped."""
    return (data_dir / "postgres/postmaster.pid").exists()


async def test_database_is_made_durable_and_protected_and_its_data_is_found_again(
    folder: Path,
) -> None:
    """The second start connects to what the first one has stored."""
    data_dir = folder / "data"
    async with embedded_postgres(data_dir, notify=said) as server:
        assert server.owned
        assert os.getsid(server.pid) != os.getsid(0), "Ctrl-C would reach the server"
        expected = {
            "server_encoding": "UTF8",
            "data_checksums": "on",
            "fsync": "on",
            "synchronous_commit": "on",
            "listen_addresses": "127.0.0.1",
            "max_connections": "200",
            "shared_preload_libraries": "pg_stat_statements",
        }
        for name, value in expected.items():
            assert value == await ask(server.dsn, f"SHOW {name}")
        password = (server.data_dir / "postgres-password").read_text()
        assert (server.data_dir / "postgres-password").stat().st_mode & 0o777 == 0o600
        with pytest.raises(asyncpg.InvalidPasswordError):
            await ask(server.dsn.replace(password, "wrong"), "SELECT 1")
        await ask(server.dsn, "CREATE TABLE kept AS SELECT 42 AS answer")
    assert not is_running(data_dir)
    async with embedded_postgres(data_dir, notify=said, settings=FAST) as server:
        assert await ask(server.dsn, "SELECT answer FROM kept") == 42


async def test_the_shell_does_not_say_which_server_is_meant(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell that is set up for standbys would have our primary waited for in vain."""
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "standby")
    async with embedded_postgres(folder / "data", notify=said, settings=FAST) as server:
        monkeypatch.delenv("PGTARGETSESSIONATTRS")
        assert await ask(server.dsn, "SELECT 1") == 1


# What a shell reads in its own way, alone, between double quotes or between single ones.
ODD_NAMES = ["it's here", 'a "b" c', "$HOME `id` \\", " a;b&c #d ", "ü\u2028"]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_a_folder_may_be_called_anything(name: str, folder: Path) -> None:
    """The server starts there, is found again, logs there and stops: no shell reads the name."""
    data_dir = folder / name
    for _ in range(2):
        async with embedded_postgres(data_dir, notify=said, settings=FAST) as server:
            assert server.data_dir == data_dir
            assert await ask(server.dsn, "SHOW data_directory") == str(data_dir / "postgres")
            async with embedded_postgres(data_dir, notify=said) as again:
                assert server.pid == again.pid
        assert not is_running(data_dir)
    assert (data_dir / "postgres/start.log").exists()
    assert [name] == [each.name for each in folder.iterdir()]


async def test_server_of_a_killed_owner_is_taken_over_and_stopped(folder: Path) -> None:
    """The next start finds the same postmaster, and is its owner."""
    with running_owner(OWNER, folder / "data") as (process, pid):
        process.kill()
        process.wait()
        assert is_running(folder / "data")
        async with embedded_postgres(folder / "data", notify=said) as server:
            assert (pid, True) == (server.pid, server.owned)
            assert await ask(server.dsn, "SELECT 1") == 1
    assert not is_running(folder / "data")


async def test_second_process_connects_without_owning(folder: Path) -> None:
    """Its end leaves the server running; the owner's end stops it."""
    with running_owner(OWNER, folder / "data") as (process, pid):
        async with embedded_postgres(folder / "data", notify=said) as server:
            assert (pid, False) == (server.pid, server.owned)
            assert await ask(server.dsn, "SELECT 1") == 1
        assert is_running(folder / "data")
        process.communicate("\n")
    assert not is_running(folder / "data")


async def test_who_asks_for_the_url_makes_no_database(folder: Path) -> None:
    """A server that lacks ours may be one that is being set up, or restored: it stays as it is."""
    names = "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_database"
    async with embedded_postgres(folder, notify=said, settings=FAST) as server:
        assert server.dsn == await running_url(folder, said)
        bare = server.dsn.replace("/stretto?", "/postgres?")
        await ask(bare, "DROP DATABASE stretto")
        assert await running_url(folder, said) is None
        assert "postgres template0 template1" == await ask(bare, names)


@pytest.mark.parametrize("is_killed", [False, True], ids=["ended", "killed"])
async def test_an_owner_that_ends_leaves_the_server_to_its_other_users(
    is_killed: bool, folder: Path
) -> None:
    """Also to one that comes later, and owns it; the last one stops it."""
    data_dir = folder / "data"
    with running_owner(OWNER, data_dir) as (process, pid):
        async with embedded_postgres(data_dir, notify=said) as server:
            if is_killed:
                process.kill()
            process.communicate("\n")
            assert await ask(server.dsn, "SELECT 1") == 1
            async with embedded_postgres(data_dir, notify=said) as later:
                assert (pid, True) == (later.pid, later.owned)
            assert await ask(server.dsn, "SELECT 1") == 1
    assert not is_running(data_dir)


async def test_a_service_outlives_the_command_that_has_started_its_server(folder: Path) -> None:
    """It goes on serving, and stops the server itself in the end."""
    settings = {"DATA_DIR": str(folder / "data"), "PORT": "0"}
    async with asyncio.timeout(DEADLINE_SECONDS):
        with running_owner(OWNER, folder / "data") as (process, _):
            async with ServiceProcess(settings) as service:
                process.communicate("\n")
                assert process.returncode == 0
                async with aiohttp.ClientSession() as session:
                    for _ in range(3):
                        async with session.get(f"{service.url}/readyz") as reply:
                            assert 200 == reply.status
                code, url, _ = await stretto("url", DATA_DIR=settings["DATA_DIR"])
                assert (0, 1) == (code, await ask(url.strip(), "SELECT 1"))
                service.signal(signal.SIGTERM)
                assert await service.exited() == 0
    assert not is_running(folder / "data")
    code, url, errors = await stretto("url", DATA_DIR=settings["DATA_DIR"])
    assert (4, "", True) == (code, url, "no embedded database runs in" in errors)
    assert not is_running(folder / "data")


async def test_waiting_process_becomes_owner_when_there_is_none_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner that fails before its server is ready does not take the waiting ones with it."""
    answers, try_own = iter([False, False]), ServerLocks.try_own
    monkeypatch.setattr(
        ServerLocks, "try_own", lambda locks: next(answers, True) and try_own(locks)
    )
    async with embedded_postgres(folder / "data", notify=said, settings=FAST) as server:
        assert server.owned


async def test_interrupts_from_the_terminal_still_stop_the_server(folder: Path) -> None:
    """A second interrupt of the whole process group, during the stop, does not end the stop."""
    with running_owner(OWNER, folder / "data") as (process, _):
        assert process.stdin is not None
        assert process.stdout is not None
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == "stopping\n"
        os.killpg(process.pid, signal.SIGINT)
        process.stdin.close()
        process.wait()
        assert not is_running(folder / "data")


async def test_program_that_an_interrupt_has_hit_is_run_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has a session of its own, Ctrl-C kills it: that says nothing about the server."""
    real = Account.run
    hit: set[str] = set()

    def run(
        self: Account, *command: str | Path, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        step = " ".join(
            (Path(command[0]).name, *({"status", "start", "stop"} & {*map(str, command)}))
        )
        if step not in hit:
            hit.add(step)
            return subprocess.CompletedProcess(command, -signal.SIGINT, "")
        return real(self, *command, **variables)

    async with embedded_postgres(folder / "data", notify=said, settings=FAST):
        pass
    place = embedded_place.find_place(folder / "data", said)
    monkeypatch.setattr(embedded, "find_place", lambda *_: place)
    monkeypatch.setattr(Account, "run", run)
    async with embedded_postgres(folder / "data", notify=said, settings=FAST) as server:
        assert await ask(server.dsn, "SELECT 1") == 1
    assert {"pg_ctl status", "pg_ctl start", "pg_ctl stop"} <= hit
    assert not is_running(folder / "data")


async def test_cancelled_start_leaves_no_server_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is cancelled twice while it runs is waited for, and undone."""
    loop, started = asyncio.get_running_loop(), asyncio.Event()
    cancelled = asyncio.Event()

    def start(place: ServerPlace, settings: Mapping[str, str]) -> None:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(cancelled.wait(), loop).result()
        embedded_cluster.start_server(place, settings)

    async def use() -> None:
        async with embedded_postgres(folder / "data", notify=said, settings=FAST):
            pass

    monkeypatch.setattr(embedded, "start_server", start)
    task = asyncio.create_task(use())
    await started.wait()
    task.cancel()
    # The loop runs on: the cancellation arrives, and the second is not merged with it.
    await asyncio.wait((task,), timeout=0.01)
    task.cancel()
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (folder / "data/postgres/postmaster.pid").exists()
    assert (folder / "data/postgres/start.log").exists(), "the server was never started"


async def test_stale_pid_of_another_program_neither_blocks_nor_hits_it(folder: Path) -> None:
    """After a crash of the machine, the pid in the file may be anyone's of the same account."""
    async with embedded_postgres(folder / "data", notify=said, settings=FAST) as server:
        note = server.data_dir / "postgres/postmaster.pid"
        stale = note.read_text()
    with other_program() as other:
        note.write_text(stale.replace(str(server.pid), str(other.pid), 1))
        server_account().own(note)
        async with embedded_postgres(folder / "data", notify=said, settings=FAST) as server:
            assert other.pid != server.pid
        assert other.poll() is None


async def test_cluster_of_another_major_version_is_refused(folder: Path) -> None:
    """The message names both versions; the cluster is left as it is."""
    async with embedded_postgres(folder / "data", notify=said, settings=FAST) as server:
        cluster = server.data_dir / "postgres"
    (cluster / "PG_VERSION").write_text("17\n")
    before = sorted(cluster.rglob("*"))
    with pytest.raises(EmbeddedError, match=r"PostgreSQL 17, ours is 18"):
        async with embedded_postgres(folder / "data", notify=said):
            pass
    assert before == sorted(cluster.rglob("*"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("shared_preload_libraries", "no_such_library"), ("listen_addresses", "203.0.113.7")],
)
async def test_failed_start_shows_why(folder: Path, name: str, value: str) -> None:
    """The cause is reported, whether the server fails before or after it opens its log file."""
    left_over = folder / "data" / "postgres.draft-1"
    left_over.mkdir(parents=True)
    (folder / "data" / "postgres-lock").touch()
    with pytest.raises(EmbeddedError, match=value):
        async with embedded_postgres(folder / "data", notify=said, settings={name: value}):
            pass
    assert not left_over.exists(), "an interrupted initdb is cleared away"
