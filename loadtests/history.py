"""What the clients of a load test were told, and what of it contradicts the guarantees.

No I/O and no locust here: the checker and the tests use it in their own environments.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import NAMESPACE_URL, uuid5

if TYPE_CHECKING:
    from collections.abc import Iterable

CREATED: Final = 201
# "Wait and send the same again"; 0 is a connection that broke before an answer came.
TRY_AGAIN: Final = frozenset((0, 409, 429, 500, 502, 503, 504))
# The contract's name for a group, computed here again to check the service's own arithmetic.
NAMESPACE: Final = uuid5(NAMESPACE_URL, "urn:stretto:create_group")
# More of them would tell nothing new.
FAULTS_TOLD_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Wish:
    """One attempt of one user: the same key always comes with the same body."""

    owner: str
    key: str
    name: str
    members: tuple[str, ...]

    @property
    def group_id(self) -> str:
        """The id that the group must get."""
        return str(uuid5(uuid5(NAMESPACE, self.owner), self.key))

    @property
    def members_count(self) -> int:
        """How many take part, the owner among them."""
        return len({self.owner, *self.members})


@dataclass(frozen=True, slots=True)
class Answer:
    """What one request was told; ids are empty unless the status is 201."""

    status: int
    group_id: str = ""
    conversation_id: str = ""
    is_replay: bool = False


@dataclass(slots=True)
class History:
    """Every answer of every wish, in the order in which they came."""

    answers: dict[Wish, list[Answer]] = field(default_factory=dict)

    def begin(self, wish: Wish) -> None:
        """Note that the wish is about to be sent: it counts even if no answer ever comes."""
        self.answers.setdefault(wish, [])

    def record(self, wish: Wish, answer: Answer) -> None:
        """Note an answer to a wish that was begun."""
        self.answers[wish].append(answer)

    def acknowledged(self, wish: Wish) -> list[Answer]:
        """Return the answers that name a group."""
        return [answer for answer in self.answers[wish] if answer.status == CREATED]

    def open_wishes(self) -> list[Wish]:
        """Return the wishes whose outcome nobody has been told yet."""
        return [wish for wish in self.answers if not self.acknowledged(wish)]

    def faults(self) -> list[str]:
        """Return what contradicts "one key, one group", a line for each."""
        faults = [fault for wish in self.answers for fault in self._faults_of(wish)]
        faults += self._shared("conversation_id")
        if not any(map(self.acknowledged, self.answers)):
            faults.append("nothing was created: this run proves nothing")
        return faults

    def _faults_of(self, wish: Wish) -> Iterable[str]:
        told = self.acknowledged(wish)
        place = f"{wish.owner}, key {wish.key}"
        for answer in self.answers[wish]:
            if answer.status != CREATED and answer.status not in TRY_AGAIN:
                yield f"{place}: answered {answer.status}"
        if not told:
            yield f"{place}: no group"
            return
        groups = {(answer.group_id, answer.conversation_id) for answer in told}
        if len(groups) > 1:
            yield f"{place}: {len(groups)} groups"
        if any(answer.group_id != wish.group_id for answer in told):
            yield f"{place}: the group's id is not {wish.group_id}"
        if sum(not answer.is_replay for answer in told) > 1:
            yield f"{place}: created more than once"

    def _shared(self, name: str) -> list[str]:
        """Return the ids that more than one wish was told."""
        wishes = Counter(
            id_
            for wish in self.answers
            for id_ in {getattr(answer, name) for answer in self.acknowledged(wish)}
        )
        return [f"{name} {id_}: {count} keys" for id_, count in wishes.items() if count > 1]
