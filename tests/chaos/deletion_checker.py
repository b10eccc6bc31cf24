"""Finds what contradicts that a deleted group is gone for good, and that none is deleted unasked.

A process that remembers a success may answer with it for some seconds after another one has deleted
the group. So a replay is judged only once all processes were started anew. What is read from the
database, or written, is judged at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.postgres.deletions import DELETED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from chaos.history import Key, Operation
    from chaos.rows import EventRow, Rows


class DeletionChecker:
    """Compares the deletions of a key with its other answers, and with the rows in the end."""

    def __init__(
        self, settled_at: int, rows: Rows, events: Mapping[UUID, Sequence[EventRow]]
    ) -> None:
        """Take the line from which on no process remembers anything from before.

        `events` are those of the rows, by group.
        """
        self._settled_at = settled_at
        self._rows = rows
        self._events = events

    def order(self, part: Sequence[Operation], operations: Sequence[Operation]) -> Iterator[str]:
        """Deleted only once that was asked for, and from then on for ever."""
        for later in part:
            if later.state == "deleted" and not any(
                each.may_delete and each.began < (later.ended or 0) for each in operations
            ):
                yield "answered to be deleted before that was asked for"
            for earlier in part:
                if earlier.ended is None or earlier.ended > later.began:
                    continue
                match earlier.state, later.state:
                    case "deleted", "succeeded" if not self._may_be_remembered(later):
                        yield "seen as deleted, then as succeeded"
                    case "deleted", ("failed" | "pending" | "unseen" | "absent") as state:
                        yield f"seen as deleted, then as {state}"
                    case "succeeded", "absent":
                        yield "seen as succeeded, then as absent"
                    case "failed", "deleted":
                        yield "seen as failed, then as deleted"

    def effect(
        self, key: Key, kept: Sequence[Operation], operations: Sequence[Operation]
    ) -> Iterator[str]:
        """A tombstone is left, and the deletion's event about what was created."""
        is_deleted = key.group_id in self._rows.deleted
        if is_deleted and not any(each.may_delete for each in operations):
            yield "a tombstone, but no deletion was asked for"
        if not is_deleted and any(each.state == "deleted" for each in kept):
            yield "answered to be deleted, but there is no tombstone"
        events = self._events.get(key.group_id, ())
        deletions = [event for event in events if event.event_type == DELETED]
        if len(deletions) != is_deleted:
            yield "the deletion's event is missing, or there is one too many"
        for deletion in deletions:
            created = [event for event in events if event is not deletion]
            if [(each.recipients, each.group_name) for each in created] != [
                (deletion.recipients, deletion.group_name)
            ]:
                yield "the deletion's event is about something else than the creation's"

    def _may_be_remembered(self, operation: Operation) -> bool:
        """Whether a process may have answered from its memory."""
        return operation.how == "replayed" and operation.began < self._settled_at
