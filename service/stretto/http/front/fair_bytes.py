"""Bytes that the process keeps for clients: bounded, of all clients together.

Beyond the bound, clients of the user give way for whom most is kept. One that has little there never
gives way because another has much, and many that have little cannot go beyond the bound either.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from stretto.telemetry.logs import logger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stretto.domain import UserId

# How much is left when some gave way: to find those that hold most takes a look at all.
LEFT_SHARE: Final = 0.75


class ClientOfUser(Protocol):
    """A connection for whose client something is kept."""

    @property
    def user(self) -> UserId | None:
        """Whose request it is; None if it has no token that is known."""


Client = TypeVar("Client", bound=ClientOfUser)


class FairBytes(Generic[Client]):
    """The clients for whom much is kept."""

    reason: str
    """Why one gave way, as the log has it."""

    def __init__(self, bytes_max: int, *, counted_bytes_min: int, user_bytes_min: int) -> None:
        """Take the bound; what is too little to count; how much of it makes no user hold most."""
        self._bytes_max = bytes_max
        self._counted_bytes_min = counted_bytes_min
        self._user_bytes_min = user_bytes_min
        self._bytes_of: dict[Client, int] = {}
        """What is kept for each; those that have waited longest first."""
        self.bytes = 0
        """All of that."""

    def _count(self, client: Client, count: int) -> None:
        """Note how much is kept for a client; where that is too much in all, have some give way."""
        if count < self._counted_bytes_min:
            self.forget(client)
            return
        self.bytes += count - self._bytes_of.get(client, 0)
        self._bytes_of[client] = count
        if self.bytes > self._bytes_max:
            self._make_room()

    def forget(self, client: Client) -> None:
        """Note that nothing is kept for a client any more, or that it has gone."""
        self.bytes -= self._bytes_of.pop(client, 0)

    def _sorted(self, clients: Iterable[Client]) -> list[Client]:
        """Return clients, which come in the order in which they were counted, as they give way to each other."""
        raise NotImplementedError

    def _end(self, client: Client) -> None:
        """Drop what is kept for a client; it may be the one that is just noted."""
        raise NotImplementedError

    def _make_room(self) -> None:
        """Have clients give way until enough is free.

        If users who hold much have given way, the others do not only for the share that is left free.
        """
        has_much = False
        for client, beyond in self._in_order():
            if self.bytes <= self._bytes_max * (1 if has_much and not beyond else LEFT_SHARE):
                return
            has_much = has_much or beyond > 0
            logger.info("request.cut_off", reason=self.reason)
            self.forget(client)
            self._end(client)

    def _in_order(self) -> list[tuple[Client, int]]:
        """Return all in the order in which they give way: at each step, one of the user who holds most.

        Of one user's, and of all whose users hold little, it is the first of `_sorted`. With each is
        what its user then holds beyond what makes none hold most.
        """
        clients = self._sorted(self._bytes_of)
        held_by: Counter[UserId | None] = Counter()
        beyond: dict[Client, int] = {}
        for client in reversed(clients):
            # All without a user count as one. What each of them has is small, but thousands of
            # connections that count one by one could fill the bound, and cut users off.
            held_by[client.user] += self._bytes_of[client]
            beyond[client] = max(held_by[client.user] - self._user_bytes_min, 0)
        # Where that is equal, the order stays.
        ordered = sorted(clients, key=beyond.__getitem__, reverse=True)
        return [(client, beyond[client]) for client in ordered]
