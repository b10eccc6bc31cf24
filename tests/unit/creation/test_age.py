"""When a request was first sent: how it is written, and what may start an attempt."""

from __future__ import annotations

import pytest

from stretto.creation.age import (
    AHEAD_SECONDS_MAX,
    FIRST_SENT,
    AttemptAge,
    OutOfRange,
    parse_first_sent,
)
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


@pytest.mark.parametrize("seconds_ahead", [0, 1, AHEAD_SECONDS_MAX + 1, 10**9])
def test_a_stored_request_is_never_from_the_future(seconds_ahead: float) -> None:
    """Our clock is behind the store's then. What its client says counts all the same."""
    stored_at = NOW + seconds_ahead
    assert None is AGE.out_of_range_stored(None, stored_at)
    assert None is AGE.out_of_range_stored(f"@{NOW:.0f}", stored_at)
    late = NOW + AHEAD_SECONDS_MAX + 1
    assert OutOfRange(late, NOW) == AGE.out_of_range_stored(f"@{late:.0f}", stored_at)


def test_a_stored_request_is_as_old_as_what_is_stored_or_as_it_says() -> None:
    """A redelivery changes neither."""
    assert OutOfRange(NOW - 3601, NOW) == AGE.out_of_range_stored(None, NOW - 3601)
    assert None is AGE.out_of_range_stored(f"@{NOW - 3600:.0f}", NOW - 3601)
    with pytest.raises(RequestInvalid):
        AGE.out_of_range_stored("yesterday", NOW)


def test_the_answer_says_whether_a_time_is_too_long_ago_or_to_come() -> None:
    """The client needs to know which of its programs or clocks is wrong."""
    old, ahead = AGE.out_of_range(NOW - 3601), AGE.out_of_range(NOW + 400)
    assert old is not None
    assert ahead is not None
    assert [False, True] == [old.is_ahead, ahead.is_ahead]
    assert "too long ago" in old.error().detail
    assert "400 s ahead of the service's clock" in ahead.error().detail
    assert "too long ago" not in ahead.error().detail


@pytest.mark.parametrize(
    ("seconds", "date"),
    [(400, "1970-01-12T13:53:20+00:00"), (10**12, "@1000001000000"), (10**15, "@1000000001000000")],
)
def test_the_operator_reads_both_times(seconds: int, date: str) -> None:
    """Milliseconds by mistake lie beyond the calendar."""
    cause = OutOfRange(NOW + seconds, NOW).cause
    assert f"at {date} by" in cause
    assert f"{seconds} s ahead of this machine's: 1970-01-12T13:46:40+00:00" in cause
