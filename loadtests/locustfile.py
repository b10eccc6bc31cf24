"""Load for a running service: the entry that locust is given. See README.md beside it.

    make load USERS=500 SECONDS=120

Every process writes what its clients are told into the folder of histories; the checker judges it
when all of them have ended. Tokens are signed with TOKEN_SECRET, the service's STRETTO_JWT_SECRET.
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

# What locust finds here it offers as scenarios.
__all__ = ["LossyClient", "MixedBodies", "RetryStorm", "SlowFollower", "SteadyCreator"]

PROGRESS_SECONDS: Final = 5


@events.init_command_line_parser.add_listener
def add_options(parser: LocustArgumentParser) -> None:
    """Let the caller say where the histories go; workers learn both from their master."""
    parser.add_argument(
        "--histories",
        default=".load/histories",
        help="folder for what the clients were told, on each machine",
    )
    # Tells this run's users from those of earlier runs on the same database.
    parser.add_argument("--run-id", default=f"load-{uuid.uuid4().hex[:8]}", help="prefix of users")


@events.init.add_listener
def require_secret(**_: Any) -> None:
    """Refuse to start without a way to make tokens."""
    if not os.environ.get(SECRET_VARIABLE):
        sys.exit(f"set {SECRET_VARIABLE} to the service's STRETTO_JWT_SECRET")
    # Processes that were forked would otherwise all draw the same lots.
    random.seed()


@events.test_start.add_listener
def open_journal(environment: Environment, **_: Any) -> None:
    """Open this process's history; only now a worker knows what its master wants."""
    # A master has no users.
    if not isinstance(environment.runner, MasterRunner):
        Client.journal = Journal(Path(environment.parsed_options.histories))
    # A worker's numbers are gathered and told by its master.
    if not isinstance(environment.runner, WorkerRunner):
        gevent.spawn(tell_progress, environment)


def tell_progress(environment: Environment) -> None:
    """Print a line every few seconds until the process ends."""
    while True:
        gevent.sleep(PROGRESS_SECONDS)
        assert environment.runner is not None
        users = environment.runner.user_count
        _print_figures(environment, users, environment.stats.total.current_rps)


@events.quitting.add_listener
def tell_result(environment: Environment, **_: Any) -> None:
    """Print the whole run's figures."""
    if not isinstance(environment.runner, WorkerRunner):
        # They have gone by now; this many there were.
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
