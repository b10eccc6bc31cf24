from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import subprocess
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Any, Final

import nats.errors
import pytest
from nats.aio.client import Client

from stretto.embedded import nats as embedded
from stretto.embedded.lock_file import ServerLocks
from stretto.embedded.nats import embedded_nats
from stretto.embedded.place import find_place
from stretto.start_errors import EmbeddedError
from support.command_process import stretto
from support.embedded_servers import running_owner
from support.nats_process import commanded, nats_client
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_SECONDS: Final = 60

# Opens the server, says so, and closes it when its input ends.
OWNER = """
import asyncio, sys
from pathlib import Path
from stretto.embedded.nats import embedded_nats

async def main():
    async with embedded_nats(Path(sys.argv[1])) as server:
        print(server.pid, server.owned, flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The servers that this process starts."""
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def note(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = start(*arguments, **options)
        started.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", note)
    return started


def is_running(data_dir: Path) -> bool:
    """Whether a server runs there."""
    return embedded._Place.of(data_dir).pid() is not None


async def stream_names(url: str) -> list[str]:
    """Return the streams that a server has."""
    async with nats_client(url) as client:
        return [stream.config.name or "" for stream in await client.jetstream().streams_info()]


async def test_server_is_protected_and_its_streams_are_found_again(tmp_path: Path) -> None:
    """Loopback, a password of its own, files that no other account may read."""
    async with embedded_nats(tmp_path) as server:
        assert server.owned
        assert os.getsid(server.pid) != os.getsid(0), "Ctrl-C would reach the server"
        assert "@127.0.0.1:" in server.url
        stranger = Client()
        with pytest.raises(nats.errors.Error, match="Authorization"):
            await stranger.connect(
                server.url.replace("stretto:", "stretto:x"), allow_reconnect=False
            )
        await stranger.close()
        for name in ("nats.conf", "password"):
            assert (tmp_path / "nats" / name).stat().st_mode & 0o077 == 0
        async with nats_client(server.url) as client:
            await client.jetstream().add_stream(name="kept", subjects=["kept"])
    assert not is_running(tmp_path)
    async with embedded_nats(tmp_path) as server:
        assert ["kept"] == await stream_names(server.url)


@pytest.mark.parametrize("name", ["it's here", 'a "b" c', "$HOME `id` \\", " a;b&c #d ", "ü"])
async def test_a_folder_may_be_called_anything(name: str, tmp_path: Path) -> None:
    """Its configuration names the folder, in its own syntax."""
    data_dir = tmp_path / name
    for names in ([], ["kept"]):
        async with embedded_nats(data_dir) as server, nats_client(server.url) as client:
            assert names == await stream_names(server.url)
            if not names:
                await client.jetstream().add_stream(name="kept", subjects=["kept"])
        assert not is_running(data_dir)
    assert [name] == [each.name for each in tmp_path.iterdir()]


async def test_server_of_a_killed_owner_is_taken_over_and_stopped(tmp_path: Path) -> None:
    """The next start finds the same process, and is its owner."""
    with running_owner(OWNER, tmp_path) as (process, pid):
        process.kill()
        process.wait()
        assert is_running(tmp_path)
        async with embedded_nats(tmp_path) as server:
            assert (pid, True) == (server.pid, server.owned)
            assert [] == await stream_names(server.url)
    assert not is_running(tmp_path)


async def test_second_process_connects_without_owning(tmp_path: Path) -> None:
    """Its end leaves the server running; the owner's end stops it."""
    with running_owner(OWNER, tmp_path) as (process, pid):
        async with embedded_nats(tmp_path) as server:
            assert (pid, False) == (server.pid, server.owned)
        assert is_running(tmp_path)
        process.communicate("\n")
    assert not is_running(tmp_path)


async def test_an_owner_that_ends_leaves_the_server_to_its_other_users(tmp_path: Path) -> None:
    """The last one stops it."""
    with running_owner(OWNER, tmp_path) as (process, pid):
        async with embedded_nats(tmp_path) as server:
            process.communicate("\n")
            assert [] == await stream_names(server.url)
            assert pid == server.pid
    assert not is_running(tmp_path)


async def test_an_interrupted_start_leaves_no_server_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where nothing is known of the server yet but its pid."""
    started = asyncio.Event()

    async def never(url: str) -> bool:
        started.set()
        return False

    async def use() -> None:
        async with embedded_nats(tmp_path):
            pass

    monkeypatch.setattr(embedded, "_answers", never)
    task = asyncio.create_task(use())
    await started.wait()
    assert is_running(tmp_path)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_running(tmp_path)


@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_server_is_stopped_whose_folder_is_moved_or_removed(
    is_removed: bool, tmp_path: Path
) -> None:
    """Its own pid file is not needed for that, nor is anything waited for without a bound."""
    data_dir = tmp_path / "data"
    async with asyncio.timeout(DEADLINE_SECONDS), embedded_nats(data_dir) as server:
        if is_removed:
            shutil.rmtree(data_dir)
        else:
            data_dir.rename(tmp_path / "moved")
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


async def test_a_server_that_was_taken_over_is_stopped_whose_folder_is_moved(
    tmp_path: Path,
) -> None:
    """It is no child of ours; what it was started with tells it from another program."""
    data_dir = tmp_path / "data"
    with running_owner(OWNER, data_dir) as (process, pid):
        process.kill()
        process.wait()
        async with asyncio.timeout(DEADLINE_SECONDS), embedded_nats(data_dir) as server:
            assert (pid, True) == (server.pid, server.owned)
            data_dir.rename(tmp_path / "moved")
    assert b"nats-server" not in embedded._command_of(pid)


async def test_a_server_that_does_not_stop_is_not_waited_for_without_a_bound(
    processes: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the wait block the loop: a further signal would not be heard."""
    signals: list[int] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        with monkeypatch.context() as patch:
            async with embedded_nats(tmp_path):
                patch.setattr(embedded, "_STOP_POLLS_MAX", 2)
                patch.setattr(os, "kill", lambda _, number: signals.append(number))
    assert [signal.SIGTERM, signal.SIGKILL] == signals
    (process,) = processes
    process.kill()
    process.wait()


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_full_disk_leaves_no_server_behind(
    is_alone: bool,
    processes: list[subprocess.Popen[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even one that runs already as its pid cannot be written, though others wait for it."""
    write = embedded._write

    def write_no_pid(path: Path, content: bytes) -> None:
        if path.suffix == ".pid":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(embedded, "_write", write_no_pid)
        if not is_alone:
            leave = ServerLocks.leave
            patch.setattr(ServerLocks, "leave", lambda locks: leave(locks) and False)
        with pytest.raises(EmbeddedError, match=os.strerror(errno.ENOSPC)):
            async with embedded_nats(tmp_path):
                pass
    assert [True] == [process.returncode is not None for process in processes]
    async with embedded_nats(tmp_path) as server:
        assert server.owned


async def test_stale_pid_of_another_program_neither_blocks_nor_hits_it(tmp_path: Path) -> None:
    """After a crash of the machine, the pid in the file may be anyone's."""
    other = await asyncio.create_subprocess_exec("sleep", "100")
    try:
        (tmp_path / "nats").mkdir()
        (tmp_path / "nats/nats.pid").write_text(str(other.pid))
        async with embedded_nats(tmp_path) as server:
            assert other.pid != server.pid
        assert other.returncode is None
    finally:
        other.kill()
        await other.wait()


async def test_failed_start_shows_why(tmp_path: Path) -> None:
    """The server's last words are in the message."""
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats/store").touch()
    with pytest.raises(EmbeddedError, match="storage directory is not a directory"):
        async with embedded_nats(tmp_path):
            pass
    assert not is_running(tmp_path)


async def test_a_folder_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    """In words that say what to set."""
    (tmp_path / "nats").touch()
    with pytest.raises(EmbeddedError, match="STRETTO_DATA_DIR"):
        async with embedded_nats(tmp_path):
            pass


def test_without_the_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or which setting makes it unneeded."""

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(embedded, "distribution", missing)
    with pytest.raises(EmbeddedError, match=r"stretto\[embedded\].*STRETTO_NATS_URL"):
        embedded.nats_program()


async def test_postgres_takes_a_data_dir_in_which_nats_was_first(folder: Path) -> None:
    """Both live in one folder, whichever comes first."""
    async with embedded_nats(folder / "data"):
        assert (folder / "data").resolve() == find_place(folder / "data", print).folder


async def test_the_service_brings_its_bus_along_and_takes_it_away_again(
    folder: Path, database_url: str
) -> None:
    """`STRETTO_NATS_URL=embedded`: commands work, a killed service's server is taken over."""
    settings = {
        "DATABASE_URL": database_url,
        "DATA_DIR": str(folder / "data"),
        "NATS_URL": "embedded",
    }
    async with ServiceProcess(settings) as service:
        server = embedded._Place.of(folder / "data").pid()
        service.signal(signal.SIGKILL)
        await service.exited()
    assert is_running(folder / "data")
    async with ServiceProcess(settings) as service:
        place = embedded._Place.of(folder / "data")
        assert server is not None
        assert server == place.pid()
        code, url, _ = await stretto("url", "nats", DATA_DIR=settings["DATA_DIR"])
        assert (0, place.url(server)) == (code, url.strip())
        async with nats_client(url.strip()) as client:
            assert b"group_id" in (await commanded(client, "k", {"name": "Team"})).data
        service.signal(signal.SIGTERM)
        assert 0 == await service.exited()
    assert not is_running(folder / "data")
    code, url, errors = await stretto("url", "nats", DATA_DIR=settings["DATA_DIR"])
    assert (4, "", True) == (code, url, "no embedded nats runs in" in errors)
    code, url, _ = await stretto("url", "nats", DATA_DIR=str(folder), NATS_URL="nats://n:1")
    assert (0, "nats://n:1\n") == (code, url)
