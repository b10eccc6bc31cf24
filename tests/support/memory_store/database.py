"""An in-memory database: what of PostgreSQL the protocol stands on, and nothing else.

- A commit becomes visible at once and as a whole. A statement sees the snapshot from its beginning;
  what it has locked it sees as it is now (READ COMMITTED re-checks a row after waiting for it).
- Row locks, held to the end of the transaction; that which closes a circle of waits is the deadlock's
  victim.
- Asynchronous commits are visible, but a crash may take them back, the last ones first. A durable
  commit makes all before it durable.
- Connections break at any moment; what was sent on them may go on.
- Time is a number that a test sets.

A statement is a generator: it runs from `yield` to `yield`, and others may go in between. Who goes
when is decided by `submitted`, which learns of every statement: by itself the database runs each
as far as it gets.

Each guard can be taken out, to see what it guards against.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from stretto.creation.attempt import AttemptStatus
from stretto.errors import Failure
from stretto.store_errors import Refused, StoreError, Transient
from support.memory_store.tables import AttemptRow, GroupRecord, Tables, TombstoneRecord

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterator
    from uuid import UUID

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)

Lock: TypeAlias = tuple[str, "UUID"]
Steps: TypeAlias = "Generator[None, None, Any]"


@dataclass(frozen=True, slots=True)
class Guards:
    """What makes it safe; a test takes one out and looks for the harm."""

    token_fence: bool = True
    """A leader's statement touches an attempt only if the attempt carries its token."""
    row_lock: bool = True
    """It holds the attempt's row from the look at it to the commit; a reclaim skips such a row."""
    fresh_look: bool = True
    """What it does is decided by the row after the lock was won, not by the snapshot before."""
    primary_key: bool = True
    """There is one row per id in `chat_group`."""
    known_row: bool = True
    """A key whose row is in `chat_group` is neither claimed nor led."""
    tombstone: bool = True
    """The row of a deleted group stays, and so does one of a failed attempt that was swept."""


class Transaction:
    """What one statement has locked and will write; a procedure's begins anew after each commit."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self.waits_for: Lock | None = None
        self.begin()

    def begin(self) -> None:
        """See what is committed by now, and have nothing to write yet."""
        self.snapshot = self._database.committed
        self.attempts: dict[UUID, AttemptRow] = {}
        self.groups: list[GroupRecord] = []
        self.buried: list[TombstoneRecord] = []
        self.dropped: list[UUID] = []
        """Attempts that are deleted."""

    @property
    def is_blocked(self) -> bool:
        """Whether another one holds what this transaction waits for."""
        holder = self.waits_for and self._database.locks.get(self.waits_for)
        return holder is not None and holder is not self

    def lock(self, lock: Lock) -> Steps:
        """Wait for a lock; others may go before each but the first."""
        locks = self._database.locks
        if self in locks.values():
            yield
        self.waits_for = lock
        while self.is_blocked:
            self._refuse_deadlock()
            yield
        self.waits_for = None
        locks[lock] = self

    def _refuse_deadlock(self) -> None:
        holder: Transaction | None = self
        while holder is not None and holder.waits_for is not None:
            holder = self._database.locks.get(holder.waits_for)
            if holder is self:
                self._database.alarm("deadlock")
                raise Transient("deadlock")

    def settle(self, group_id: UUID, row: AttemptRow) -> None:
        """Write an attempt that exists; a settled one never changes, which a trigger watches over."""
        now = self._database.committed.attempts.get(group_id)
        if now is not None and now.status is not AttemptStatus.PENDING:
            self._database.alarm("the trigger stopped the change of a settled attempt")
            raise Refused(Failure("refused_by_database", "attempt_settled_is_final"))
        self.attempts[group_id] = row

    def commit(self, *, durable: bool) -> None:
        """Make everything visible at once."""
        database = self._database
        if self.attempts or self.groups or self.buried:
            rows = database.committed.with_rows(self.attempts, tuple(self.groups))
            if self.buried:
                gone = [each.group_id for each in self.buried]
                left = self.buried if database.guards.tombstone else ()
                rows = rows.without(gone, self.dropped, tuple(left))
            database.journal = [rows] if durable else [*database.journal, rows]
            database.epoch += 1
        self.end()

    def end(self) -> None:
        """Let go of every lock; what was not committed is gone."""
        locks = self._database.locks
        for lock in [lock for lock, holder in locks.items() if holder is self]:
            del locks[lock]
            self._database.epoch += 1
        self.waits_for = None

    def key(self) -> object:
        """Return all that distinguishes this transaction from another one at the same step."""
        written = frozenset(self.attempts.items()), frozenset(self.groups), tuple(self.buried)
        return hash(self.snapshot), written, tuple(self.dropped)


@dataclass(slots=True, eq=False)
class Statement:
    """One statement on its way: sent, under way, answered; or an orphan that is not awaited."""

    database: MemoryDatabase
    name: str
    arguments: tuple[object, ...]
    begin: Callable[[Transaction], Steps]
    answered: asyncio.Future[Any]
    lost: Callable[[], StoreError]
    """Called when the connection breaks; returns what that means to its sender."""
    is_orphan: bool = False
    is_over: bool = False
    steps_done: int = 0
    transaction: Transaction | None = None
    _steps: Steps | None = None

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for another's lock."""
        return self.transaction is not None and self.transaction.is_blocked

    def advance(self) -> None:
        """Go one step; the last one answers."""
        if self._steps is None:
            self.transaction = Transaction(self.database)
            self._steps = self.begin(self.transaction)
        self.steps_done += 1
        try:
            next(self._steps)
        except StopIteration as done:
            self.is_over = True
            if not self.answered.done():
                self.answered.set_result(done.value)
        except StoreError as error:
            self.fail(error)

    def fail(self, error: StoreError) -> None:
        """Roll back, and answer with the error."""
        self.vanish()
        if not self.answered.done():
            self.answered.set_exception(error)

    def vanish(self) -> None:
        """Roll back, or never arrive."""
        self.is_over = True
        if self.transaction is not None:
            self.transaction.end()

    def lose(self) -> None:
        """Break the connection: no process hears of it any more, but it may go on."""
        self.is_orphan = True
        error = self.lost()
        if not self.answered.done():
            self.answered.set_exception(error)


@dataclass
class MemoryDatabase:
    """Rows, locks and time. `journal` is what a crash may fall back to, the durable state first."""

    guards: Guards = field(default_factory=Guards)
    journal: list[Tables] = field(default_factory=lambda: [Tables()])
    locks: dict[Lock, Transaction] = field(default_factory=dict)
    now: datetime = EPOCH
    epoch: int = 0
    """Grows with whatever a follower could notice."""
    alarms: list[str] = field(default_factory=list)
    """What only the last line of defence has stopped."""
    submitted: Callable[[Statement], None] | None = None
    replies_late: bool = False
    """Whether others may go between a commit and its reply, also of the same process."""
    _waiting: list[Statement] = field(default_factory=list)

    @property
    def committed(self) -> Tables:
        """What a new statement sees."""
        return self.journal[-1]

    def alarm(self, what: str) -> None:
        """Remember that a guard before the last one has failed."""
        self.alarms.append(what)

    def submit(self, statement: Statement) -> None:
        """Take a statement in."""
        if self.submitted is not None:
            self.submitted(statement)
        else:
            self._waiting.append(statement)
            self._run_all()

    def replied(self, steps: Steps) -> Steps:
        """Take a statement's steps, and return its result."""
        result = yield from steps
        if self.replies_late and result:
            yield
        return result

    def pass_time(self, seconds: float) -> None:
        """Set the clock forward."""
        self.now += timedelta(seconds=seconds)
        self.epoch += 1

    def crash(self, survives: int) -> None:
        """Fall back to an entry of the journal; what was not committed is gone."""
        self.journal = [self.journal[survives]]
        self.locks.clear()
        self.epoch += 1

    def sweepable(self) -> list[UUID]:
        """Return the attempts that are settled, and held by no statement."""
        return [
            id_
            for id_, row in self.committed.attempts.items()
            if row.status is not AttemptStatus.PENDING and ("attempt", id_) not in self.locks
        ]

    def sweep(self) -> None:
        """Delete these attempts; those that have failed leave tombstones. Not durable."""
        swept = self.sweepable()
        rows = [(id_, self.committed.attempts[id_]) for id_ in swept]
        marks = [
            TombstoneRecord(id_, row.failure, row.settled_at or self.now)
            for id_, row in rows
            if row.failure is not None and not self.committed.has_row(id_)
        ]
        left = tuple(marks) if self.guards.tombstone else ()
        self.journal = [*self.journal, self.committed.without((), swept, left)]
        self.epoch += 1

    @property
    def is_anybody_blocked(self) -> bool:
        """Whether a statement waits for a lock."""
        return any(statement.is_blocked for statement in self._waiting)

    def put_attempt(self, group_id: UUID, row: AttemptRow | None) -> None:
        """Put an attempt in as it is, or delete it: what an operator may do."""
        attempts = {id_: kept for id_, kept in self.committed.attempts.items() if id_ != group_id}
        if row is not None:
            attempts[group_id] = row
        self.journal = [replace(self.committed, attempts=attempts)]
        self.epoch += 1

    @contextmanager
    def holding(self, group_id: UUID, what: str = "attempt") -> Iterator[None]:
        """Hold the lock of an attempt's row, as a writer does, or of a "new attempt"."""
        holder = Transaction(self)
        self.locks[what, group_id] = holder
        try:
            yield
        finally:
            holder.end()
            self._run_all()

    def _run_all(self) -> None:
        """Run every statement as far as it gets, until all are over or wait for a lock."""
        while ready := [statement for statement in self._waiting if not statement.is_blocked]:
            ready[0].advance()
            self._waiting = [statement for statement in self._waiting if not statement.is_over]
