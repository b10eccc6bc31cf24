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
