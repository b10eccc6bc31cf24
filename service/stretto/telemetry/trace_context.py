"""A trace's context as text: what is read from a request, and written into an event and its messages.

The form is that of W3C Trace Context. A context that travels with an event is one text: `traceparent`,
and behind a space `tracestate`, where there is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
# What every system must pass on (W3C Trace Context, 3.3.1.5); a longer one is left out.
TRACESTATE_CHARACTERS_MAX: Final = 512
# Of a context that travels with an event: as `as_text` makes it, the longest one.
TRACE_CONTEXT_CHARACTERS_MAX: Final = 55 + len(" ") + TRACESTATE_CHARACTERS_MAX
_SAMPLED: Final = 0x01
# All zeros are no id. A later version may have more behind the flags.
_PARENT: Final = re.compile(
    r"(?P<version>(?!ff)[0-9a-f]{2})-(?!0{32})(?P<trace>[0-9a-f]{32})-(?!0{16})(?P<span>[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-[ -~]*)?"
)


@dataclass(frozen=True, slots=True)
class Parent:
    """The span that a request, or an event, comes from."""

    trace_id: int
    span_id: int
    flags: int

    @property
    def is_sampled(self) -> bool:
        """Whether the service that started this span records it."""
        return bool(self.flags & _SAMPLED)


def read_parent(traceparent: str) -> Parent | None:
    """Return what a `traceparent` says; None for one that is not valid, which counts as none."""
    found = _PARENT.fullmatch(traceparent)
    if found is None or (found["more"] is not None and found["version"] == "00"):
        return None
    return Parent(int(found["trace"], 16), int(found["span"], 16), int(found["flags"], 16))


def as_text(parent: Parent, tracestate: str) -> str:
    """Return a context as an event carries it."""
    text = f"00-{parent.trace_id:032x}-{parent.span_id:016x}-{parent.flags & 0xFF:02x}"
    if tracestate and len(tracestate) <= TRACESTATE_CHARACTERS_MAX:
        text += f" {tracestate}"
    return text


def as_fields(trace_context: str | None) -> Mapping[str, str]:
    """Return a context as header fields, or as attributes of an event; none for None."""
    if not trace_context:
        return {}
    traceparent, _, tracestate = trace_context.partition(" ")
    fields = {TRACEPARENT: traceparent}
    if tracestate:
        fields[TRACESTATE] = tracestate
    return fields
