"""An embedded server that ends while it is used."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stretto.embedded.watch import watched_server
from support.waiting import until

DEADLINE_SECONDS = 30


@pytest.mark.parametrize("is_zombie", [False, True])
async def test_a_server_that_ends_by_itself_is_reported_once(
    is_zombie: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while it is a zombie, as a child of ours that is not waited for is one."""
    monkeypatch.setattr("stretto.embedded.watch.POLL_SECONDS", 0.01)
    lost: asyncio.Queue[str] = asyncio.Queue()
    # asyncio would wait for it as soon as it ends.
    server = subprocess.Popen(  # noqa: ASYNC220
        (sys.executable, "-c", "print(flush=True); input()"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with server:
        # A process that has just begun has no command yet.
        assert server.stdout is not None
        await asyncio.to_thread(server.stdout.readline)
        async with (
            asyncio.timeout(DEADLINE_SECONDS),
            watched_server("NATS", server.pid, tmp_path, lost.put_nowait),
        ):
            assert lost.empty()
            server.kill()
            if not is_zombie:
                await asyncio.to_thread(server.wait)
            assert f"NATS (process {server.pid}) has ended by itself" in await lost.get()
            assert is_zombie == (server.returncode is None)
        assert lost.empty()


async def test_a_server_that_is_stopped_afterwards_is_not_reported(tmp_path: Path) -> None:
    """The twin: its end is ours."""
    lost: list[str] = []
    server = await _running_process()
    async with watched_server("NATS", server.pid, tmp_path, lost.append):
        await asyncio.sleep(0)
    server.kill()
    await server.wait()
    assert [] == lost


async def _running_process() -> asyncio.subprocess.Process:
    """Start a process and wait until it runs: one that has just begun has no command yet."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "print(flush=True); input()"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def test_a_process_without_a_file_left_goes_on_watching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crowd of clients takes all files for a moment; the server ends later."""
    lost: asyncio.Queue[str] = asyncio.Queue()
    looks: list[Path] = []
    read = Path.read_bytes

    def read_if_possible(path: Path) -> bytes:
        looks.append(path)
        if len(looks) == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return read(path)

    server = await _running_process()
    monkeypatch.setattr("stretto.embedded.watch.POLL_SECONDS", 0.01)
    monkeypatch.setattr(Path, "read_bytes", read_if_possible)
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        watched_server("NATS", server.pid, tmp_path, lost.put_nowait),
    ):
        await until(lambda: len(looks) >= 3)
        assert lost.empty()
        server.kill()
        await lost.get()
    await server.wait()


@pytest.mark.parametrize(
    ("name", "workers"), [("PostgreSQL", "1"), ("NATS", "1"), ("PostgreSQL", "2"), ("NATS", "2")]
)
async def test_a_service_ends_with_its_embedded_server(
    name: str, workers: str, folder: Path
) -> None:
    """With an exit code of its own, so that a supervisor starts both again; also over workers."""
    settings = {
        "DATA_DIR": str(folder),
        "PORT": "0",
        "NATS_URL": "embedded",
        "LOG_FORMAT": "json",
        "WORKERS": workers,
    }
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stretto", "serve"),
        env={**os.environ, **{f"STRETTO_{key}": value for key, value in settings.items()}},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert service.stderr is not None
        said = b""
        async with asyncio.timeout(DEADLINE_SECONDS * 2):
            while b"service.started" not in said:
                line = await service.stderr.readline()
                # Else it has ended.
                assert line, said.decode()
                said += line
            files = {"PostgreSQL": "postgres/postmaster.pid", "NATS": "nats/nats.pid"}
            (file,) = folder.rglob(files[name])
            os.kill(int(file.read_text().split()[0]), signal.SIGKILL)
            said = await service.stderr.read()
            assert 4 == await service.wait()
        assert 1 == said.count(b'"embedded.ended"')
        assert f"stretto: {name} (process ".encode() in said
    finally:
        if service.returncode is None:
            service.kill()
            await service.wait()
