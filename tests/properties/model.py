"""What every request must be answered, by a few dictionaries instead of a protocol.

Nothing here runs at once with anything else, so each answer is certain: the model learns of every
step that is taken, and foretells its outcome exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from stretto.domain import IdempotencyKey, NewGroup, UserId

LEASE_SECONDS: Final = 3600.0
RETENTION_DAYS: Final = 1
RETENTION_SECONDS: Final = 24 * 3600.0

Status = Literal["pending", "succeeded", "failed"]
Outcome = Literal[
    "created",
    "replayed",
    "healed",
    "recovered",
    "failed",
    "reused",
    "pending",
    "too_old",
    "deleted",
]
Place = Literal["claimed", "committed", "failed"]
"""After which statement of its writer a process falls silent."""

# Two that can be created, and one that the database refuses.
BODIES: Final = (
    {"name": "Team", "members": ["bob", "carol"]},
    {"name": "Other", "description": "The same key, another wish."},
    {"name": "Refused", "members": ["bob"]},
)
REFUSED: Final = 2


class Wish(NamedTuple):
    """Whose key it is."""

    owner: UserId
    key: IdempotencyKey

    def group(self, body: int) -> NewGroup:
        """Return what is sent."""
        return NewGroup.parse(self.owner, BODIES[body])


@dataclass(eq=False, slots=True)
class Attempt:
    """A row; reclaiming makes another one of it, since its old token counts no more."""

    body: int
    claimed_at: float
    status: Status = "pending"
    settled_at: float = 0.0


@dataclass(slots=True)
class Silence:
    """A request that its process has stopped at."""

    wish: Wish
    body: int
    own: Attempt | None
    """The attempt that its claim has won."""
    outcome: Outcome | None
    """What it is answered once the process goes on; not known yet where nothing was written."""


@dataclass(slots=True)
class Memory:
    """What one process knows."""

    settled: dict[Wish, int] = field(default_factory=dict)
    """The body that succeeded."""
    silence: Silence | None = None


@dataclass(slots=True)
class Model:
    """The database, and what becomes of requests."""

    now: float = 0.0
    groups: dict[Wish, int] = field(default_factory=dict)
    """The body that each was created from."""
    created_at: dict[Wish, float] = field(default_factory=dict)
    attempts: dict[Wish, Attempt] = field(default_factory=dict)
    tombstones: set[Wish] = field(default_factory=set)
    """Those whose failed attempt was swept."""
    deleted: set[Wish] = field(default_factory=set)
    """Those whose group was deleted."""

    def post(self, memory: Memory, wish: Wish, body: int) -> Outcome:
        """Answer a request to a process that works."""
        known = memory.settled.get(wish)
        if known is not None:
            return "replayed" if known == body else "reused"
        outcome = self._claim_or_follow(wish, body)
        self.learn(memory, wish, body, outcome)
        return outcome

    def post_late(self, memory: Memory, wish: Wish, body: int) -> Outcome:
        """Answer a request that is too old to start an attempt; it finds whatever there is."""
        known = {*memory.settled, *self.groups, *self.attempts, *self.tombstones, *self.deleted}
        if wish in known:
            return self.post(memory, wish, body)
        return "too_old"

    def fall_silent(self, memory: Memory, wish: Wish, body: int, place: Place) -> Outcome | None:
        """Answer a request to a process that stops at a place; nothing where it gets there."""
        if wish in memory.settled:
            return self.post(memory, wish, body)
        if place == "claimed":
            own = self._claim(wish, body)
            memory.silence = Silence(wish, body, own, None)
            return None
        before = self.attempts.get(wish)
        settled = self._is_buried(wish) or (before is not None and before.status != "pending")
        outcome = self._claim_or_follow(wish, body)
        writes = ("created", "recovered") if place == "committed" else ("failed",)
        if outcome in writes and not settled:
            memory.silence = Silence(wish, body, None, outcome)
            return None
        self.learn(memory, wish, body, outcome)
        return outcome

    def go_on(self, memory: Memory) -> Outcome:
        """Answer the request that a process has stopped at."""
        silence, memory.silence = memory.silence, None
        assert silence is not None
        wish, body, outcome = silence.wish, silence.body, silence.outcome
        if outcome is None:
            if silence.own is not None and self.attempts.get(wish) is silence.own:
                outcome = self._lead(wish, silence.own, "created")
            else:
                outcome = self._claim_or_follow(wish, body)
        self.learn(memory, wish, body, outcome)
        return outcome

    def learn(self, memory: Memory, wish: Wish, body: int, outcome: Outcome) -> None:
        """Remember a success."""
        if outcome not in ("reused", "pending", "failed", "deleted"):
            memory.settled[wish] = body

    def delete(self, wish: Wish, owner: UserId | None, memory: Memory | None) -> bool | None:
        """Delete a group for a user, or for a host (None); return whether it was there, None: never.

        The process that a user has asked forgets the key, whatever comes of it.
        """
        if memory is not None:
            memory.settled.pop(wish, None)
        if wish in self.deleted:
            return False
        if wish not in self.groups or owner not in (None, wish.owner):
            return None
        del self.groups[wish]
        self.attempts.pop(wish, None)
        self.deleted.add(wish)
        return True

    def watch(self, memory: Memory) -> None:
        """Have a process learn of all deletions."""
        for wish in self.deleted:
            memory.settled.pop(wish, None)

    def look_up(self, wish: Wish) -> Status | Literal["deleted"] | None:
        """Return what became of an attempt; a group without its record is reported all the same."""
        if wish in self.deleted:
            return "deleted"
        if wish in self.groups:
            return "succeeded"
        if wish in self.tombstones:
            return "failed"
        attempt = self.attempts.get(wish)
        return attempt.status if attempt else None

    def sweep(self) -> None:
        """Delete what is past its retention: also what was claimed so long ago, and never settled."""
        for wish, attempt in tuple(self.attempts.items()):
            is_open = attempt.status == "pending"
            age = self.now - (attempt.claimed_at if is_open else attempt.settled_at)
            if age > RETENTION_SECONDS:
                del self.attempts[wish]
                if attempt.status == "failed":
                    self.tombstones.add(wish)

    def _claim_or_follow(self, wish: Wish, body: int) -> Outcome:
        claimed = self._claim(wish, body)
        if claimed is not None:
            return self._lead(wish, claimed, "created")
        if self._is_buried(wish):
            return "deleted" if wish in self.deleted else "failed"
        attempt = self.attempts.get(wish)
        if wish in self.groups:
            if self.groups[wish] != body:
                return "reused"
            return "healed" if self._heal(wish) else "replayed"
        assert attempt is not None
        if attempt.body != body:
            return "reused"
        if attempt.status == "failed":
            return "failed"
        if self.now - attempt.claimed_at < LEASE_SECONDS:
            return "pending"
        self.attempts[wish] = Attempt(body, self.now)
        return self._lead(wish, self.attempts[wish], "recovered")

    def _claim(self, wish: Wish, body: int) -> Attempt | None:
        if wish in self.groups or wish in self.attempts or self._is_buried(wish):
            return None
        return self.attempts.setdefault(wish, Attempt(body, self.now))

    def _is_buried(self, wish: Wish) -> bool:
        return wish in self.tombstones or wish in self.deleted

    def _lead(self, wish: Wish, attempt: Attempt, outcome: Outcome) -> Outcome:
        attempt.settled_at = self.now
        if attempt.body == REFUSED:
            attempt.status = "failed"
            return "failed"
        attempt.status = "succeeded"
        self.groups[wish] = attempt.body
        self.created_at[wish] = self.now
        return outcome

    def _heal(self, wish: Wish) -> bool:
        """Settle the attempt of a group that exists; return whether it was not settled."""
        attempt = self.attempts.get(wish)
        if attempt is not None and attempt.status != "pending":
            return False
        created_at = self.created_at[wish]
        self.attempts[wish] = Attempt(self.groups[wish], created_at, "succeeded", created_at)
        return True
