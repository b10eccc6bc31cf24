"""The statements of `writes.sql`, `attempts.sql` and a deletion as steps: look, lock, write, commit.

Each `yield` is a moment in which others may go. A statement that has written nothing ends without
one: no caller could notice.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from stretto.creation.attempt import Attempt, AttemptStatus, Sighting
from stretto.errors import Failure
from stretto.store_errors import Refused
from support.memory_store.tables import AttemptRow, GroupRecord, TombstoneRecord

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from stretto.creation.ports import Write
    from support.memory_store.database import MemoryDatabase, Steps, Transaction


def claim(database: MemoryDatabase, mine: Transaction, writes: Sequence[Write]) -> Steps:
    """Insert pending attempts; waits for an uncommitted twin, gives way to a committed one.

    Never for a row that another transaction writes: it exists.
    """
    won = set()
    for write in writes:
        if _is_known(database, mine, write) or _exists(database, mine, write.group_id):
            continue
        yield from mine.lock(("new attempt", write.group_id))
        if not _exists(database, mine, write.group_id):
            mine.attempts[write.group_id] = AttemptRow(
                write.fingerprint, write.claim_token, database.now
            )
            won.add(write.claim_token)
    if won:
        yield
    mine.commit(durable=False)
    return won


def _is_known(database: MemoryDatabase, mine: Transaction, write: Write) -> bool:
    """Whether the snapshot has the key's group, or its tombstone."""
    return database.guards.known_row and mine.snapshot.has_row(write.group_id)


def _exists(database: MemoryDatabase, mine: Transaction, group_id: UUID) -> bool:
    return group_id in database.committed.attempts or group_id in mine.attempts


def lead(database: MemoryDatabase, mine: Transaction, writes: Sequence[Write]) -> Steps:
    """Settle the attempts that carry our token, and write their groups, in one commit."""
    led = set()
    for write in writes:
        row = yield from _locked(database, mine, write)
        if row is None or write.group_id in mine.attempts:
            continue
        settled = replace(
            row,
            status=AttemptStatus.SUCCEEDED,
            conversation_id=write.conversation_id,
            settled_at=database.now,
        )
        mine.settle(write.group_id, settled)
        mine.groups.append(
            GroupRecord(
                write.group_id,
                write.conversation_id,
                write.new_group,
                row.fingerprint,
                database.now,
            )
        )
        led.add(write.claim_token)
    for group in mine.groups:
        if database.guards.primary_key:
            yield from mine.lock(("chat_group", group.group_id))
            if database.committed.has_row(group.group_id):
                database.alarm("the primary key stopped a second group")
                raise Refused(Failure("refused_by_database", "chat_group_pkey"))
    if led:
        yield
    mine.commit(durable=True)
    return led


def claim_and_lead(database: MemoryDatabase, mine: Transaction, writes: Sequence[Write]) -> Steps:
    """Claim, commit, then lead in a transaction of its own; others may go between the two."""
    won = yield from claim(database, mine, writes)
    if won:
        yield
    mine.begin()
    return (yield from lead(database, mine, writes))


def unlocked(database: MemoryDatabase, mine: Transaction, writes: Sequence[Write]) -> Steps:
    """Return the tokens of those whose attempts are theirs to settle, and held by no other."""
    return {
        write.claim_token
        for write in writes
        if _is_ours(database, mine.snapshot.attempts.get(write.group_id), write)
        and ("attempt", write.group_id) not in database.locks
    }
    yield  # no caller can notice when: a generator only for its caller's sake


def fail(
    database: MemoryDatabase, mine: Transaction, writes: Sequence[Write], failure: Failure
) -> Steps:
    """Settle an attempt that carries our token as failed."""
    (write,) = writes
    row = yield from _locked(database, mine, write)
    if row is not None:
        failed = replace(row, status=AttemptStatus.FAILED, failure=failure, settled_at=database.now)
        mine.settle(write.group_id, failed)
        yield
    mine.commit(durable=True)
    return row is not None


def _locked(database: MemoryDatabase, mine: Transaction, write: Write) -> Steps:
    """Return the attempt if it is this write's to settle, locked; else nothing.

    That there is no group yet is what the snapshot says; whose the attempt is says the row itself,
    after the lock was waited for.
    """
    if _is_known(database, mine, write):
        return None
    row = mine.snapshot.attempts.get(write.group_id)
    if not _is_ours(database, row, write):
        return None
    if database.guards.row_lock:
        yield from mine.lock(("attempt", write.group_id))
    if database.guards.fresh_look:
        row = database.committed.attempts.get(write.group_id)
    return row if _is_ours(database, row, write) else None


def _is_ours(database: MemoryDatabase, row: AttemptRow | None, write: Write) -> bool:
    if row is None or row.status is not AttemptStatus.PENDING:
        return False
    return row.claim_token == write.claim_token or not database.guards.token_fence


def look(
    database: MemoryDatabase, mine: Transaction, group_id: UUID, lease_seconds: float
) -> Steps:
    """Read an attempt and its group, or its tombstone, as one snapshot has them."""
    row, group = mine.snapshot.attempts.get(group_id), mine.snapshot.group(group_id)
    tomb = mine.snapshot.tombstone(group_id)
    attempt = None
    if row is not None:
        attempt = Attempt(
            status=row.status,
            fingerprint=row.fingerprint,
            claim_token=row.claim_token,
            conversation_id=row.conversation_id,
            failure=row.failure,
            claimed_at=row.claimed_at,
            settled_at=row.settled_at,
            lease_over=_is_over(database, row, lease_seconds),
        )
    left = None if tomb is None else tomb.seen()
    return Sighting(attempt, None if group is None else group.seen(), left)
    yield  # no caller can notice when: a generator only for its caller's sake


def heal(database: MemoryDatabase, mine: Transaction, group_id: UUID) -> Steps:
    """Settle an attempt as succeeded because its group exists; put it back where it is gone."""
    group = mine.snapshot.group(group_id)
    if group is not None and ("attempt", group_id) not in database.locks:
        if group_id not in database.committed.attempts:
            yield from mine.lock(("new attempt", group_id))
        yield from mine.lock(("attempt", group_id))
        row = database.committed.attempts.get(group_id)
        if row is None or row.status is AttemptStatus.PENDING:
            mine.attempts[group_id] = AttemptRow(
                group.fingerprint,
                group_id,  # a token that no process has
                row.claimed_at if row else group.created_at,
                AttemptStatus.SUCCEEDED,
                group.conversation_id,
                None,
                max(row.claimed_at, group.created_at) if row else group.created_at,
            )
            yield
    mine.commit(durable=False)


def reclaim(
    database: MemoryDatabase,
    mine: Transaction,
    group_id: UUID,
    tokens: tuple[UUID, UUID],
    lease_seconds: float,
) -> Steps:
    """Put a new token in place of the seen one, unless the lease runs or a writer holds the row."""
    seen, token = tokens
    row = database.committed.attempts.get(group_id)
    is_ours = (
        row is not None
        and row.claim_token == seen
        and row.status is AttemptStatus.PENDING
        and _is_over(database, row, lease_seconds)
        and ("attempt", group_id) not in database.locks
    )
    if is_ours and row is not None:
        if database.guards.row_lock:
            yield from mine.lock(("attempt", group_id))
        mine.attempts[group_id] = replace(row, claim_token=token, claimed_at=database.now)
        yield
    mine.commit(durable=False)
    return is_ours


def delete_group(database: MemoryDatabase, mine: Transaction, group_id: UUID) -> Steps:
    """Empty the group's row and delete its attempt, unless another transaction holds that one.

    Return what `delete_group_1` does; everyone here is an owner. What it reads is as of now, since it is
    several statements.
    """
    if mine.snapshot.group(group_id) is not None:
        yield from mine.lock(("chat_group", group_id))
    now = database.committed if database.guards.fresh_look else mine.snapshot
    group = now.group(group_id)
    if group is None:
        mine.commit(durable=True)
        return False if group_id in now.deleted else None
    mine.buried.append(TombstoneRecord(group_id, None, group.created_at, database.now))
    attempt = "attempt", group_id
    if group_id in database.committed.attempts and attempt not in database.locks:
        database.locks[attempt] = mine
        mine.dropped.append(group_id)
    yield
    mine.commit(durable=True)
    return True


def _is_over(database: MemoryDatabase, row: AttemptRow, lease_seconds: float) -> bool:
    # A lease that begins further ahead than it lasts was written by another clock.
    return abs(database.now - row.claimed_at) >= timedelta(seconds=lease_seconds)
