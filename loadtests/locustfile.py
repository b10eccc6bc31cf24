"""Load for a running service: users who create groups, and send some of their requests again.

    make load HOST=http://127.0.0.1:8080 USERS=50 SECONDS=30 TOKEN_SECRET=...

Tokens are signed with TOKEN_SECRET, the service's STRETTO_JWT_SECRET. When the run is over, the
checker proves what the clients were told; a fault makes the process exit with 1. What locust itself
counts as a failure (a time-out, a 503) is shown, but judged by nobody: it may happen.
"""

from __future__ import annotations

import os
import random
import sys
import time
import uuid
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import gevent
import jwt
from checker import Checker, body_of, read_answer, report
from history import TRY_AGAIN, History, Wish
from locust import FastHttpUser, constant_throughput, events, task

if TYPE_CHECKING:
    from locust.env import Environment

TOKEN_SECONDS: Final = 24 * 3600
MEMBERS_MAX: Final = 20
# Requests of one user and second; USERS is what makes the load.
REQUESTS_PER_SECOND: Final = 10
# Of these a user takes the one that he sends again.
WISHES_REMEMBERED_MAX: Final = 50
# The service answers within its own wait of 10 s.
REQUEST_SECONDS_MAX: Final = 15.0

# Distinguishes this run's users from those of earlier runs on the same database.
RUN: Final = uuid.uuid4().hex[:8]

history = History()


@cache
def token_of(user: str) -> str:
    """Return the user's token."""
    claims = {"sub": user, "exp": int(time.time()) + TOKEN_SECONDS}
    return jwt.encode(claims, os.environ["TOKEN_SECRET"], algorithm="HS256")


class SteadyCreator(FastHttpUser):
    """Creates groups at a steady pace; every third request repeats an earlier one."""

    wait_time = constant_throughput(REQUESTS_PER_SECOND)
    network_timeout = REQUEST_SECONDS_MAX
    connection_timeout = REQUEST_SECONDS_MAX

    def on_start(self) -> None:
        """Take a name of its own."""
        self.name = f"load-{RUN}-{uuid.uuid4().hex[:8]}"
        self.wishes: deque[Wish] = deque(maxlen=WISHES_REMEMBERED_MAX)

    @task(6)
    def create(self) -> None:
        """Wish for a new group, with a fresh key and any members."""
        self._send(self._new_wish())

    @task(2)
    def repeat(self) -> None:
        """Send an earlier request again."""
        self._send(random.choice(self.wishes) if self.wishes else self._new_wish())

    @task(1)
    def hurry(self) -> None:
        """Send a new request twice at once, as a client does that did not wait for its answer."""
        wish = self._new_wish()
        gevent.joinall([gevent.spawn(self._send, wish) for _ in range(2)])

    def _new_wish(self) -> Wish:
        count = random.randint(0, MEMBERS_MAX)
        wish = Wish(
            self.name,
            str(uuid.uuid4()),
            f"Team {random.randint(1, 1000)}",
            tuple(f"user-{number}" for number in random.sample(range(10_000), count)),
        )
        self.wishes.append(wish)
        # Noted before it is sent: what the end of the run cuts off is finished by the checker.
        history.begin(wish)
        return wish

    def _send(self, wish: Wish) -> None:
        with self.client.post(
            "/v1/groups",
            json=body_of(wish),
            headers={
                "Authorization": f"Bearer {token_of(wish.owner)}",
                "Idempotency-Key": wish.key,
            },
            catch_response=True,
        ) as response:
            answer = read_answer(response.status_code, response.headers, response.content or b"")
            history.record(wish, answer)
            if answer.status in TRY_AGAIN:
                response.failure(f"to be sent again: {answer.status}")


@events.init.add_listener
def require_secret(environment: Environment, **_: Any) -> None:
    """Refuse to start without a way to make tokens."""
    if not os.environ.get("TOKEN_SECRET"):
        sys.exit("set TOKEN_SECRET to the service's STRETTO_JWT_SECRET")
    # Until the check has passed, the run has failed.
    environment.process_exit_code = 1


@events.quitting.add_listener
def check(environment: Environment, **_: Any) -> None:
    """Check what was told; the exit code says whether all of it is true."""
    faults = Checker(environment.host or "", token_of).check(history)
    sys.stdout.write(report(history, faults) + "\n")
    environment.process_exit_code = 1 if faults else 0
