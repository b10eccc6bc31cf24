"""A service for a load test: started with an embedded PostgreSQL, checked and stopped.

It has the default settings, except for port, folder and drain.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

STRETTO: Final = Path(__file__).parents[1] / ".venv/bin/stretto"
# On a disk, unlike /tmp on many systems: a flush without cost would make the figures too good.
FOLDERS: Final = Path("/var/tmp")
# The first start creates a database cluster.
START_SECONDS_MAX: Final = 90
CHECK_SECONDS_MAX: Final = 300
STOP_SECONDS_MAX: Final = 30
LOG_LINES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class OwnService:
    """A running service."""

    url: str
    secret: str
    environment: dict[str, str]
    pid: int
    log: deque[str]
    """The last lines of its log."""

    def check_database(self) -> bool:
        """Run `stretto check` over the whole database; return whether it found nothing."""
        done = subprocess.run(
            [STRETTO, "check"], env=self.environment, timeout=CHECK_SECONDS_MAX, check=False
        )
        return done.returncode == 0


@contextmanager
def own_service(log_lines_max: int = LOG_LINES_MAX) -> Iterator[OwnService]:
    """Run a service in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="stretto-load-", dir=FOLDERS) as folder:
        # Under root, PostgreSQL runs as another account, which must be able to enter the folder.
        Path(folder).chmod(0o755)
        data = Path(folder, "data")
        clean = {name: value for name, value in os.environ.items() if "STRETTO_" not in name}
        given = {"DATA_DIR": str(data), "PORT": "0", "DRAIN_SECONDS": "0"}
        environment = clean | {f"STRETTO_{name}": value for name, value in given.items()}
        log: deque[str] = deque(maxlen=log_lines_max)
        with _running(environment, log) as (url, pid):
            secret = (data / "jwt-secret").read_text().strip()
            yield OwnService(url, secret, environment, pid, log)


@contextmanager
def _running(environment: dict[str, str], log: deque[str]) -> Iterator[tuple[str, int]]:
    """Run the service; yield its URL and pid. Raises `SystemExit` if it fails to start or end."""
    process = subprocess.Popen(
        [STRETTO, "serve"], env=environment, stderr=subprocess.PIPE, text=True
    )
    # A service that does not start in time is killed, which ends the reading below.
    watchdog = threading.Timer(START_SECONDS_MAX, process.kill)
    watchdog.start()
    assert process.stderr is not None
    reader = threading.Thread(target=log.extend, args=(process.stderr,))
    try:
        url = ""
        for line in process.stderr:
            log.append(line)
            if '"service.started"' in line:
                url = f"http://127.0.0.1:{json.loads(line)['port']}"
                break
        watchdog.cancel()
        if not url:
            raise SystemExit("the service did not start:\n" + "".join(log))
        # Keep reading: the service would block once the pipe is full.
        reader.start()
        yield url, process.pid
        process.send_signal(signal.SIGTERM)
        if process.wait(STOP_SECONDS_MAX) != 0:
            raise SystemExit(f"the service ended with {process.returncode}:\n" + "".join(log))
    finally:
        watchdog.cancel()
        if process.poll() is None:
            # Not killed at once: it must stop its PostgreSQL first.
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if reader.ident is not None:
            reader.join()
        process.stderr.close()
