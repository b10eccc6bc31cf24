"""The histories of a load test: JSON lines on disk, one file for each process that makes load.

Only its process writes a journal. For the checker, records collect all journals in a temporary
SQLite database, so that a long run needs no more memory than a short one.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
from collections import defaultdict
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, Final, Self

from history import CREATED, Answer, KeyHistory, Wish

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

JOURNALS: Final = "history-*.jsonl"

_TABLES: Final = """
CREATE TABLE wish (owner TEXT, key TEXT, name TEXT, members TEXT, description TEXT, scenario TEXT,
                   PRIMARY KEY (owner, key)) WITHOUT ROWID;
CREATE TABLE answer (owner TEXT, key TEXT, at REAL, scenario TEXT, request TEXT, status INTEGER,
                     body TEXT, is_replay INTEGER, due INTEGER);
CREATE INDEX answer_of_key ON answer (owner, key, at);
CREATE TABLE conversation (conversation_id TEXT PRIMARY KEY, owner TEXT, key TEXT) WITHOUT ROWID;
"""


class Journal:
    """One process's history; every line is written before the next request."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        # Journals of several machines can be in one folder.
        file = folder / f"history-{socket.gethostname()}-{os.getpid()}.jsonl"
        self._file = file.open("a", buffering=1, encoding="utf-8")

    def begin(self, wish: Wish, scenario: str) -> None:
        """Write that the wish is about to be sent: it counts even if no answer ever comes."""
        self._write(["wish", *astuple(wish), scenario])

    def record(self, owner: str, key: str, answer: Answer) -> None:
        """Write the answer to a request with this key."""
        self._write(["answer", owner, key, *astuple(answer)])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: list[Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


class Records:
    """All answers, by key."""

    def __init__(self) -> None:
        # A database without a name is a temporary file, removed when it is closed. One thread at a
        # time uses it, though not always the same one.
        self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._database.executescript(_TABLES)
        self._database.execute("BEGIN")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()

    def read(self, folder: Path) -> None:
        """Add every journal of a folder."""
        for file in sorted(folder.glob(JOURNALS)):
            with file.open(encoding="utf-8") as lines:
                for line in lines:
                    # A killed process may have left half a line, of a request not yet sent.
                    if line.endswith("\n"):
                        self._add(json.loads(line))

    def begin(self, wish: Wish, scenario: str = "") -> None:
        """Add a wish; the same one may come from many clients."""
        row = (*astuple(wish)[:3], json.dumps(wish.members), wish.description, scenario)
        self._database.execute("INSERT OR IGNORE INTO wish VALUES (?, ?, ?, ?, ?, ?)", row)

    def record(self, owner: str, key: str, answer: Answer) -> None:
        """Add an answer."""
        row = (owner, key, *astuple(answer))
        self._database.execute("INSERT INTO answer VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    def owners(self) -> list[str]:
        """Return all owners that have sent a request."""
        rows = self._database.execute("SELECT owner FROM wish UNION SELECT owner FROM answer")
        return [owner for (owner,) in rows]

    def histories_of(self, owner: str) -> Iterator[KeyHistory]:
        """Yield the owner's keys, each with all its answers."""
        answers: dict[str, list[Answer]] = defaultdict(list)
        for key, *row in self._database.execute(
            "SELECT key, at, scenario, request, status, body, is_replay, due FROM answer"
            " WHERE owner = ? ORDER BY at",
            (owner,),
        ):
            answers[key].append(_answer(row))
        rows = self._database.execute("SELECT * FROM wish WHERE owner = ?", (owner,))
        wishes = {wish.key: wish for wish in map(_wish, rows)}
        for key in wishes | answers:
            yield KeyHistory(owner, key, wishes.get(key), answers[key])

    def open_wishes(self) -> list[Wish]:
        """Return the wishes without an acknowledgement."""
        rows = self._database.execute(
            "SELECT * FROM wish AS w WHERE NOT EXISTS (SELECT 1 FROM answer AS a"
            " WHERE a.owner = w.owner AND a.key = w.key AND a.status = ? AND a.due = 0)",
            (CREATED,),
        )
        return [_wish(row) for row in rows]

    def history(self, owner: str, key: str) -> KeyHistory:
        """Return one key's history."""
        return next(found for found in self.histories_of(owner) if found.key == key)

    def take_conversation(self, conversation_id: str, owner: str, key: str) -> str | None:
        """Record the key of a conversation; return the other key with the same one, if any."""
        self._database.execute(
            "INSERT OR IGNORE INTO conversation VALUES (?, ?, ?)", (conversation_id, owner, key)
        )
        row = self._database.execute(
            "SELECT owner, key FROM conversation WHERE conversation_id = ?", (conversation_id,)
        ).fetchone()
        return None if row == (owner, key) else f"{row[0]}, key {row[1]}"

    def counts(self) -> dict[str, dict[str, int]]:
        """Return for every scenario how many keys it began and which answers it got."""
        counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for scenario, number in self._database.execute(
            "SELECT scenario, count(*) FROM wish GROUP BY 1"
        ):
            counts[scenario]["keys"] = number
        for scenario, kind, number in self._database.execute(
            "SELECT scenario, CASE WHEN due > 0 THEN 'refused' WHEN status = 201 AND is_replay"
            " THEN 'replayed' WHEN status = 201 THEN 'created' WHEN status = 200 THEN 'looked up'"
            " WHEN status = 0 THEN 'unanswered' ELSE 'asked to wait' END, count(*)"
            " FROM answer GROUP BY 1, 2"
        ):
            counts[scenario][kind] = number
        return counts

    def _add(self, line: list[Any]) -> None:
        kind, *row = line
        if kind == "wish":
            self.begin(Wish(*row[:3], members=tuple(row[3]), description=row[4]), row[5])
        else:
            self.record(row[0], row[1], _answer(row[2:]))


def _wish(row: Iterable[Any]) -> Wish:
    owner, key, name, members, description, _ = row
    return Wish(owner, key, name, tuple(json.loads(members)), description)


def _answer(row: list[Any]) -> Answer:
    *fields, is_replay, due = row
    return Answer(*fields, is_replay=bool(is_replay), due=due)
