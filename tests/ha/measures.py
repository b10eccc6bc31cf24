"""Judges a run: how long the engine and the replicas were away, and what the violations mean.

No I/O here, so that the judgement itself can be tested.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chaos.violation import Violation

BEHIND_SECONDS_MAX: Final = 1.0
LOST, DOUBLED, GAPS, OTHER = "lost", "doubled", "gaps", "other"
# How the violations of each kind begin, in the checkers' words.
KINDS: Final = {
    LOST: (
        "acknowledged, but there is no group",
        "seen as succeeded, then as",
        "the group has another conversation than the one answered",
    ),
    DOUBLED: (
        "more than one group",
        "created more than once",
        "answers differ",
        "an answer names another group than the key's",
    ),
    GAPS: ("its event never came to client", "its event was never published"),
}


@dataclass(frozen=True, slots=True)
class Pause:
    """A time without an acknowledgement."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True)
class Turn:
    """One failure of a primary. All times are in seconds since it was brought about."""

    engine: float
    """When another node had acknowledged a write of the probe."""
    replicas: tuple[float, ...]
    """When each replica acknowledged a creation again, after its longest pause."""
    backlog: float
    """When the last creation was acknowledged that had waited for the engine."""
    come_back: float
    """The longest pause of both replicas together while the failed node came back."""
    lag: float
    """By how much the measuring program itself was late at most, when the replicas resumed."""

    @property
    def behind(self) -> float:
        """How long the slower replica took after the engine; negative: the probe was slower."""
        return max(self.replicas) - self.engine


def longest_pause(times: Sequence[float], began: float, ended: float) -> Pause:
    """Return the longest pause between two of the ordered times that has a part of this span.

    A span in which nothing was acknowledged any more is a pause until its end.
    """
    pauses = [Pause(*pair) for pair in pairwise([*times, ended])]
    inside = [pause for pause in pauses if pause.ended > began and pause.began < ended]
    return max(inside, key=lambda pause: pause.seconds, default=Pause(began, ended))


def last_of_backlog(waits: Iterable[tuple[float, float]], engine_at: float) -> float:
    """Return when the last creation was acknowledged that was begun before the engine was back."""
    waited = [ended for began, ended in waits if began < engine_at < ended]
    return max(waited, default=engine_at)


def kinds_of(violations: Iterable[Violation]) -> Counter[str]:
    """Count violations by what they mean to a client."""
    return Counter(_kind(violation.what) for violation in violations)


def _kind(what: str) -> str:
    return next((kind for kind, heads in KINDS.items() if what.startswith(heads)), OTHER)


def row(scenario: str, turns: Sequence[Turn], found: Counter[str]) -> str:
    """Return the figures of a scenario, as a row of a Markdown table."""
    cells = [
        scenario,
        str(len(turns)),
        _spread([turn.engine for turn in turns]),
        _spread([turn.behind for turn in turns], 2),
        _spread([turn.backlog - turn.engine for turn in turns]),
        _spread([turn.come_back for turn in turns], 2),
        _spread([turn.lag for turn in turns], 2),
        *(str(found[kind]) for kind in (LOST, DOUBLED, GAPS, OTHER)),
    ]
    return f"| {' | '.join(cells)} |"


HEAD: Final = (
    "| scenario | turns | engine, s | creations after it, s | backlog after it, s"
    " | pause as the node comes back, s | own lag, s | lost | doubled | gaps | other violations |\n"
    f"|{'---|' * 11}"
)


def misses(turns: Iterable[Turn], found: Counter[str]) -> list[str]:
    """Return the goals that were missed."""
    missed = [f"{count} {kind}" for kind, count in sorted(found.items()) if count]
    return missed + [
        f"creations resumed {turn.behind:.2f} s after the engine"
        for turn in turns
        if turn.behind > BEHIND_SECONDS_MAX
    ]


def _spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median, and the lowest and highest where there are more than one."""
    text = f"{median(values):.{digits}f}"
    if len(values) == 1:
        return text
    return f"{text} ({min(values):.{digits}f} to {max(values):.{digits}f})"
