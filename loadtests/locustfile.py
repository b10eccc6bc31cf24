"""Load for a running service: the file that locust runs. See README.md beside it.

    make load USERS=500 SECONDS=120

Every process writes the answers to its clients into the folder of histories; the checker reads them
after all processes have ended. Tokens are signed with TOKEN_SECRET, the service's
STRETTO_JWT_SECRET.
"""

from __future__ import annotations

import os
import random
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import gevent
from locust import events
from locust.runners import MasterRunner, WorkerRunner
from records import Journal
from scenarios.client import Client
from scenarios.follower import SlowFollower
from scenarios.lossy import LossyClient
from scenarios.mixed import MixedBodies
from scenarios.steady import SteadyCreator
from scenarios.storm import RetryStorm
from tokens import SECRET_VARIABLE

if TYPE_CHECKING:
    from locust.argument_parser import LocustArgumentParser
    from locust.env import Environment

# locust offers these classes as scenarios.
__all__ = ["LossyClient", "MixedBodies", "RetryStorm", "SlowFollower", "SteadyCreator"]

PROGRESS_SECONDS: Final = 5


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    """Add options for the histories and the run; workers get both from their master."""
    parser.add_argument(
        "--histories",
        default=".load/histories",
        help="folder for the answers to the clients, on each machine",
    )
    # Distinguishes this run's users from those of earlier runs on the same database.
    parser.add_argument("--run-id", default=f"load-{uuid.uuid4().hex[:8]}", help="prefix of users")


@events.init.add_listener
def require_secret(**_: Any) -> None:
    """Refuse to start without a way to make tokens."""
    if not os.environ.get(SECRET_VARIABLE):
        sys.exit(f"set {SECRET_VARIABLE} to the service's STRETTO_JWT_SECRET")
    # Forked processes would otherwise all draw the same random numbers.
    random.seed()


@events.test_start.add_listener
def open_journal(environment: Environment, **_: Any) -> None:
    """Open this process's history; only now does a worker have its master's options."""
    # A master has no users.
    if not isinstance(environment.runner, MasterRunner):
        Client.journal = Journal(Path(environment.parsed_options.histories))
    # The master collects and prints its workers' numbers.
    if not isinstance(environment.runner, WorkerRunner):
        gevent.spawn(print_progress, environment)


def print_progress(environment: Environment) -> None:
    """Print a line every few seconds until the process ends."""
    while True:
        gevent.sleep(PROGRESS_SECONDS)
        assert environment.runner is not None
        users = environment.runner.user_count
        _print_figures(environment, users, environment.stats.total.current_rps)


@events.quitting.add_listener
def print_result(environment: Environment, **_: Any) -> None:
    """Print the whole run's figures."""
    if not isinstance(environment.runner, WorkerRunner):
        # All users have ended by now: print the configured number.
        users = environment.parsed_options.num_users
        _print_figures(environment, users, environment.stats.total.total_rps)


def _print_figures(environment: Environment, users: int, requests_per_second: float) -> None:
    total = environment.stats.total
    seconds = total.last_request_timestamp and total.last_request_timestamp - total.start_time
    sys.stdout.write(
        f"{seconds or 0:4.0f} s  {users} users"
        f"  {total.num_requests} requests  {requests_per_second:.0f}/s"
        f"  {total.num_failures} failures  p50 {total.get_response_time_percentile(0.5):.0f} ms"
        f"  p99 {total.get_response_time_percentile(0.99):.0f} ms\n"
    )
    sys.stdout.flush()
