"""Many clients that send one key at the same moment."""

from __future__ import annotations

import random
import time
from typing import Final

import gevent
from history import Wish
from locust import constant, task

from scenarios.client import Client

# Clients wait for the next full second, so that all processes send at the same moment.
SLOT_SECONDS: Final = 1.0


class RetryStorm(Client):
    """One of an owner's devices, which all retry the same attempt together."""

    weight = 4
    # The slots set its pace.
    wait_time = constant(0)

    @task(9)
    def retry_together(self) -> None:
        """Send the key of this slot, which every other device sends too."""
        self.create(self._wish_of_slot(f"{self.run_id}-storm"), "storm")

    @task(1)
    def use_the_key_of_others(self) -> None:
        """Send another owner's key under our own name: a key has a meaning for one owner only."""
        self.create(self._wish_of_slot(self.owner), "storm, another owner")

    def _wish_of_slot(self, owner: str) -> Wish:
        """Wait for the next slot; return the wish that all clients send in it."""
        gevent.sleep(SLOT_SECONDS - time.time() % SLOT_SECONDS)
        slot = int(time.time() / SLOT_SECONDS)
        # The body follows from the slot alone, so every process sends the same.
        chosen = random.Random(slot)
        members = tuple(f"user-{chosen.randrange(10_000)}" for _ in range(chosen.randrange(20)))
        return Wish(owner, f"slot-{slot}", f"Storm {slot}", members)
