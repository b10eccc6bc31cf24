"""When a request was first sent: how it is written, and what may start an attempt."""

from __future__ import annotations

import pytest

from stretto.creation.age import AHEAD_SECONDS_MAX, FIRST_SENT, AttemptAge, parse_first_sent
from stretto.errors import ParameterError, RequestInvalid

NOW = 1_000_000.0
AGE = AttemptAge(3600, lambda: NOW)


@pytest.mark.parametrize(
    ("seconds", "field"),
    [
        (0, "@0"),
        (1763870400, "@1763870400"),
        (-1, "@-1"),
        (7, "@007"),
        (10**15 - 1, f"@{'9' * 15}"),
    ],
)
def test_a_date_of_a_structured_field_is_read(seconds: int, field: str) -> None:
    """RFC 9651, 3.3.7."""
    assert seconds == parse_first_sent(field)


@pytest.mark.parametrize(
    "field",
    [
        *(
            "",
            "@",
            "1763870400",
            "@1.5",
            "@+1",
            "@ 1",
            "@1 ",
            "@1;a=b",
            "@1, @2",
            "@1\n",
            "@\u0661",
        ),
        *("@1e3", f"@{'9' * 16}", "2026-11-23T03:14:19Z", "Mon, 23 Nov 2026 03:14:19 GMT"),
    ],
)
def test_anything_else_is_refused_by_the_fields_name(field: str) -> None:
    """A time that is guessed could let a request through that is too old."""
    with pytest.raises(RequestInvalid) as error:
        parse_first_sent(field)
    (fault,) = error.value.errors
    assert isinstance(fault, ParameterError)
    assert FIRST_SENT == fault.parameter
    assert "such as @" in fault.detail


@pytest.mark.parametrize(
    ("may_claim", "seconds_ago"),
    [
        (True, 0),
        (True, 3600),
        (False, 3600.001),
        (False, 10**15),
        (True, -AHEAD_SECONDS_MAX),
        (False, -AHEAD_SECONDS_MAX - 0.001),
        (False, -(10**15)),
    ],
)
def test_a_request_starts_an_attempt_neither_too_late_nor_from_the_future(
    may_claim: bool, seconds_ago: float
) -> None:
    """The bounds themselves are good."""
    assert may_claim == AGE.allows(NOW - seconds_ago)


def test_a_request_that_does_not_say_when_it_was_first_sent_is_not_too_old() -> None:
    """As every request was before there was such a field."""
    assert AttemptAge(0, lambda: NOW).allows(None)
