"""Clients without failures."""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Final

from locust import task

from scenarios.client import Client

if TYPE_CHECKING:
    from history import Wish

# Wishes that a user may send again.
WISHES_REMEMBERED_MAX: Final = 50


class SteadyCreator(Client):
    """Creates groups at a steady pace; sends some requests again later, as after a restart."""

    weight = 10

    def on_start(self) -> None:
        """Begin without earlier wishes."""
        super().on_start()
        self.wishes: deque[Wish] = deque(maxlen=WISHES_REMEMBERED_MAX)

    @task(4)
    def create_new(self) -> None:
        """Create a group with a fresh key."""
        wish = self.new_wish()
        self.wishes.append(wish)
        self.create(wish, "create")

    @task(1)
    def repeat(self) -> None:
        """Send an earlier request again: it gets the earlier answer."""
        if self.wishes:
            self.create(random.choice(self.wishes), "repeat")
