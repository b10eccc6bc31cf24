"""Proves after a load test that every key has one group and every acknowledged group is there.

It asks the service itself, with nothing but the standard library, so that it works in locust's
environment as in the tests'.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from history import CREATED, FAULTS_TOLD_MAX, TRY_AGAIN, Answer, History, Wish

if TYPE_CHECKING:
    from collections.abc import Callable

# The service waits 10 s for an attempt that is under way.
REQUEST_SECONDS_MAX: Final = 15
# A wish that was cut off at the end of the run may have to wait for a lease to run out.
TRIES_MAX: Final = 10


def body_of(wish: Wish) -> dict[str, object]:
    """Return the request's document."""
    return {"name": wish.name, "members": list(wish.members)}


def read_answer(status: int, headers: Any, body: bytes | str) -> Answer:
    """Read what a client was told about a wish."""
    if status != CREATED:
        return Answer(status)
    try:
        document = json.loads(body)
    except ValueError:
        # An answer without a group has no id, which the history finds wrong.
        document = {}
    return Answer(
        status,
        document.get("group_id", ""),
        document.get("conversation_id", ""),
        is_replay=headers.get("Idempotent-Replayed") == "true",
    )


@dataclass(slots=True)
class Checker:
    """Asks the service at `url`, as every user in turn, over one connection."""

    url: str
    token_of: Callable[[str], str]
    _connection: HTTPConnection = field(init=False)
    _prefix: str = field(init=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        self._prefix = parts.path.rstrip("/")
        self._connection = HTTPConnection(parts.netloc, timeout=REQUEST_SECONDS_MAX)

    def check(self, history: History) -> list[str]:
        """Finish what is open, read every group; return the faults, a line for each."""
        try:
            for wish in history.open_wishes():
                self._finish(wish, history)
            return history.faults() + [
                fault
                for wish in history.answers
                for answer in history.acknowledged(wish)[:1]
                for fault in self._faults_of_group(wish, answer)
            ]
        finally:
            self._connection.close()

    def _finish(self, wish: Wish, history: History) -> None:
        """Send the wish again until its outcome is known, as its client would have done."""
        headers = {"Idempotency-Key": wish.key, "Content-Type": "application/json"}
        body = json.dumps(body_of(wish))
        for _ in range(TRIES_MAX):
            answer = read_answer(*self._ask(wish, "POST", "/v1/groups", headers, body))
            history.record(wish, answer)
            if answer.status not in TRY_AGAIN:
                return

    def _faults_of_group(self, wish: Wish, told: Answer) -> list[str]:
        status, _, body = self._ask(wish, "GET", f"/v1/groups/{told.group_id}")
        place = f"{wish.owner}, group {told.group_id}"
        if status != 200:
            return [f"{place}: acknowledged, but reading it is answered {status}"]
        document = json.loads(body)
        expected = {
            "conversation_id": told.conversation_id,
            "owner_id": wish.owner,
            "name": wish.name,
            "members_count": wish.members_count,
        }
        return [
            f"{place}: {name} is {document[name]}, not {value}"
            for name, value in expected.items()
            if document[name] != value
        ]

    def _ask(
        self,
        wish: Wish,
        method: str,
        path: str,
        headers: dict[str, str] | None = None,
        body: str | None = None,
    ) -> tuple[int, Any, bytes]:
        """Return status, headers and body; status 0 where there was no answer."""
        authorization = {"Authorization": f"Bearer {self.token_of(wish.owner)}"}
        try:
            self._connection.request(
                method, self._prefix + path, body, authorization | (headers or {})
            )
            response = self._connection.getresponse()
            return response.status, response.headers, response.read()
        except (OSError, HTTPException):
            # The next request connects anew.
            self._connection.close()
            return 0, {}, b""


def report(history: History, faults: list[str]) -> str:
    """Return what the check has found, in a few lines."""
    told = [answer for wish in history.answers for answer in history.acknowledged(wish)]
    replays = sum(answer.is_replay for answer in told)
    summary = (
        f"{len(history.answers)} keys, {len(told)} acknowledgements of which {replays} replays:"
        f" {len(faults) or 'no'} faults"
    )
    return "\n".join([summary, *faults[:FAULTS_TOLD_MAX]])
