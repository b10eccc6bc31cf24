"""One complete load test: service, locust, checker. See `make load`, `make load-smoke`.

Exits with 0 if locust has seen no unexpected answer and every check has passed.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from checker import check_folder
from records import JOURNALS
from service import own_service
from tokens import SECRET_VARIABLE, token_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOADTESTS: Final = Path(__file__).parent
LOCUST: Final = Path(sys.executable).with_name("locust")
# Besides the load itself: locust's start, and users that finish a wait at the end.
LOCUST_SECONDS_MAX: Final = 120
# A user has up to ten connections, most have one.
FILES_PER_USER: Final = 10
FILES_MIN: Final = 10_000
# Starting all users at once would measure how fast connections are made.
SPAWN_SECONDS: Final = 5


def main() -> int:
    """Return the exit code."""
    options = _options()
    histories = options.folder / "histories"
    for old in histories.glob(JOURNALS):
        old.unlink()
    histories.mkdir(parents=True, exist_ok=True)
    _allow_files(FILES_PER_USER * options.users)
    with _service_under_load(options.host) as (url, database_is_right):
        loaded = _run_locust(url, histories, options)
        checked = check_folder(histories, url, token_of, options.scenarios)
        # After the clients' view, check the whole database.
        right = database_is_right()
    verdicts = {"locust": loaded, "the checker": checked, "stretto check": right}
    failed = [name for name, passed in verdicts.items() if not passed]
    sys.stdout.write(f"report: {options.folder / 'report.html'}\nhistories: {histories}\n")
    sys.stdout.write(f"FAILED: {', '.join(failed)}\n" if failed else "passed\n")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", help="URL of a running service; without it, one is started")
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=2, help="processes that make the load")
    parser.add_argument("--folder", type=Path, default=Path(".load"), help="for all files")
    parser.add_argument("scenarios", nargs="*", help="classes; without any, all")
    return parser.parse_args()


def _allow_files(files: int) -> None:
    """Raise the soft limit of open files for child processes, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(files, FILES_MIN, soft)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < files:
        sys.stdout.write(
            f"only {allowed} open files are allowed: perhaps too few for so many users\n"
        )


@contextmanager
def _service_under_load(host: str | None) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield a service's URL and the check of its database, if the service is our own."""
    if host:
        if not os.environ.get(SECRET_VARIABLE):
            sys.exit(f"set {SECRET_VARIABLE} to the service's STRETTO_JWT_SECRET")
        yield host, lambda: True
        return
    with own_service() as service:
        os.environ[SECRET_VARIABLE] = service.secret
        yield service.url, service.check_database


def _run_locust(url: str, histories: Path, options: argparse.Namespace) -> bool:
    """Load the service; return whether every answer was one of those expected."""
    port = str(_free_port())
    command = [
        *(LOCUST, "--headless", "--only-summary", "--loglevel", "WARNING"),
        *("--locustfile", LOADTESTS / "locustfile.py", "--host", url),
        *("--users", str(options.users), "--run-time", f"{options.seconds}s"),
        *("--spawn-rate", str(max(1, options.users // SPAWN_SECONDS))),
        *("--processes", str(options.processes)),
        *("--master-port", port, "--master-bind-port", port, "--master-bind-host", "127.0.0.1"),
        *("--histories", histories, "--html", options.folder / "report.html"),
        *options.scenarios,
    ]
    seconds_max = options.seconds + LOCUST_SECONDS_MAX
    return subprocess.run(command, timeout=seconds_max, check=False).returncode == 0


def _free_port() -> int:
    """Return a port for locust's processes, so that two load tests can run side by side."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
