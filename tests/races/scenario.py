"""What is explored: who asks for what where, what may go wrong, and which guards are there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from stretto.creation.creator import GroupCreator
from stretto.creation.writer import GroupWriter
from stretto.domain import NewGroup, UserId
from stretto.runtime.mailbox import Mailbox
from support.memory_store.database import Guards

ALICE: Final = UserId("alice")
TEAM: Final = NewGroup.parse(ALICE, {"name": "Team", "members": ["bob"]})
OTHER: Final = NewGroup.parse(ALICE, {"name": "Other"})


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends, and to which process."""

    process: int = 0
    key: str = "k"
    body: NewGroup = TEAM


@dataclass(frozen=True, slots=True)
class Deletion:
    """What deletes the group of a key: its owner's request to a process, or a host's transaction."""

    process: int | None = 0
    """None: a host's."""
    key: str = "k"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is explored."""

    requests: tuple[Request, ...]
    faults: tuple[str, ...] = ()
    faults_max: int = 0
    deletions: tuple[Deletion, ...] = ()
    sweeps_max: int = 0
    """How often all attempts that are settled are swept."""
    replies_late: bool = False
    """Whether others may go between a commit and its reply. Another request of the same process can
    notice that only where it deletes what was committed."""
    leases_max: int = 1
    """How often a lease may end while others could still act; when none can, it always may."""
    guards: Guards = field(default_factory=Guards)
    together: bool = False
    """Whether all requests of a process come in one moment, which makes them one batch."""
    in_steps: tuple[int, ...] = ()
    """The processes that claim and lead in two statements, as with a hook, or as older versions do."""
    batch_max: int = 100
    """By default more than any scenario has requests."""
    writers: int = 1
    """In each process. A second one joins as soon as the first waits for the database."""
    creator: type[GroupCreator] = GroupCreator
    writer: type[GroupWriter] = GroupWriter
    mailbox: type[Mailbox[Any, Any]] = Mailbox
