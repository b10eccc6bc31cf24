"""Finds events that were not sent, or that are about what is not there (G8, G9).

Every event in the database is due to each client of its user that listened when the group was asked
for, and to the bus. What was sent must be in the database, unless its key may have lost a commit.
Equal ids mean equal content, wherever and whenever an event was sent.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from chaos.history import parts
from chaos.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from chaos.history import History, Key, Operation
    from chaos.listening import Listening
    from chaos.rows import EventRow


class EventChecker:
    """Compares what was sent with the events in the database."""

    def __init__(
        self,
        history: History,
        rows: Sequence[EventRow],
        operations: Mapping[Key, Sequence[Operation]],
    ) -> None:
        self._history = history
        self._rows = rows
        self._operations = operations
        self._keys = {str(key.group_id): key for key in operations}
        self._sent = [
            *(event for listening in history.listenings for event in listening.events),
            *history.published,
        ]

    def violations(self) -> Iterator[Violation]:
        """Yield all that is wrong."""
        yield from self._unequal()
        yield from self._phantoms()
        for listening in self._history.listenings:
            yield from self._gaps(listening)
        published = {event.id for event in self._history.published}
        for row in self._rows:
            if str(row.event_id) not in published:
                yield Violation(self._key(row.subject), "its event was never published")

    def _unequal(self) -> Iterator[Violation]:
        digests: dict[str, set[str]] = defaultdict(set)
        subjects = {}
        for event in self._sent:
            digests[event.id].add(event.digest)
            subjects[event.id] = event.subject
        for id_, found in digests.items():
            if len(found) > 1:
                yield Violation(self._keys.get(subjects[id_]), "one event's id names two contents")

    def _phantoms(self) -> Iterator[Violation]:
        kept = {str(row.event_id) for row in self._rows}
        gone = {event.id: event for event in self._sent if event.id not in kept}
        for event in gone.values():
            key = self._keys.get(event.subject)
            if key is None:
                yield Violation(None, f"an event of {event.subject}, which was never asked for")
            elif not self._may_be_lost(key):
                yield Violation(key, "its event was sent, and is not in the database")

    def _gaps(self, listening: Listening) -> Iterator[Violation]:
        for placed, found in listening.lost:
            if not any(placed < each.ended and each.began < found for each in self._history.losses):
                yield Violation(None, f"{listening.user}'s position was lost for no reason")
        for row in self._rows:
            key = self._key(row.subject)
            if (
                key is not None
                and listening.user in row.recipients
                and listening.began is not None
                and self._operations[key][0].began > listening.began
                and listening.misses(row.event_id)
            ):
                yield Violation(key, f"its event never came to client {listening.number}")

    def _may_be_lost(self, key: Key) -> bool:
        return len(parts(self._operations[key], self._history.losses)) > 1

    def _key(self, subject: UUID | str) -> Key | None:
        return self._keys.get(str(subject))
