"""Clients that request an attempt which another request is still leading."""

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
    """Sends one attempt several times at once, each with another wait, and looks it up."""

    weight = 2

    @task
    def follow(self) -> None:
        """Lead and follow at the same time; a request that does not wait may get "pending"."""
        wish = self.new_wish()
        self.begin(wish)
        requests = [Request.of_wish(wish, "lead")]
        for _ in range(random.randint(1, FOLLOWERS_MAX)):
            wait_seconds = random.choice(WAITS_SECONDS)
            # A longer wait does not end before the write does.
            pending = (PENDING,) if wait_seconds <= 1 else ()
            requests.append(
                Request.of_wish(wish, f"follow, wait={wait_seconds}", wait_seconds, pending)
            )
        # The end of the run may cut these off: the checker finishes what is open then.
        gevent.joinall([gevent.spawn(self.settle, request) for request in requests])
        self._look_up(wish)

    def _look_up(self, wish: Wish) -> None:
        """Look the attempt up: it has succeeded by now."""
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
