"""A short load test of a service of its own: start, load, check, stop. See `make load-smoke`.

The service runs on an embedded PostgreSQL in a temporary folder and on a free port, locust in its
own environment. Only what was started here is stopped. Exits with 0 when every check has passed.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
STRETTO: Final = ROOT / ".venv/bin/stretto"
LOCUST: Final = ROOT / ".venv-load/bin/locust"

USERS: Final = 10
LOAD_SECONDS: Final = 5
# The first start makes a database cluster.
START_SECONDS_MAX: Final = 90
# The load itself, locust's own start and reading every group back.
LOCUST_SECONDS_MAX: Final = LOAD_SECONDS + 60
CHECK_SECONDS_MAX: Final = 30
STOP_SECONDS_MAX: Final = 30


def main() -> int:
    """Return the exit code."""
    secret = secrets.token_urlsafe(32)
    with tempfile.TemporaryDirectory(prefix="stretto-smoke-") as folder:
        # Under root, PostgreSQL runs as another account, which must be able to get in.
        Path(folder).chmod(0o755)
        clean = {name: value for name, value in os.environ.items() if "STRETTO_" not in name}
        environment = {
            **clean,
            "STRETTO_DATA_DIR": str(Path(folder, "data")),
            "STRETTO_PORT": "0",
            "STRETTO_JWT_SECRET": secret,
            "STRETTO_LOG_FORMAT": "json",
        }
        with running_service(environment) as url:
            loaded = run_locust(url, secret)
            # The clients' view is right; now the whole database.
            checked = subprocess.run(
                [STRETTO, "check"], env=environment, timeout=CHECK_SECONDS_MAX, check=False
            ).returncode
    return 1 if loaded or checked else 0


def run_locust(url: str, secret: str) -> int:
    """Load the service; return locust's exit code, which is the checker's."""
    command = [
        *(LOCUST, "--headless", "--only-summary", "--loglevel", "WARNING"),
        *("--locustfile", ROOT / "loadtests/locustfile.py", "--host", url),
        *("--users", str(USERS), "--spawn-rate", str(USERS), "--run-time", f"{LOAD_SECONDS}s"),
    ]
    return subprocess.run(
        command,
        env={**os.environ, "TOKEN_SECRET": secret},
        timeout=LOCUST_SECONDS_MAX,
        check=False,
    ).returncode


@contextmanager
def running_service(environment: dict[str, str]) -> Iterator[str]:
    """Run the service and yield its URL; raises where it does not start or does not end well."""
    process = subprocess.Popen(
        [STRETTO, "serve"], env=environment, stderr=subprocess.PIPE, text=True
    )
    # A service that does not start is killed, which ends the reading below.
    watchdog = threading.Timer(START_SECONDS_MAX, process.kill)
    watchdog.start()
    assert process.stderr is not None
    log: list[str] = []
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
        # Somebody must go on reading, or the service would wait for room to write.
        reader.start()
        yield url
        process.send_signal(signal.SIGTERM)
        if process.wait(STOP_SECONDS_MAX) != 0:
            raise SystemExit(f"the service ended with {process.returncode}:\n" + "".join(log))
    finally:
        watchdog.cancel()
        if process.poll() is None:
            # Not killed at once: it has a PostgreSQL to stop.
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if reader.ident is not None:
            reader.join()
        process.stderr.close()


if __name__ == "__main__":
    sys.exit(main())
