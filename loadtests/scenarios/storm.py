"""Many clients that send one key at the same moment."""

from __future__ import annotations

import random
import time
from typing import Final

import gevent
from history import Wish
from locust import constant, task

from scenarios.client import Client

# Whoever is ready waits for the next full second, so that the storm breaks in all processes at once.
SLOT_SECONDS: Final = 1.0


class RetryStorm(Client):
    """One of the devices of one owner, all of which retry the same attempt together."""

    weight = 4
    # The slots are its pace.
    wait_time = constant(0)

    @task(9)
    def retry_together(self) -> None:
        """Send the key of this moment, which every other device sends too."""
        self.create(self._wish_of_slot(f"{self.run_id}-storm"), "storm")

    @task(1)
    def use_the_key_of_others(self) -> None:
        """Send the same key as another owner: a key means nothing outside its owner's attempts."""
        self.create(self._wish_of_slot(self.owner), "storm, another owner")

    def _wish_of_slot(self, owner: str) -> Wish:
        """Wait for the next slot; return the wish that everybody has in it."""
        gevent.sleep(SLOT_SECONDS - time.time() % SLOT_SECONDS)
        slot = int(time.time() / SLOT_SECONDS)
        # The same body from every process follows from the slot alone.
        chosen = random.Random(slot)
        members = tuple(f"user-{chosen.randrange(10_000)}" for _ in range(chosen.randrange(20)))
        return Wish(owner, f"slot-{slot}", f"Storm {slot}", members)
