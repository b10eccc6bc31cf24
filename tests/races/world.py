"""A world of processes around one database, in which nothing happens by itself.

The processes run the real code, each on an event loop of its own. Their store calls wait as
statements until the explorer takes a step: `steps()` lists all that may happen next, `take()` lets
one of it happen and every party react. A step is one of

- go: a statement goes as far as to its next lock or to its commit, which includes the reply (a reply
  that is late is the same as a process that is slow to send its next statement);
- look after lease: the database's clock passes every lease, and a request looks (no other could
  notice); more than `leases_max` times only when nothing else can happen;
- arrive: one more request comes to a process (the first is there from the start); retry: after all
  were answered, or their process is gone, a client comes back, to a process of its own;
- vanish: a statement whose connection is gone is rolled back (otherwise it goes on);
- a deletion, or what comes of it, where the scenario has any (`deletions.py`);
- a fault, of those the scenario has, at most `faults_max` per schedule (`faults.py`).

Sleeps end by themselves: what follows one is a store call, which waits for its step anyway. A flight
that has looked and waits looks again only after something has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from races import faults
from races.deletions import Deletions
from races.likeness import reply_of
from races.process import LEASE_SECONDS, Process
from races.scenario import Request
from stretto.creation.attempt import AttemptStatus
from stretto.creation.ports import Write
from stretto.domain import IdempotencyKey
from stretto.errors import StrettoError
from support.memory_store.database import MemoryDatabase

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping
    from uuid import UUID

    from races.scenario import Scenario
    from stretto.creation.flight import Answer
    from support.memory_store.database import Statement
    from support.memory_store.tables import AttemptRow

Step = tuple[Any, ...]
# The second part of others is the number of a statement.
NOT_OF_STATEMENTS: Final = ("arrive", "patience", "database crash", "delete", "watch")


class World:
    """Processes, requests and a database in one state."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.database = MemoryDatabase(
            scenario.guards, submitted=self._submitted, replies_late=scenario.replies_late
        )
        self.statements: list[Statement] = []
        self.owners: dict[Statement, Process] = {}
        self._looks_again: set[Statement] = set()
        """Looks of a flight that has looked before: pointless until there is news."""
        self.faults_left = scenario.faults_max
        self.leases_left = scenario.leases_max
        self.processes_made = 0
        self.answers: dict[int, object] = {}
        self.retries_begun = 0
        self.waiting: dict[int, tuple[Process, asyncio.Task[Answer]]] = {}
        self.to_come = list(range(len(scenario.requests)))
        self.acting: Process | None = None
        self.deletions = Deletions(self)
        places = sorted({request.process for request in scenario.requests})
        self.processes = {place: self.new_process(place) for place in places}
        self.retries = list(dict.fromkeys((r.key, r.body) for r in scenario.requests))

    def begin(self) -> None:
        """Let the first request of every process come."""
        for place in self.processes:
            self._arrive_first(place)

    def new_process(self, place: int) -> Process:
        """Start a process."""
        self.processes_made += 1
        in_steps = place in self.scenario.in_steps
        return Process(self, self.processes_made, in_steps=in_steps)

    def restart(self, place: int) -> None:
        """Put a new process in the place of one that is gone."""
        self.processes[place].end()
        self.processes[place] = self.new_process(place)
        self._arrive_first(place)

    def request(self, number: int) -> Request:
        """Return a request by its number: the retries come after the others."""
        requests = self.scenario.requests
        if number < len(requests):
            return requests[number]
        key, body = self.retries[number - len(requests)]
        return Request(-1, key, body)

    def steps(self) -> list[Step]:
        """Return all that may happen next."""
        steps: list[Step] = [
            ("go", position)
            for position, statement in enumerate(self.statements)
            if self._may_go(statement)
        ]
        looks: list[Step] = []
        if self._is_lease_running():
            looks = [
                ("look after lease", position)
                for position, statement in enumerate(self.statements)
                if statement.name == "look"
            ]
        steps += [
            ("vanish", position)
            for position, statement in enumerate(self.statements)
            if statement.is_orphan and statement.steps_done
        ]
        arrivals = {self.request(number).process: number for number in reversed(self.to_come)}
        steps += [("arrive", number) for number in arrivals.values()]
        later = list(self.deletions.steps())
        steps += later
        is_at_rest = not self.to_come and not self.waiting and not later
        if is_at_rest and self.retries_begun < len(self.retries):
            steps.append(("retry",))
        if not steps or (self.leases_left and not self.retries_begun):
            steps += looks
        if self.faults_left and not self.retries_begun:
            steps += faults.possible(self)
        return steps

    def take(self, step: Step) -> None:
        """Let one thing happen, and every party react to it."""
        match step:
            case ("go", position):
                self._go(self.statements[position])
            case ("vanish", position):
                self.statements[position].vanish()
            case ("arrive", number):
                self.to_come.remove(number)
                self._arrive(number, self.processes[self.request(number).process])
            case ("retry",):
                if not self.retries_begun:
                    self.processes[-1] = self.new_process(-1)
                number = len(self.scenario.requests) + self.retries_begun
                self.retries_begun += 1
                self._arrive(number, self.processes[-1])
            case ("delete" | "watch" | "sweep", *_):
                self.deletions.happen(step)
            case ("look after lease", position):
                self.leases_left = max(0, self.leases_left - 1)
                self.database.pass_time(LEASE_SECONDS)
                self._go(self.statements[position])
            case _:
                self.faults_left -= 1
                faults.happen(self, step)
        self.statements = [statement for statement in self.statements if not statement.is_over]
        self._collect()

    def react(self, process: Process, heard: object) -> None:
        """Let a process go on after it has heard of something."""
        process.inputs.append(heard)
        self.acting = process
        process.loop.run_until_idle()
        self.acting = None

    def react_quietly(self, process: Process, heard: object) -> None:
        """The same for what may lead to nothing, and then leaves no trace but who waits."""
        before = len(self.statements)
        self.react(process, heard)
        if len(self.statements) == before:
            process.inputs.pop()

    def _may_go(self, statement: Statement) -> bool:
        is_stale = statement.name == "look" and self.is_stale(statement)
        return not statement.is_blocked and not is_stale

    def is_stale(self, statement: Statement) -> bool:
        """Whether a flight would see what it saw last (its reclaim: would, if it looked again)."""
        if statement not in self._looks_again and statement.name != "reclaim":
            return False
        seen = self.owners[statement].looked.get(statement.arguments[0])
        return seen == self.database.epoch

    def _go(self, statement: Statement) -> None:
        process = self.owners[statement]
        if statement.name == "look":
            process.looked[statement.arguments[0]] = self.database.epoch
        statement.advance()
        if statement.is_over and not statement.is_orphan:
            self.hear(statement)

    def hear(self, statement: Statement) -> None:
        """Let the sender of a statement react to what became of it."""
        process = self.owners[statement]
        sent, heard = len(self.statements), len(process.inputs)
        self.react(process, (statement.name, statement.arguments[0], reply_of(statement)))
        if statement.name not in ("look", "reclaim"):
            return
        for newer in self.statements[sent:]:
            if newer.name == "look" and newer.arguments[0] == statement.arguments[0]:
                self._looks_again.add(newer)
                # It looked, and waits as before: as if it had not.
                if statement.name == "look":
                    del process.inputs[heard:]

    def _submitted(self, statement: Statement) -> None:
        assert self.acting is not None
        ids = [write.group_id for write in statement.arguments if isinstance(write, Write)]
        if len(set(ids)) < len(ids):
            self.database.alarm("a batch holds a key twice")
        self.statements.append(statement)
        self.owners[statement] = self.acting

    def _arrive(self, number: int, process: Process) -> None:
        self._send(number, process)
        self.react_quietly(process, ("arrive", number))

    def _send(self, number: int, process: Process) -> None:
        request = self.request(number)
        self.deletions.arrive(number, process)
        create = process.creator.create(IdempotencyKey(request.key), request.body)
        self.waiting[number] = process, process.loop.create_task(create)

    def _arrive_first(self, place: int) -> None:
        """Let the first request of a new process come at once: its claim waits for its turn."""
        coming = [number for number in self.to_come if self.request(number).process == place]
        for number in coming if self.scenario.together else coming[:1]:
            self.to_come.remove(number)
            self._send(number, self.processes[place])
        self.react(self.processes[place], "arrive")

    def _collect(self) -> None:
        """Take note of who was answered, and forget how a process came to be idle."""
        for number, (_, task) in tuple(self.waiting.items()):
            if task.done():
                del self.waiting[number]
                self.answers[number] = _answer(task)
        self.deletions.collect()
        busy = {process for process, _ in self.waiting.values()}
        busy |= {self.owners[s] for s in self.statements if not s.is_orphan}
        for process in self.processes.values():
            if process not in busy:
                process.inputs = [process.number, process.memory]

    def leases_over(self, attempts: Mapping[UUID, AttemptRow]) -> tuple[UUID, ...]:
        """Return the pending attempts that may be taken over."""
        return tuple(
            id_
            for id_, row in attempts.items()
            if row.status is AttemptStatus.PENDING and self._is_over(row)
        )

    def _is_over(self, row: AttemptRow) -> bool:
        return (self.database.now - row.claimed_at).total_seconds() >= LEASE_SECONDS

    def _is_lease_running(self) -> bool:
        return any(
            row.status is AttemptStatus.PENDING and not self._is_over(row)
            for row in self.database.committed.attempts.values()
        )

    def describe(self, step: Step) -> str:
        """Return a step in words."""
        match step:
            case (kind, int(position)) if kind not in NOT_OF_STATEMENTS:
                statement = self.statements[position]
                place = f"of process {self.owners[statement].number}"
                orphan = " (nobody waits)" if statement.is_orphan else ""
                return f"{kind}: {statement.name} {place}, step {statement.steps_done}{orphan}"
            case _:
                return ": ".join(map(str, step))

    def end(self) -> None:
        """Stop everything."""
        for process in self.processes.values():
            process.end()


def _answer(task: asyncio.Task[Answer]) -> object:
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, StrettoError):
        return type(error)
    raise error
