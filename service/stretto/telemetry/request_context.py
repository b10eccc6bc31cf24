"""The request that the present code works for, so that each line of the log can name it.

asyncio hands a context to every task and callback that code makes. So a flight, and the task that
follows for it, belong to the request that has started it. An actor's task has begun without a
request: what it reports of a batch of writes names their requests itself.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from random import getrandbits
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping
    from contextvars import Token
    from typing import Any

    from stretto.telemetry.tracing import Trace

ID_FIELD: Final = "X-Request-Id"
"""The header of a request or a command, and of its answer."""
# What proxies and tracing tools make has at most 50; the shortest signed token has 80.
ID_CHARACTERS_MAX: Final = 64
# UUIDs, hexadecimal, base64, addresses with ports.
_PLAIN: Final = re.compile(rf"[0-9A-Za-z+./:=@_-]{{1,{ID_CHARACTERS_MAX}}}")
# In one line of the log; a batch may have more.
REQUEST_IDS_MAX: Final = 8


def taken_id(offered: str | None, *secrets: str) -> str:
    """Return the id that was offered, if it may be taken; empty if one has to be made.

    Some clients send their idempotency key as the request's id as well; a log must not hold it.
    """
    if offered is None or _PLAIN.fullmatch(offered) is None:
        return ""
    if any(offered in secret or (secret and secret in offered) for secret in secrets):
        return ""
    return offered


class RequestContext:
    """What an operator knows a request by; inside a `with` block, the code works for it."""

    __slots__ = ("_before", "known_id", "trace")

    _before: Token[RequestContext | None]

    def __init__(self, taken_id: str = "") -> None:
        self.known_id = taken_id
        """The id that its client has sent, or that was made; empty until one is needed."""
        self.trace: Trace | None = None
        """Its span, if it is sampled."""

    @property
    def id(self) -> str:
        """Its id in the log and in its answer.

        Where none was taken, it is 64 random bits, made at the first use. It is no secret, so the
        fast generator of numbers will do.
        """
        if not self.known_id:
            self.known_id = f"{getrandbits(64):016x}"
        return self.known_id

    def __enter__(self) -> Self:
        self._before = CURRENT_REQUEST.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT_REQUEST.reset(self._before)


CURRENT_REQUEST: Final[ContextVar[RequestContext | None]] = ContextVar(
    "stretto.request", default=None
)


def trace_id_of(request: RequestContext | None) -> str | None:
    """Return the id of a request's trace, if there is a request and it is sampled."""
    return None if request is None or request.trace is None else request.trace.id


def request_ids(requests: Iterable[RequestContext | None]) -> tuple[str, ...]:
    """Return the ids of the first of some requests."""
    return tuple(each.id for each in requests if each is not None)[:REQUEST_IDS_MAX]


def traces_of(requests: Iterable[RequestContext | None]) -> list[Trace]:
    """Return the spans of those that are sampled."""
    return [each.trace for each in requests if each is not None and each.trace is not None]


def add_request_id(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Name the request in a line of the log, and its trace: a processor of structlog."""
    request = CURRENT_REQUEST.get()
    if request is not None:
        event.setdefault("request_id", request.id)
        if request.trace is not None:
            event.setdefault("trace_id", request.trace.id)
    return event
