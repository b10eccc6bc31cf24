"""The answers to the clients of a load test for one key, and what in them violates the guarantees.

No I/O and no locust here: scenarios, checker and tests use it in their own environments.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_URL, uuid5

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OK: Final = 200
CREATED: Final = 201
# The connection broke, or was cut on purpose, before an answer was read.
UNANSWERED: Final = 0
# "Wait and send the same again".
TRY_AGAIN: Final = frozenset((UNANSWERED, 409, 429, 500, 502, 503, 504))
# The contract's namespace of group ids, computed again to check the service's own computation.
NAMESPACE: Final = uuid5(NAMESPACE_URL, "urn:stretto:create_group")


@dataclass(frozen=True, slots=True)
class Wish:
    """The request of one attempt: the same key always comes with the same body."""

    owner: str
    key: str
    name: str
    members: tuple[str, ...] = ()
    description: str | None = None

    @property
    def group_id(self) -> str:
        """The id that the group must get."""
        return str(uuid5(uuid5(NAMESPACE, self.owner), self.key))

    @property
    def document(self) -> dict[str, object]:
        """The request's document."""
        described = {} if self.description is None else {"description": self.description}
        return {"name": self.name, "members": list(self.members), **described}

    def faults_of_group(self, group: dict[str, object]) -> Iterable[str]:
        """Yield how a group, as the service shows it, differs from the wish."""
        expected: dict[str, object] = {
            "group_id": self.group_id,
            "owner_id": self.owner,
            "name": self.name,
            "description": self.description,
            "members_count": len({self.owner, *self.members}),
        }
        for name, value in expected.items():
            if group[name] != value:
                yield f"{name} is {group[name]!r}, not {value!r}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request, its time, and the scenario that sent it."""

    at: float
    scenario: str
    request: str
    status: int
    text: str = ""
    is_replay: bool = False
    due: int = 0
    """The status that an invalid request must get; 0 if the request is valid."""

    @property
    def is_acknowledgement(self) -> bool:
        """Whether the answer says to a valid request that its group exists."""
        return self.status == CREATED and not self.due

    @property
    def group(self) -> tuple[str, str] | None:
        """The group and conversation that the answer names, if any."""
        if self.due or self.status not in (OK, CREATED):
            return None
        try:
            document = json.loads(self.text)
        except ValueError:
            # An acknowledgement without ids counts as one with wrong ids.
            document = {}
        if self.status == OK and document.get("status") != "succeeded":
            return None
        return document.get("group_id", ""), document.get("conversation_id", "")


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """All answers for one key; `wish` is None if no valid request was sent."""

    owner: str
    key: str
    wish: Wish | None
    answers: Sequence[Answer]

    def faults(self) -> Iterable[str]:
        """Yield what violates "one key, one group" and "rejected input leaves no trace"."""
        for answer in self.answers:
            if answer.due and answer.status not in (answer.due, UNANSWERED):
                yield f"answered {answer.status} where {answer.due} was due"
        if self.wish is not None:
            yield from self._faults_of_wish(self.wish)

    def conversations(self) -> set[str]:
        """Return the conversations that the answers name."""
        return {group[1] for answer in self.answers if (group := answer.group)}

    def _faults_of_wish(self, wish: Wish) -> Iterable[str]:
        answers = [answer for answer in self.answers if not answer.due]
        for answer in answers:
            if answer.status not in (OK, CREATED) and answer.status not in TRY_AGAIN:
                yield f"answered {answer.status}"
        acknowledged = [answer for answer in answers if answer.is_acknowledgement]
        if not acknowledged:
            yield "no group"
        groups = {group for answer in answers if (group := answer.group)}
        if len(groups) > 1:
            yield f"{len(groups)} groups"
        elif len({answer.text for answer in acknowledged}) > 1:
            yield "its answers differ"
        if any(group_id != wish.group_id for group_id, _ in groups):
            yield f"the group's id is not {wish.group_id}"
        if sum(not answer.is_replay for answer in acknowledged) > 1:
            yield "created more than once"
