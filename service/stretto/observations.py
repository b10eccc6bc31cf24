"""What the parts of a process tell about themselves; see `docs/telemetry.md`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UpkeepTrouble:
    """Bus or database did not answer an actor: it tries again."""

    actor: str
    error: Exception


@dataclass(frozen=True, slots=True)
class ActorCrashed:
    """A fault in the program has ended an actor's turn; the runner starts the actor again."""

    actor: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class ActorRestarted:
    """An actor that has crashed runs again, after its back-off."""

    actor: str


def kind_of(error: Exception) -> str:
    """Return the name of the error's documented class: the writer's own are hidden below it."""
    return next(each.__name__ for each in type(error).__mro__ if not each.__name__.startswith("_"))
