"""How many calls of the host's code an owner leaves to others, by how quick the last one was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stretto.creation import paces as paces_module
from stretto.creation.paces import SLOW_SECONDS, Paces
from stretto.domain import UserId

if TYPE_CHECKING:
    from collections.abc import Iterable

ALICE, BOB, CAROL = UserId("alice"), UserId("bob"), UserId("carol")
CALLS = 100
QUICK_SECONDS = SLOW_SECONDS - 0.01


def paces_of(answers: Iterable[tuple[UserId, float]]) -> Paces:
    """Return what is known after these answers."""
    paces = Paces()
    for owner, seconds in answers:
        paces.note(owner, seconds)
    return paces


@pytest.mark.parametrize(
    ("answers", "left"),
    [
        ([], CALLS // 4),
        ([QUICK_SECONDS], 0),
        ([SLOW_SECONDS], CALLS // 2),
        ([QUICK_SECONDS, SLOW_SECONDS], CALLS // 2),
        ([SLOW_SECONDS, QUICK_SECONDS], 0),
    ],
)
def test_the_last_answer_counts(answers: list[float], left: int) -> None:
    """An owner of whom nothing is known is between the two."""
    paces = paces_of((ALICE, seconds) for seconds in answers)
    assert left == paces.left_to_others(ALICE, CALLS)
    assert CALLS // 4 == paces.left_to_others(BOB, CALLS)


@pytest.mark.parametrize(("usual", "other"), [(0.0, SLOW_SECONDS), (SLOW_SECONDS, 0.0)])
def test_so_many_of_each_kind_are_remembered(
    usual: float, other: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who were answered last; many slow owners have no quick one forgotten."""
    monkeypatch.setattr(paces_module, "OWNERS_MAX", 2)
    paces = paces_of([(CAROL, other), *((owner, usual) for owner in (ALICE, BOB, ALICE))])
    newcomer = paces.left_to_others(UserId("dave"), CALLS)
    paces.note(UserId("erin"), usual)
    assert newcomer == paces.left_to_others(BOB, CALLS)
    assert newcomer not in {paces.left_to_others(each, CALLS) for each in (ALICE, CAROL)}
