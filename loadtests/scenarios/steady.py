"""Clients for whom nothing goes wrong."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Final

from locust import task

from scenarios.client import Client

if TYPE_CHECKING:
    from history import Wish

# Of these a user takes the one that he sends again.
WISHES_REMEMBERED_MAX: Final = 50


class SteadyCreator(Client):
    """Creates groups at a steady pace; some requests he sends again later, as after a restart."""

    weight = 10

    def on_start(self) -> None:
        """Begin without a past."""
        super().on_start()
        self.wishes: deque[Wish] = deque(maxlen=WISHES_REMEMBERED_MAX)

    @task(4)
    def create_new(self) -> None:
        """Wish for a group with a fresh key."""
        wish = self.new_wish()
        self.wishes.append(wish)
        self.create(wish, "create")

    @task(1)
    def repeat(self) -> None:
        """Send an earlier request again: it is answered as it was then."""
        if self.wishes:
            self.create(random.choice(self.wishes), "repeat")
