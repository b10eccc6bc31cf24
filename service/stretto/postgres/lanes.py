"""Lanes: which work shares connections, and how many there are."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Lane(StrEnum):
    """A kind of work with connections of its own."""

    LOOKS = "looks"
    """What became of attempts."""
    FOLLOWERS = "followers"
    """Heal and reclaim, key by key."""
    DELETIONS = "deletions"
    """Group by group; those that take long on a connection of their own."""
    GROUPS = "groups"
    """What members read."""
    HISTORY = "history"
    """What sessions catch up on."""
    PROBE = "probe"
    """Health checks."""
    TRAILS = "trails"
    """What owners read of their attempts' trails."""
    UPKEEP = "upkeep"
    """Relay, sweeper, webhook, announcer, deletion watch, the writer of trails, and a host's subscribers:
    each does one thing at a time."""

    @property
    def is_reading(self) -> bool:
        """Whether a wait for a standby may be cancelled: no group or deletion that it lacks is seen then."""
        return self not in (Lane.FOLLOWERS, Lane.DELETIONS)

    @property
    def is_reported(self) -> bool:
        """Whether actors report what fails here (`upkeep.failed`), and so its kind, to operators.

        What fails in other lanes, requests and health checks get: to them all of it is `Unreachable`.
        """
        return self in (Lane.UPKEEP, Lane.HISTORY)


# One for each actor; the users of UPKEEP can wait for each other. Two of GROUPS, so that a large page
# does not delay single groups; two of FOLLOWERS, so that a row lock does not delay every other key.
CONNECTIONS_MAX: Final[Mapping[Lane, int]] = {
    Lane.LOOKS: 1,
    Lane.FOLLOWERS: 2,
    Lane.DELETIONS: 2,
    Lane.GROUPS: 2,
    Lane.HISTORY: 1,
    Lane.PROBE: 1,
    Lane.TRAILS: 1,
    Lane.UPKEEP: 5,
}
# What requests wait for. A trail decides nothing: where it cannot be read, all else is served.
SERVING: Final = frozenset(Lane) - {Lane.PROBE, Lane.TRAILS, Lane.UPKEEP}
# Lanes whose statements run triggers of the operator's.
WRITING: Final = frozenset({Lane.FOLLOWERS, Lane.DELETIONS, Lane.UPKEEP})
# Lanes in whose sessions a statement fails from which row-level security would hide rows. Triggers, and a
# host's hook, use tables of their own, which may have policies: where these run, statements that would
# decide wrongly over hidden rows look for policies themselves.
SEEING_ALL: Final = frozenset(Lane) - WRITING


async def keep_session(_: object) -> None:
    """Reset nothing: reads leave nothing in a session, and a pooler's session is not ours."""


def connections(instances: int, workers: int, writers: int) -> int:
    """Return how many connections to the database the instances hold, at most.

    Of each worker: its writers, every lane, and one that follows the log for live sessions.
    """
    return instances * workers * (writers + sum(CONNECTIONS_MAX.values()) + 1)
