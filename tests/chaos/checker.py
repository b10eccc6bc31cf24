"""Finds what contradicts the guarantees in a history and the rows that it has led to.

Rows that contradict each other are found by `stretto check`; here they are compared with the history.
Pure: no I/O. Each violation names its key, whose whole history is then reported.

Where a failover, a recovery or a restore has lost commits, a key that was not settled before may
begin anew: its operations are judged in parts, those until the loss, and those since.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chaos.deletion_checker import DeletionChecker
from chaos.event_checker import EventChecker
from chaos.history import event_id_of, parts
from chaos.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from chaos.history import History, Key, Operation
    from chaos.rows import AttemptRow, EventRow, GroupRow, Rows

# Refused before anything is claimed (G7). "overloaded" also ends requests that have claimed.
REJECTED: Final = frozenset((400, 401, 413, 415, 429))
# "Come again later" is an answer; these are bugs.
SERVICE_ERRORS: Final = frozenset((500, 502, 504))
# More of them would show nothing new.
VIOLATIONS_SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Allowances:
    """What the faults of a run may have taken, without breaking a promise."""

    attempts_lost: bool = False
    """Attempts were truncated: a group may be without one, and a failure may be forgotten."""


class Checker:
    """Compares one history with the rows in the end."""

    def __init__(self, history: History, rows: Rows, allowances: Allowances) -> None:
        self._history = history
        self._rows = rows
        self._allowances = allowances
        self._operations: dict[Key, list[Operation]] = defaultdict(list)
        for operation in history.operations:
            self._operations[operation.key].append(operation)
        self._groups: dict[UUID, list[GroupRow]] = defaultdict(list)
        for group in rows.groups:
            self._groups[group.group_id].append(group)
        self._events: dict[UUID, list[EventRow]] = defaultdict(list)
        for event in rows.events:
            self._events[event.subject].append(event)
        self._attempts: dict[UUID, AttemptRow] = {row.group_id: row for row in rows.attempts}
        self._deletions = DeletionChecker(history.settled_at, rows, self._events)

    def violations(self) -> list[Violation]:
        """Return all that is wrong."""
        found = [
            Violation(key, what)
            for key, operations in self._operations.items()
            for what in self._of_key(key, operations)
        ]
        events = EventChecker(self._history, self._rows.events, self._operations)
        return [*found, *self._orphans(), *events.violations()]

    def _of_key(self, key: Key, operations: Sequence[Operation]) -> Iterator[str]:
        *lost, kept = parts(operations, self._history.losses)
        for part in (*lost, kept):
            yield from self._answers(key, part)
            yield from self._order(part)
            yield from self._deletions.order(part, operations)
        yield from self._effect(key, kept, operations)
        yield from self._deletions.effect(key, kept, operations)

    def _answers(self, key: Key, operations: Sequence[Operation]) -> Iterator[str]:
        """G1, G2: one group, answered in the same bytes, and created by one request."""
        if any(operation.status in SERVICE_ERRORS for operation in operations):
            yield "the service had an error of its own"
        successes = [operation for operation in operations if operation.is_success]
        if len({operation.text for operation in successes}) > 1:
            yield "answers differ"
        if any(operation.document.get("group_id") != str(key.group_id) for operation in successes):
            yield "an answer names another group than the key's"
        if sum(operation.how in ("created", "recovered") for operation in successes) > 1:
            yield "created more than once"
        if len({_meaning(key, operation.body or {}) for operation in successes}) > 1:
            yield "two bodies were accepted"
        if successes and any(operation.state == "failed" for operation in operations):
            yield "answered to have failed and to have succeeded"
        conversations = {operation.document.get("conversation_id") for operation in successes} | {
            operation.document["conversation_id"]
            for operation in operations
            if operation.do == "lookup" and operation.state == "succeeded"
        }
        if len(conversations) > 1:
            yield "a lookup names another conversation than the answer"

    def _order(self, operations: Sequence[Operation]) -> Iterator[str]:
        """G3, G4: what one answer says, no later one contradicts."""
        for earlier in operations:
            for later in operations:
                if earlier.ended is None or earlier.ended > later.began:
                    continue
                match earlier.state, later.state:
                    case "succeeded", ("pending" | "unseen" | "failed") as state:
                        yield f"seen as succeeded, then as {state}"
                    case "failed", "succeeded":
                        yield "seen as failed, then as succeeded"
                    case "failed", ("pending" | "unseen") as state:
                        if not self._allowances.attempts_lost:
                            yield f"seen as failed, then as {state}"

    def _effect(
        self, key: Key, kept: Sequence[Operation], operations: Sequence[Operation]
    ) -> Iterator[str]:
        """G3 to G5, G7: the rows of a key are what its answers say, all or none."""
        successes = [operation for operation in kept if operation.state == "succeeded"]
        failed = any(operation.state == "failed" for operation in kept)
        groups = self._groups[key.group_id]
        attempt = self._attempts.get(key.group_id)
        if len(groups) > 1:
            yield "more than one group"
        if failed and groups:
            yield "answered to have failed, but there is a group"
        if not groups:
            if successes and key.group_id not in self._rows.deleted:
                yield "acknowledged, but there is no group"
            if attempt is not None and all(o.status in REJECTED for o in operations):
                yield "rejected, but there is an attempt"
            return
        if all(operation.status in REJECTED for operation in operations):
            yield "rejected, but there is a group"
        for group in groups:
            yield from self._parts(key, group)
            yield from self._content(key, group, kept, operations)
            if any(
                o.document.get("conversation_id") != str(group.conversation_id) for o in successes
            ):
                yield "the group has another conversation than the one answered"

    def _parts(self, key: Key, group: GroupRow) -> Iterator[str]:
        """G5, G8: event and attempt belong to the group."""
        events = self._events[group.group_id]
        # Nothing is swept in a run, so no event may be missing, whatever the clocks say.
        if not events:
            yield "a group without its event"
        for event in events:
            members = self._rows.members.get(group.conversation_id, {})
            if (
                event.event_id != event_id_of(group.conversation_id)
                or event.recipients != set(members)
                or event.group_name != group.name
            ):
                yield "the event is about something else than the group"
        attempt = self._attempts.get(group.group_id)
        is_open = attempt is None or attempt.status == "pending"
        if is_open and not self._allowances.attempts_lost:
            yield "a group whose attempt has not succeeded"

    def _content(
        self,
        key: Key,
        group: GroupRow,
        kept: Sequence[Operation],
        operations: Sequence[Operation],
    ) -> Iterator[str]:
        """The group is what the accepted request has asked for, else what some request has."""
        accepted = [o for o in kept if o.is_success]
        asked = [o.body for o in accepted or operations if o.do == "create" and o.body]
        members = self._rows.members.get(group.conversation_id, {})
        meaning = (group.owner, group.name, group.description, frozenset(members))
        if meaning not in {_meaning(key, body) for body in asked}:
            yield "the group is not what was asked for"
        if {user for user, role in members.items() if role == "owner"} != {key.owner}:
            yield "the group's owner is not its owner"

    def _orphans(self) -> Iterator[Violation]:
        """G1, G5: rows that contradict each other, or that belong to no key."""
        asked = {key.group_id: key for key in self._operations}
        for found in self._rows.violations:
            yield Violation(asked.get(found.group_id), f"{found.group_id}: {found.what}")
        for group in self._rows.groups:
            if group.group_id not in asked:
                yield Violation(None, f"group {group.group_id} was never asked for")
        for subject in self._events.keys() - asked.keys():
            yield Violation(None, f"an event of {subject}, which was never asked for")
        for group_id in self._attempts.keys() - asked.keys():
            yield Violation(None, f"an attempt of {group_id}, which was never asked for")


def report(history: History, violations: Sequence[Violation]) -> str:
    """Return the violations, the first ones with the whole history of their key."""
    kinds = Counter(violation.what for violation in violations)
    lines = [
        f"{len(violations)} violations",
        *(f"  {n} x {what}" for what, n in kinds.most_common(9)),
    ]
    for violation in violations[:VIOLATIONS_SHOWN_MAX]:
        lines.append(f"{violation.key}: {violation.what}")
        if violation.key is not None:
            lines += [f"  {json.dumps(line)}" for line in history.of(violation.key)]
    return "\n".join(lines)


def _meaning(key: Key, body: dict[str, Any]) -> tuple[str, str | None, str | None, frozenset[str]]:
    """Return what a request asks for: two that mean the same are the same request."""
    members = frozenset({key.owner, *body.get("members", ())})
    return key.owner, body.get("name"), body.get("description"), members
