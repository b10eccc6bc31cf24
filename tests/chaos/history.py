"""What clients asked and were answered, in the order in which it happened; kept as JSON lines.

An operation is one request: invoked, then answered, or its outcome stays unknown to the client.
What sessions and the bus carried stands between them, and notes of the faults.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

from chaos.listening import Listening, Received

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

# The contract's arithmetic, done here again to check the service's own.
NAMESPACE: Final = uuid5(NAMESPACE_URL, "urn:stretto:create_group")
CREATED: Final = 201
NO_CONTENT: Final = 204
NOT_FOUND: Final = 404
GONE: Final = 410
# Nothing is known of the attempt, or nothing that lasts: come again.
AGAIN: Final = frozenset((409, 429, 500, 503))

# What is noted when all services were started anew.
SETTLE: Final = "settle"
NEVER: Final = sys.maxsize


@dataclass(frozen=True, slots=True)
class Key:
    """An attempt's name: one owner's key."""

    owner: str
    key: str

    @property
    def group_id(self) -> UUID:
        """The id that its group must have."""
        return uuid5(uuid5(NAMESPACE, self.owner), self.key)


def event_id_of(conversation_id: UUID) -> UUID:
    """Return the id that the event of a conversation's group must have."""
    return uuid5(conversation_id, "group.created")


@dataclass(frozen=True, slots=True)
class Loss:
    """A stretch of the history of which the database may have lost any commit, the last ones first.

    What was answered before `began` is kept; from `ended` on, what was lost is known to be lost.
    """

    began: int
    ended: int


@dataclass(eq=False)
class Operation:
    """One request. Places in the history are its line numbers: they order what did not overlap."""

    number: int
    do: str
    """`create`, `lookup` or `delete`."""
    key: Key
    body: dict[str, Any] | None
    began: int
    ended: int | None = None
    status: int | None = None
    """None: no answer came."""
    how: str = ""
    """`Idempotency-Status`, if the answer has it."""
    text: str = ""

    @cached_property
    def document(self) -> dict[str, Any]:
        """The answer, where it is a JSON object."""
        try:
            document = json.loads(self.text)
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}

    @property
    def is_success(self) -> bool:
        """Whether the answer names a group."""
        return self.do == "create" and self.status == CREATED

    @property
    def state(self) -> str:
        """The attempt's state by the answer; empty: it says nothing.

        succeeded, failed, pending, deleted; unseen: there is no attempt; absent: there is no group.
        """
        if self.status == GONE and self.document.get("code") == "group_deleted":
            return "deleted"
        if self.do == "lookup":
            return "unseen" if self.status == NOT_FOUND else str(self.document.get("status", ""))
        if self.do == "delete":
            return {NO_CONTENT: "deleted", NOT_FOUND: "absent"}.get(self.status or 0, "")
        return {CREATED: "succeeded", GONE: "failed"}.get(self.status or 0, "")

    @property
    def may_delete(self) -> bool:
        """Whether it is a deletion that was not refused: it may have an effect, now or later."""
        return self.do == "delete" and self.status != NOT_FOUND


class History:
    """Records operations in memory and, line by line, in a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.operations: list[Operation] = []
        self.listenings: list[Listening] = []
        self.published: list[Received] = []
        """What a consumer of the bus has seen, in no order."""
        self.losses: list[Loss] = []
        self.lines: list[dict[str, Any]] = []
        self._file = path.open("w") if path else None

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def invoke(self, do: str, key: Key, body: dict[str, Any] | None = None) -> Operation:
        """Note a request before it is sent."""
        operation = Operation(len(self.operations), do, key, body, len(self.lines))
        self.operations.append(operation)
        self._write("invoke", op=operation.number, do=do, owner=key.owner, key=key.key, body=body)
        return operation

    def answer(self, operation: Operation, status: int, how: str, text: str) -> None:
        """Note the answer."""
        operation.ended = len(self.lines)
        operation.status, operation.how, operation.text = status, how, text
        self._write("answer", op=operation.number, status=status, how=how, text=text)

    def unknown(self, operation: Operation, why: str) -> None:
        """Note that no answer came; the request may still have an effect, now or later."""
        self._write("unknown", op=operation.number, why=why)

    def listen(self, user: str, parent: int | None = None, position: str = "") -> Listening:
        """Note a client of a user's events: a new one, or one that resumes where another was."""
        listening = Listening(len(self.listenings), user)
        if parent is not None:
            listening.follow(self.listenings[parent], position)
        self.listenings.append(listening)
        self._write("listen", to=listening.number, user=user, parent=parent, position=position)
        return listening

    def place(self, listening: Listening, position: str) -> None:
        """Note a position that came alone."""
        listening.place(len(self.lines), position)
        self._write("position", to=listening.number, position=position)

    def hear(self, listening: Listening, position: str, event: Received) -> None:
        """Note an event, and the position that came with it."""
        listening.hear(len(self.lines), position, event)
        self._write("event", to=listening.number, position=position, **event.as_json())

    def lose_position(self, listening: Listening) -> None:
        """Note that a session could not resume at its position (4410)."""
        listening.lose(len(self.lines))
        self._write("position lost", to=listening.number)

    def publish(self, events: Iterable[Received]) -> None:
        """Note what stands on the bus."""
        for event in events:
            self.published.append(event)
            self._write("published", **event.as_json())

    def lose(self, began: int) -> None:
        """Note that the database may have lost what was committed since a line."""
        self.losses.append(Loss(began, len(self.lines)))
        self._write("loss", began=began)

    @property
    def settled_at(self) -> int:
        """The line from which on services remember nothing from before."""
        return next((n for n, line in enumerate(self.lines) if line.get("what") == SETTLE), NEVER)

    def note(self, fault: str) -> int:
        """Note a fault; return the number of its line."""
        self._write("fault", what=fault)
        return len(self.lines) - 1

    def _write(self, kind: str, **fields: Any) -> None:
        line = {"n": len(self.lines), "kind": kind, **fields}
        self.lines.append(line)
        if self._file:
            self._file.write(json.dumps(line) + "\n")

    def of(self, key: Key) -> list[dict[str, Any]]:
        """Return all lines of a key, and those of the faults that have lost something."""
        numbers = {operation.number for operation in self.operations if operation.key == key}
        subject = str(key.group_id)
        return [
            line
            for line in self.lines
            if line.get("op") in numbers or line.get("subject") == subject or line["kind"] == "loss"
        ]


def parts(operations: Sequence[Operation], losses: Sequence[Loss]) -> list[list[Operation]]:
    """Return a key's operations until each loss that it may have suffered, and those since.

    A key that was settled before a loss began has lost nothing, unless a deletion was open in it. One
    of which nothing was open or answered in it has not, either.
    """
    found: list[list[Operation]] = []
    rest = list(operations)
    for loss in losses:
        is_settled = any(
            o.state in ("succeeded", "failed", "deleted")
            and o.ended is not None
            and o.ended < loss.began
            for o in rest
        ) and not any(o.may_delete and _is_open_in(o, loss) for o in rest)
        if is_settled or not any(_is_open_in(o, loss) for o in rest):
            continue
        found.append([o for o in rest if o.ended is not None and o.ended <= loss.ended])
        # What was under way at the end of it belongs to neither part.
        rest = [o for o in rest if o.began > loss.ended]
    return [*found, rest]


def _is_open_in(operation: Operation, loss: Loss) -> bool:
    """Whether the operation may have had an effect, or an answer, that was lost."""
    is_over = operation.ended is not None and operation.ended < loss.began
    return not is_over and operation.began <= loss.ended


def read_history(path: Path) -> History:
    """Return the history that was kept in a file."""
    history = History()
    for text in path.read_text().splitlines():
        line = json.loads(text)
        match line["kind"]:
            case "invoke":
                history.invoke(line["do"], Key(line["owner"], line["key"]), line["body"])
            case "answer":
                operation = history.operations[line["op"]]
                history.answer(operation, line["status"], line["how"], line["text"])
            case "unknown":
                history.unknown(history.operations[line["op"]], line["why"])
            case "listen":
                history.listen(line["user"], line["parent"], line["position"])
            case "position":
                history.place(history.listenings[line["to"]], line["position"])
            case "event":
                listening = history.listenings[line["to"]]
                history.hear(listening, line["position"], Received.of_json(line))
            case "position lost":
                history.lose_position(history.listenings[line["to"]])
            case "published":
                history.publish([Received.of_json(line)])
            case "loss":
                history.lose(line["began"])
            case _:
                history.note(line["what"])
    return history
