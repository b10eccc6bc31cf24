"""The base of all scenarios: a client that keeps to the contract and records every answer.

If an answer says to wait, the client waits and sends the same request with the same key. An
unexpected answer is a failure of the run. The checker decides whether the answers are true.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final

import gevent
from history import CREATED, OK, TRY_AGAIN, Answer, Wish
from locust import FastHttpUser, constant_throughput
from tokens import token_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from locust.contrib.fasthttp import FastResponse
    from records import Journal

PATH: Final = "/v1/groups"
# Per user: a real user creates no faster, and USERS sets the load. 500 users keep two cores that
# run everything busy, but not so full that only queues would be measured.
TASKS_PER_SECOND: Final = 1
# The service answers within the requested wait, 30 s at most.
REQUEST_SECONDS_MAX: Final = 35.0
# A service that says "later" so often is not usable.
TRIES_MAX: Final = 20
# Bounds for the service's `Retry-After`.
RETRY_SECONDS_MIN: Final = 0.1
RETRY_SECONDS_MAX: Final = 5.0
# Codes of an overloaded service: the client retries, and the run has not failed.
REJECTIONS: Final = frozenset(("overloaded", "rate_limited"))
MEMBERS_USUAL_MAX: Final = 20
PROBLEM_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Request:
    """A request of one owner; locust counts it under `name`."""

    name: str
    owner: str
    key: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    expected: Collection[int] = (CREATED,)
    """The statuses that may be answered; any other is a failure."""
    due: int = 0
    """The status that an invalid request must get; 0 if the request is valid."""
    method: str = "POST"
    path: str = PATH

    @classmethod
    def of_wish(
        cls, wish: Wish, name: str, wait_seconds: int | None = None, expected: Collection[int] = ()
    ) -> Request:
        """Return the request that sends a wish; a success is always expected."""
        prefer = {} if wait_seconds is None else {"Prefer": f"wait={wait_seconds}"}
        return cls(
            name,
            wish.owner,
            wish.key,
            json.dumps(wish.document, ensure_ascii=False).encode(),
            {"Idempotency-Key": wish.key, **prefer},
            (CREATED, *expected),
        )

    @property
    def all_headers(self) -> dict[str, str]:
        """The request's own headers and those of every request."""
        return {
            "Authorization": f"Bearer {token_of(self.owner)}",
            "Content-Type": "application/json",
            **self.headers,
        }


class Client(FastHttpUser):
    """A user with a unique name; subclasses define its tasks."""

    abstract = True
    wait_time = constant_throughput(TASKS_PER_SECOND)
    network_timeout = REQUEST_SECONDS_MAX
    connection_timeout = REQUEST_SECONDS_MAX
    # Opened by the locustfile, one for each process.
    journal: ClassVar[Journal]

    def on_start(self) -> None:
        """Choose a new unique name."""
        self.owner = f"{self.run_id}-{uuid.uuid4().hex[:12]}"

    @property
    def run_id(self) -> str:
        """The prefix that all processes of this run share, and no other run has."""
        return str(self.environment.parsed_options.run_id)

    def new_wish(self) -> Wish:
        """Return the user's next wish."""
        return Wish(self.owner, str(uuid.uuid4()), f"Team {random.randint(1, 1000)}", some_users())

    def begin(self, wish: Wish) -> None:
        """Record a wish before it is sent: the checker finishes what the run's end cuts off."""
        self.journal.begin(wish, type(self).__name__)

    def create(self, wish: Wish, name: str) -> Answer:
        """Send a wish until it is settled, as the contract says."""
        self.begin(wish)
        return self.settle(Request.of_wish(wish, name))

    def settle(self, request: Request) -> Answer:
        """Send a recorded request until the answer is final."""
        for _ in range(TRIES_MAX):
            answer, retry_seconds = self.send(request)
            if answer.status not in TRY_AGAIN:
                break
            gevent.sleep(retry_seconds)
        return answer

    def send(self, request: Request) -> tuple[Answer, float]:
        """Send a request once and record its answer; return it and the pause before a retry."""
        with self.client.request(
            request.method,
            request.path,
            name=request.name,
            data=request.body or None,
            headers=request.all_headers,
            catch_response=True,
        ) as response:
            answer = self._read(response, request)
            self.note(request, answer)
            if answer.status in request.expected or _code(answer) in REJECTIONS:
                response.success()
            else:
                response.failure(f"{answer.status} {_code(answer) or response.error or ''}")
            return answer, _retry_seconds(response)

    def note(self, request: Request, answer: Answer) -> None:
        """Write an answer to the history."""
        self.journal.record(request.owner, request.key, answer)

    def _read(self, response: FastResponse, request: Request) -> Answer:
        status = response.status_code
        text = (response.content or b"").decode()
        return Answer(
            time.time(),
            type(self).__name__,
            request.name,
            status,
            text if status in (OK, CREATED) else text[:PROBLEM_CHARACTERS_MAX],
            _header(response, "Idempotent-Replayed") == "true",
            request.due,
        )


def some_users() -> tuple[str, ...]:
    """Return as many members as a group usually has."""
    count = random.randint(0, MEMBERS_USUAL_MAX)
    return tuple(f"user-{number}" for number in random.sample(range(10_000), count))


def _header(response: FastResponse, name: str) -> str:
    return (response.headers or {}).get(name, "")


def _retry_seconds(response: FastResponse) -> float:
    advice = _header(response, "Retry-After")
    seconds = float(advice) if advice.isdigit() else 0.0
    # Random: clients that were rejected together must not retry together.
    return random.uniform(0.5, 1.0) * min(max(seconds, RETRY_SECONDS_MIN), RETRY_SECONDS_MAX)


def _code(answer: Answer) -> str:
    """Return the code of a problem document; empty for any other answer."""
    try:
        document = json.loads(answer.text)
    except ValueError:
        return ""
    return str(document.get("code", "")) if isinstance(document, dict) else ""
