"""What clients have asked and were told, in the order in which it happened; kept as JSON lines.

An operation is one request: invoked, then answered, or its outcome stays unknown to the client.
Notes of faults stand between them, for those who read a violation's history.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

if TYPE_CHECKING:
    from pathlib import Path

# The contract's arithmetic, done here again to check the service's own.
NAMESPACE: Final = uuid5(NAMESPACE_URL, "urn:stretto:create_group")
CREATED: Final = 201
# Nothing is known of the attempt, or nothing that lasts: come again.
AGAIN: Final = frozenset((409, 429, 500, 503))


@dataclass(frozen=True, slots=True)
class Key:
    """An attempt's name: one owner's key."""

    owner: str
    key: str

    @property
    def group_id(self) -> UUID:
        """The id that its group must have."""
        return uuid5(uuid5(NAMESPACE, self.owner), self.key)

    @property
    def event_id(self) -> UUID:
        """The id that its event must have."""
        return uuid5(self.group_id, "group.created")


@dataclass(eq=False)
class Operation:
    """One request. Places in the history are its line numbers: they order what did not overlap."""

    number: int
    do: str
    """`create` or `lookup`."""
    key: Key
    body: dict[str, Any] | None
    began: int
    ended: int | None = None
    status: int | None = None
    """None: no answer came."""
    how: str = ""
    """`Idempotency-Status`, if told."""
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
        """Whether a group was told."""
        return self.do == "create" and self.status == CREATED

    @property
    def state(self) -> str:
        """The attempt's state that was told: succeeded, failed, pending, unseen, or nothing."""
        if self.do == "lookup":
            return "unseen" if self.status == 404 else str(self.document.get("status", ""))
        return {CREATED: "succeeded", 410: "failed"}.get(self.status or 0, "")


class History:
    """Records operations in memory and, line by line, in a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.operations: list[Operation] = []
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
        """Note what it was told."""
        operation.ended = len(self.lines)
        operation.status, operation.how, operation.text = status, how, text
        self._write("answer", op=operation.number, status=status, how=how, text=text)

    def unknown(self, operation: Operation, why: str) -> None:
        """Note that no answer came; the request may still have an effect, now or later."""
        self._write("unknown", op=operation.number, why=why)

    def note(self, fault: str) -> None:
        """Note a fault."""
        self._write("fault", what=fault)

    def _write(self, kind: str, **fields: Any) -> None:
        line = {"n": len(self.lines), "kind": kind, **fields}
        self.lines.append(line)
        if self._file:
            self._file.write(json.dumps(line) + "\n")

    def of(self, key: Key) -> list[dict[str, Any]]:
        """Return all lines of a key."""
        numbers = {operation.number for operation in self.operations if operation.key == key}
        return [line for line in self.lines if line.get("op") in numbers]


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
            case _:
                history.note(line["what"])
    return history
