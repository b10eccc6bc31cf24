"""Checks after a load test that the answers to its clients were true.

Every key has one group, every acknowledged group exists as requested, all answers of a key are
equal, and rejected requests have left nothing. The checker reads from the service itself and uses
only the standard library, so that it works in locust's environment and in the tests'.

    TOKEN_SECRET=... python loadtests/checker.py --host http://127.0.0.1:8080 FOLDER_OF_HISTORIES
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from history import TRY_AGAIN, UNANSWERED, Answer, Wish
from records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from history import KeyHistory

# The service waits up to 10 s for an attempt that is under way.
REQUEST_SECONDS_MAX: Final = 15
# A wish that the end of the run cut off may have to wait until a lease is over.
TRIES_MAX: Final = 10
# The service's largest page.
PAGE_GROUPS: Final = 200
# More output would add nothing.
FAULTS_SHOWN_MAX: Final = 20
HISTORIES_SHOWN_MAX: Final = 3
ANSWERS_SHOWN_MAX: Final = 40
TEXT_SHOWN_MAX: Final = 160
PROGRESS_SECONDS: Final = 5

_SELF: Final = "Checker"
_KINDS: Final = (
    "keys",
    "created",
    "replayed",
    "looked up",
    "asked to wait",
    "refused",
    "unanswered",
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A violation for one key; without a key, for the whole run."""

    text: str
    owner: str = ""
    key: str = ""

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.owner}, key {self.key}: {self.text}" if self.owner else self.text


@dataclass(slots=True)
class Checker:
    """Queries the service at `url` as each user in turn, over one connection."""

    url: str
    token_of: Callable[[str], str]
    groups_read: int = field(default=0, init=False)
    _connection: HTTPConnection = field(init=False)
    _prefix: str = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self._prefix = parts.path.rstrip("/")
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = kind(parts.netloc, timeout=REQUEST_SECONDS_MAX)

    def check(self, records: Records, scenarios: Sequence[str] = ()) -> list[Fault]:
        """Finish open wishes and read every group; return the violations.

        Each of `scenarios`, and each that has begun a key, must have been acknowledged at least
        once.
        """
        try:
            for wish in records.open_wishes():
                self._finish(wish, records)
            faults: list[Fault] = []
            shown_at = time.monotonic()
            owners = records.owners()
            for number, owner in enumerate(owners):
                faults += self._faults_of_owner(owner, records)
                if time.monotonic() - shown_at > PROGRESS_SECONDS:
                    shown_at = time.monotonic()
                    sys.stdout.write(f"checked {number + 1} of {len(owners)} owners\n")
            return faults + list(_idle_scenarios(records, scenarios))
        finally:
            self._connection.close()

    def _finish(self, wish: Wish, records: Records) -> None:
        """Send the wish again until its outcome is known, as its client would."""
        headers = {"Idempotency-Key": wish.key, "Content-Type": "application/json"}
        body = json.dumps(wish.document)
        for _ in range(TRIES_MAX):
            status, fields, text = self._ask(wish.owner, "POST", "/v1/groups", headers, body)
            is_replay = fields.get("Idempotent-Replayed") == "true"
            answer = Answer(time.time(), _SELF, "finish", status, text, is_replay)
            records.record(wish.owner, wish.key, answer)
            if status not in TRY_AGAIN:
                return

    def _faults_of_owner(self, owner: str, records: Records) -> Iterable[Fault]:
        """Yield the violations of the owner's keys and groups."""
        groups = self._groups_of(owner)
        if groups is None:
            yield Fault(f"{owner}: the groups cannot be read")
            return
        for history in records.histories_of(owner):
            faults = [*history.faults(), *self._faults_of_trace(history, groups)]
            for conversation_id in history.conversations():
                other = records.take_conversation(conversation_id, owner, history.key)
                if other:
                    faults.append(f"conversation {conversation_id} is also that of {other}")
            for text in faults:
                yield Fault(text, owner, history.key)
        for group_id in groups:
            yield Fault(f"{owner}: group {group_id} was never requested")

    def _faults_of_trace(
        self, history: KeyHistory, groups: dict[str, dict[str, Any]]
    ) -> Iterable[str]:
        """Yield how the service's state differs from its answers; removes the key's group."""
        if history.wish is None:
            if history.key:
                status, _, _ = self._ask(history.owner, "GET", f"/v1/attempts/{quote(history.key)}")
                if status != 404:
                    yield f"refused, but its attempt is answered {status}"
            return
        group = groups.pop(history.wish.group_id, None)
        named = history.conversations()
        if group is None:
            if named:
                yield f"acknowledged, but group {history.wish.group_id} is lost"
            return
        yield from history.wish.faults_of_group(group)
        if group["conversation_id"] not in named:
            yield f"conversation_id is {group['conversation_id']}, which no answer named"

    def _groups_of(self, owner: str) -> dict[str, dict[str, Any]] | None:
        """Return all groups of the owner; None without an answer."""
        groups: dict[str, dict[str, Any]] = {}
        cursor = ""
        while True:
            status, _, text = self._ask(owner, "GET", f"/v1/groups?limit={PAGE_GROUPS}{cursor}")
            if status != 200:
                return None
            page = json.loads(text)
            self.groups_read += len(page["groups"])
            groups |= {g["group_id"]: g for g in page["groups"] if g["owner_id"] == owner}
            if page["next_cursor"] is None:
                return groups
            cursor = f"&cursor={page['next_cursor']}"

    def _ask(
        self,
        user: str,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: str | None = None,
    ) -> tuple[int, Any, str]:
        """Return status, headers and body; status 0 without an answer."""
        authorization = {"Authorization": f"Bearer {self.token_of(user)}"}
        try:
            self._connection.request(
                method, self._prefix + path, body, authorization | (headers or {})
            )
            response = self._connection.getresponse()
            return response.status, response.headers, response.read().decode()
        except (OSError, HTTPException):
            # The next request connects again.
            self._connection.close()
            return UNANSWERED, {}, ""


def _idle_scenarios(records: Records, scenarios: Sequence[str]) -> Iterable[Fault]:
    """Yield the scenarios without any success: they prove nothing."""
    counts = records.counts()
    begun = {name for name, kinds in counts.items() if kinds.get("keys")}
    for name in sorted({*scenarios, *begun}):
        if not counts.get(name, {}).get("created", 0) + counts.get(name, {}).get("replayed", 0):
            yield Fault(f"{name or 'this run'} was never acknowledged anything: it proves nothing")
    if not begun:
        yield Fault("nothing was sent: this run proves nothing")


def report(records: Records, faults: list[Fault], groups_read: int) -> str:
    """Return the result: counts, the first violations, and their keys' histories."""
    counts = records.counts()
    lines = ["".join(f"{title:>14}" for title in ("scenario", *_KINDS))]
    lines += [
        f"{name:>14}" + "".join(f"{kinds.get(kind, 0):>14}" for kind in _KINDS)
        for name, kinds in sorted(counts.items())
    ]
    keys = sum(kinds.get("keys", 0) for kinds in counts.values())
    lines.append(f"{keys} keys, {groups_read} groups read: {len(faults) or 'no'} faults")
    lines += [str(fault) for fault in faults[:FAULTS_SHOWN_MAX]]
    keys_shown = dict.fromkeys((fault.owner, fault.key) for fault in faults if fault.owner)
    for owner, key in list(keys_shown)[:HISTORIES_SHOWN_MAX]:
        lines.append(f"history of {owner}, key {key}:")
        lines += [
            f"  {answer.at:.6f} {answer.scenario} {answer.request}: {answer.status}"
            f"{' replayed' if answer.is_replay else ''} {answer.text[:TEXT_SHOWN_MAX]}"
            for answer in records.history(owner, key).answers[:ANSWERS_SHOWN_MAX]
        ]
    return "\n".join(lines)


def check_folder(
    folder: Path, url: str, token_of: Callable[[str], str], scenarios: Sequence[str] = ()
) -> bool:
    """Check the journals of a folder and print the report; return whether all is right."""
    checker = Checker(url, token_of)
    with Records() as records:
        records.read(folder)
        faults = checker.check(records, scenarios)
        sys.stdout.write(report(records, faults, checker.groups_read) + "\n")
    return not faults


def main() -> int:
    """Run the check of the command line; return the exit code."""
    from tokens import token_of  # noqa: PLC0415 - the tests have their own tokens

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the histories")
    parser.add_argument("--host", required=True, help="URL of the service that was under load")
    arguments = parser.parse_args()
    return 0 if check_folder(arguments.folder, arguments.host, token_of) else 1


if __name__ == "__main__":
    sys.exit(main())
