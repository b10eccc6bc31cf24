"""Clients that ask after an attempt which another request is still busy with."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import gevent
from history import OK
from locust import task

from scenarios.client import Client, Request

if TYPE_CHECKING:
    from history import Wish

FOLLOWERS_MAX: Final = 3
WAITS_SECONDS: Final = (0, 0, 1, 30)
PENDING: Final = 409


class SlowFollower(Client):
    """Sends one attempt several times at once, each with another patience, and looks it up."""

    weight = 2

    @task
    def follow(self) -> None:
        """Lead and follow at the same time; whoever will not wait is told that it is pending."""
        wish = self.new_wish()
        self.begin(wish)
        requests = [Request.of_wish(wish, "lead")]
        for _ in range(random.randint(1, FOLLOWERS_MAX)):
            wait_seconds = random.choice(WAITS_SECONDS)
            # Nobody else's patience ends before the write has.
            pending = (PENDING,) if wait_seconds <= 1 else ()
            requests.append(
                Request.of_wish(wish, f"follow, wait={wait_seconds}", wait_seconds, pending)
            )
        # Cut off with the process at the end of the run: the checker finishes what is open then.
        gevent.joinall([gevent.spawn(self.settle, request) for request in requests])
        self._look_up(wish)

    def _look_up(self, wish: Wish) -> None:
        """Ask what became of the attempt: everybody knows that it has succeeded."""
        question = Request(
            "look up",
            wish.owner,
            wish.key,
            headers={"Prefer": f"wait={random.choice(WAITS_SECONDS)}"},
            expected=(OK,),
            method="GET",
            path=f"/v1/attempts/{wish.key}",
        )
        self.send(question)
