"""A trace's context as W3C writes it."""

from __future__ import annotations

import pytest

from stretto.telemetry.trace_context import (
    TRACESTATE_CHARACTERS_MAX,
    Parent,
    as_fields,
    as_text,
    read_parent,
)
from support.traces import PARENT_ID, SAMPLED, TRACE_ID, UNSAMPLED

PARENT = Parent(int(TRACE_ID, 16), int(PARENT_ID, 16), 1)


@pytest.mark.parametrize(
    ("is_sampled", "text"),
    [
        (True, SAMPLED),
        (False, UNSAMPLED),
        (True, SAMPLED.removesuffix("01") + "03"),
        (False, SAMPLED.removesuffix("01") + "02"),
        (True, "01" + SAMPLED.removeprefix("00")),
        (True, "01" + SAMPLED.removeprefix("00") + "-more of a later version"),
    ],
    ids=["sampled", "not sampled", "random", "random, not sampled", "later", "later and longer"],
)
def test_a_parent_is_read(is_sampled: bool, text: str) -> None:
    """Its ids, and whether it is recorded."""
    parent = read_parent(text)
    assert parent is not None
    assert (PARENT.trace_id, PARENT.span_id) == (parent.trace_id, parent.span_id)
    assert is_sampled == parent.is_sampled


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        SAMPLED[:-1],
        SAMPLED + "0",
        SAMPLED + "-more",
        SAMPLED + "\n",
        SAMPLED.upper(),
        SAMPLED.replace("-", "_"),
        "ff" + SAMPLED.removeprefix("00"),
        SAMPLED.replace(TRACE_ID, "0" * 32),
        SAMPLED.replace(PARENT_ID, "0" * 16),
        f"{SAMPLED},{SAMPLED}",
    ],
)
def test_what_is_no_parent_counts_as_none(text: str) -> None:
    """The trace begins here then; the request is served all the same."""
    assert read_parent(text) is None


def test_a_context_goes_through_an_event_as_it_came() -> None:
    """As one text, and back as fields."""
    text = as_text(PARENT, "vendor=1,other=a b")
    assert f"{SAMPLED} vendor=1,other=a b" == text
    assert {"traceparent": SAMPLED, "tracestate": "vendor=1,other=a b"} == as_fields(text)
    assert {"traceparent": SAMPLED} == as_fields(as_text(PARENT, ""))
    assert {} == as_fields(None) == as_fields("")


def test_a_state_that_is_too_long_is_left_out() -> None:
    """Its place in the log of events is bounded; the trace goes on without it."""
    kept = "v=" + "x" * (TRACESTATE_CHARACTERS_MAX - 2)
    assert f"{SAMPLED} {kept}" == as_text(PARENT, kept)
    assert as_text(PARENT, kept + "x") == SAMPLED
