"""Every row of the follower's table, and nothing beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from uuid import UUID

import pytest

from stretto.creation.attempt import (
    AnswerStatus,
    Attempt,
    AttemptStatus,
    ClaimAgain,
    Decision,
    GroupRow,
    Heal,
    Reclaim,
    Refuse,
    Replay,
    ReuseOfKey,
    Sighting,
    Tombstone,
    Wait,
    decide,
)
from stretto.domain import CreatedGroup
from stretto.errors import Failure

OURS, OTHERS = b"o" * 16, b"x" * 16
GROUP, CONVERSATION, TOKEN = UUID(int=1), UUID(int=2), UUID(int=3)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAILURE = Failure("full", "No more groups.")
CREATED = CreatedGroup(GROUP, CONVERSATION)


def attempt(
    status: AttemptStatus, *, fingerprint: bytes = OURS, lease_over: bool = False
) -> Attempt:
    """Return an attempt in that state."""
    return Attempt(
        status=status,
        fingerprint=fingerprint,
        claim_token=TOKEN,
        conversation_id=CONVERSATION if status is AttemptStatus.SUCCEEDED else None,
        failure=FAILURE if status is AttemptStatus.FAILED else None,
        claimed_at=NOW,
        settled_at=None if status is AttemptStatus.PENDING else NOW,
        lease_over=lease_over,
    )


def group(fingerprint: bytes = OURS) -> GroupRow:
    """Return a committed group."""
    return GroupRow(CREATED, fingerprint, NOW)


PENDING, SUCCEEDED, FAILED = AttemptStatus


@pytest.mark.parametrize(
    ("expected", "sighting"),
    [
        (Replay(CONVERSATION, TOKEN), Sighting(attempt(SUCCEEDED), group())),
        # A host that deletes groups does not make their keys new.
        (Replay(CONVERSATION, TOKEN), Sighting(attempt(SUCCEEDED), None)),
        (Heal(CREATED, contradicts_failed=False), Sighting(attempt(PENDING), group())),
        (
            Heal(CREATED, contradicts_failed=False),
            Sighting(attempt(PENDING, lease_over=True), group()),
        ),
        (Heal(CREATED, contradicts_failed=False), Sighting(None, group())),
        (Heal(CREATED, contradicts_failed=True), Sighting(attempt(FAILED), group())),
        (Wait(), Sighting(attempt(PENDING), None)),
        (Reclaim(TOKEN), Sighting(attempt(PENDING, lease_over=True), None)),
        (Refuse(FAILURE), Sighting(attempt(FAILED), None)),
        (ClaimAgain(), Sighting(None, None)),
    ],
)
def test_a_follower_does_what_the_table_says(expected: Decision, sighting: Sighting) -> None:
    """Each combination of attempt, group and lease has its one decision."""
    assert expected == decide(sighting, OURS)


@pytest.mark.parametrize(
    ("status", "lease_over", "row"), list(product(AttemptStatus, (False, True), (None, OTHERS)))
)
def test_another_body_is_a_reuse_of_the_key_whatever_the_status(
    status: AttemptStatus, lease_over: bool, row: bytes | None
) -> None:
    """Nothing of the first body is answered, and nothing is taken over with another."""
    seen = attempt(status, fingerprint=OTHERS, lease_over=lease_over)
    assert ReuseOfKey() == decide(Sighting(seen, group(row) if row else None), OURS)


def test_the_groups_own_fingerprint_counts_more_than_a_later_attempts() -> None:
    """After a sweep another body may have claimed the key anew; the first one still owns it."""
    sighting = Sighting(attempt(PENDING, fingerprint=OTHERS), group(OURS))
    assert Heal(CREATED, contradicts_failed=False) == decide(sighting, OURS)
    assert ReuseOfKey() == decide(sighting, OTHERS)


@pytest.mark.parametrize("seen", [None, *AttemptStatus])
@pytest.mark.parametrize(
    ("expected", "failure"), [(Refuse(None), None), (Refuse(FAILURE), FAILURE)]
)
def test_a_tombstone_decides_whatever_the_attempt_says(
    seen: AttemptStatus | None, expected: Decision, failure: Failure | None
) -> None:
    """Nor does the body matter: a tombstone does not know what the first one was."""
    for fingerprint in (OURS, OTHERS):
        left = None if seen is None else attempt(seen, fingerprint=fingerprint, lease_over=True)
        assert expected == decide(Sighting(left, None, Tombstone(NOW, failure)), OURS)


def test_only_answers_from_others_writes_are_replays() -> None:
    """Created and recovered groups were written by the answered request itself."""
    expected = {AnswerStatus.REPLAYED, AnswerStatus.HEALED}
    assert expected == {status for status in AnswerStatus if status.is_replay}
