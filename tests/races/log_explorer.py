"""Takes every way through a world of the log, depth first, and judges where each of them ends.

A world cannot be copied, so each new branch is run again from the beginning. A state that was seen
before is not entered again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

# Far more than any scenario here needs.
STEPS_MAX: Final = 100


class Steppable(Protocol):
    """A world in which nothing happens by itself."""

    def steps(self) -> list[Any]:
        """Return all that may happen next; nothing at the end."""

    def take(self, step: Any) -> None:
        """Let one thing happen; raises `AssertionError` for what must never be."""

    def key(self) -> object:
        """Return all that distinguishes this state from another one."""

    def judge(self) -> None:
        """Raise `AssertionError` for what must not be at the end."""

    def end(self) -> None:
        """Stop everything."""


@dataclass(slots=True)
class Explored:
    """What was explored."""

    states: int = 0
    ends: int = 0


class LogAnomaly(AssertionError):
    """A way that ends wrong, with every step of it."""


def explore_log(begin: Callable[[], Steppable]) -> Explored:
    """Try everything; raises `LogAnomaly` for the first way that ends wrong."""
    found = Explored()
    known: set[object] = set()
    to_try: list[tuple[Any, ...]] = [()]
    while to_try:
        way = to_try.pop()
        world = begin()
        try:
            for step in way:
                world.take(step)
            while True:
                key = world.key()
                if key in known:
                    break
                known.add(key)
                steps = world.steps()
                if not steps:
                    found.ends += 1
                    world.judge()
                    break
                assert len(way) < STEPS_MAX, "this never comes to rest"
                to_try += [(*way, step) for step in steps[1:]]
                way = *way, steps[0]
                world.take(steps[0])
        except AssertionError as error:
            listing = "\n".join(f"{number:3}. {step}" for number, step in enumerate(way, 1))
            raise LogAnomaly(f"{error}\n{listing}") from error
        finally:
            world.end()
    found.states = len(known)
    return found
