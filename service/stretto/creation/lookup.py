"""AttemptLookup: reports what became of an attempt, without taking part in it.

It settles a pending attempt whose group exists, as a follower does, and changes nothing else: it
neither claims nor reclaims. An attempt that was swept is reported from its group, or its tombstone, and
not restored.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stretto.creation.attempt import AttemptStatus
from stretto.creation.follower import POLL
from stretto.creation.places import OwnerPlaces
from stretto.domain import group_id
from stretto.errors import Failure, GroupDeleted, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime
    from uuid import UUID

    from stretto.creation.attempt import Sighting
    from stretto.creation.ports import AttemptStore
    from stretto.domain import IdempotencyKey, UserId


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """An attempt as its owner sees it; the status decides which other fields are set."""

    status: AttemptStatus
    group_id: UUID
    conversation_id: UUID | None
    claimed_at: datetime
    settled_at: datetime | None
    failure: Failure | None
    created_at: datetime | None
    """When the group was created, if there is one."""
    is_recorded: bool
    """Whether the attempt has a row; if not, all this comes from its group or its tombstone."""


class AttemptLookup:
    """Answers "did my attempt succeed?"."""

    def __init__(
        self,
        attempts: AttemptStore,
        lease_seconds: float,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        places: OwnerPlaces | None = None,
    ) -> None:
        """Take the places in which owners take turns to heal, where others heal too."""
        self._attempts = attempts
        self._lease_seconds = lease_seconds
        self._pause = pause
        self._places = places or OwnerPlaces()

    async def look(self, owner: UserId, key: IdempotencyKey) -> AttemptReport:
        """Report on the attempt and write nothing; raises as `look_up` does."""
        id_ = group_id(owner, key)
        report = _report(id_, await self._attempts.look(id_, self._lease_seconds, owner))
        if report is None:
            raise NotFound
        return report

    async def look_up(
        self, owner: UserId, key: IdempotencyKey, wait_seconds: float
    ) -> AttemptReport:
        """Report on the attempt; wait up to `wait_seconds` for a pending one.

        Where it has to heal, it waits for its owner's turn as well (`places.py`).
        Raises `NotFound` when neither the attempt nor its group exists, `GroupDeleted` when the
        group was deleted, and `Unreachable`.
        """
        id_ = group_id(owner, key)
        clock_seconds = asyncio.get_running_loop().time
        deadline = clock_seconds() + wait_seconds
        for looks in itertools.count():
            sighting = await self._attempts.look(id_, self._lease_seconds, owner)
            if _needs_healing(sighting):
                async with self._places.place(owner):
                    await self._attempts.heal(id_)
                sighting = await self._attempts.look(id_, self._lease_seconds, owner)
            report = _report(id_, sighting)
            if report is None:
                raise NotFound
            if report.status is not AttemptStatus.PENDING or clock_seconds() >= deadline:
                return report
            await self._pause(POLL.seconds(looks))
        raise AssertionError  # the looks have no end


def _needs_healing(sighting: Sighting) -> bool:
    attempt = sighting.attempt
    is_pending = attempt is not None and attempt.status is AttemptStatus.PENDING
    return sighting.group is not None and is_pending


def _report(id_: UUID, sighting: Sighting) -> AttemptReport | None:
    attempt, row, tombstone = sighting.attempt, sighting.group, sighting.tombstone
    if tombstone is not None:
        if tombstone.failure is None:
            raise GroupDeleted
        return AttemptReport(
            status=AttemptStatus.FAILED,
            group_id=id_,
            conversation_id=None,
            claimed_at=tombstone.settled_at,
            settled_at=tombstone.settled_at,
            failure=tombstone.failure,
            created_at=None,
            is_recorded=False,
        )
    if row is not None:
        return AttemptReport(
            status=AttemptStatus.SUCCEEDED,
            group_id=id_,
            conversation_id=row.group.conversation_id,
            claimed_at=attempt.claimed_at if attempt else row.created_at,
            settled_at=(attempt and attempt.settled_at) or row.created_at,
            failure=None,
            created_at=row.created_at,
            is_recorded=attempt is not None,
        )
    if attempt is None:
        return None
    return AttemptReport(
        status=attempt.status,
        group_id=id_,
        conversation_id=attempt.conversation_id,
        claimed_at=attempt.claimed_at,
        settled_at=attempt.settled_at,
        failure=attempt.failure,
        created_at=None,
        is_recorded=True,
    )
