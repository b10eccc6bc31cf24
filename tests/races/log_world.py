"""A log, one process that follows it, and its clients, in a world where nothing happens by itself.

The process runs the real tail, hub, sessions, catch-up and history reader. Their statements wait
until the explorer takes a step: `steps()` lists all that may happen next, `take()` lets one of it
happen and every party react. A step is one of

- commit: of a transaction that runs, in any order;
- join: a client opens a session: one that is new, or one that has missed everything;
- turn: the tail begins a turn, if it could find something new;
- see: a statement gets its snapshot, and its result is on its way;
- hear: the result arrives; after each step, live sessions get a heartbeat with their position;
- send: the task of a live session has its turn, if such turns are steps: its queue may overflow before;
- crash: the server crashes; statements that were not answered fail. Its last asynchronous commit is
  forgotten, whose id the next transaction gets.

An event goes to all clients, or to none. They come back at once, where they were, when their session is closed.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from races.log_client import Client
from races.stepped_loop import SteppedLoop
from stretto.domain import UserId
from stretto.events.catch_up import CatchUp
from stretto.events.history_reader import HistoryReader
from stretto.events.hub import SessionHub
from stretto.events.place import Place
from stretto.events.settings import HubSettings
from stretto.events.tail import LogTail
from stretto.runtime.mailbox import Mailbox
from stretto.store_errors import StoreError, Unreachable
from support.memory_log import MemoryLog, page_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from stretto.events.log import LogPage
    from stretto.events.scan import Ask, Stretch

ALICE: Final = UserId("alice")
BOB: Final = UserId("bob")
# An overflow needs one event more, of which a page may have two.
QUEUE_MAX: Final = 1
FOR_EVER: Final = float("inf")

Step = tuple[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScenario:
    """What is explored."""

    transactions: tuple[int, ...] = (1, 1)
    """How many events each has; one without any commits asynchronously."""
    others: int = 0
    """How many of them have events of another user."""
    clients: tuple[bool, ...] = (False,)
    """Whether each begins at the present, or has missed everything."""
    crashes: int = 0
    after_crash: tuple[int, ...] = ()
    """The transactions that begin after a crash, in the place of those that ran."""
    beats: bool = False
    """Whether live sessions get a heartbeat with their position after each step."""
    slow: bool = False
    """Whether the tasks of live sessions wait for a step of their own before they take events."""


@dataclass(slots=True, eq=False)
class Pending:
    """A statement on its way."""

    owner: str
    arguments: tuple[object, ...]
    read: Callable[[], Any]
    answered: asyncio.Future[Any]
    seen: Any = None


class LogWorld:
    """Everything in one state."""

    def __init__(self, scenario: LogScenario) -> None:
        self.scenario = scenario
        self.loop = SteppedLoop()
        self.log = MemoryLog()
        self.epoch = 0
        """Grows with whatever a reader could notice."""
        self.pending: list[Pending] = []
        self.crashes_left = scenario.crashes
        self.hub = SessionHub(HubSettings(session_events_max=QUEUE_MAX), lambda _: None, lambda: 0)
        self.tail = LogTail(cast("Any", _Store(self, "tail")), self.hub, lambda _: None)
        mailbox: Mailbox[Ask, Stretch] = Mailbox(100)
        self.mailbox = mailbox
        self.reader = HistoryReader(
            mailbox, _Store(self, "reader"), lambda _: None, self.hub.turns.catching_up
        )
        self._ended: list[BaseException | None] = []
        """Why clients that should stay for ever have ended."""
        self._tasks: list[asyncio.Task[None]] = []
        """All that were begun."""
        self._turn: asyncio.Task[None] | None = None
        self._looked = -1
        """The epoch at which the tail looked last."""
        self._begin(scenario.transactions)
        begin = str(self.log.look().place)
        self.clients = [
            Client(number, begin if has_missed else None)
            for number, has_missed in enumerate(scenario.clients)
        ]
        for client in self.clients:
            if client.position is not None:
                client.first = Place.parse(client.position)
        self.to_join = list(self.clients)
        self._tasks.append(self.loop.run(self._read_on()))

    def _begin(self, transactions: Sequence[int]) -> None:
        for number, events in enumerate(transactions):
            position = self.log.begin()
            for _ in range(events):
                self.log.write(position, BOB if number < self.scenario.others else ALICE)

    def steps(self) -> list[Step]:
        """Return all that may happen next."""
        steps: list[Step] = [("commit", position) for position in sorted(self.log.running)]
        steps += [
            ("see" if pending.seen is None else "hear", number)
            for number, pending in enumerate(self.pending)
        ]
        if self.to_join:
            steps.append(("join", self.to_join[0].number))
        is_at_rest = self._turn is None or self._turn.done()
        if is_at_rest and self.hub and (self.hub.place is None or self._looked != self.epoch):
            steps.append(("turn", 0))
        if self.crashes_left:
            steps.append(("crash", 0))
        steps += [("send", each.number) for each in self.clients if each.has_to_send]
        return steps

    def take(self, step: Step) -> None:
        """Let one thing happen, and every party react to it."""
        match step:
            case ("commit", position):
                self.log.commit(position)
                self.epoch += 1
            case ("see", number):
                pending = self.pending[number]
                pending.seen = pending.read()
                if pending.owner == "tail":
                    self._looked = self.epoch
            case ("hear", number):
                pending = self.pending.pop(number)
                pending.answered.set_result(pending.seen)
            case ("join", _):
                staying = self.loop.create_task(self._stay(self.to_join.pop(0)))
                staying.add_done_callback(self._note_end)
                self._tasks.append(staying)
            case ("turn", _):
                self._turn = self.loop.create_task(self._turn_once())
                self._tasks.append(self._turn)
            case ("send", number):
                turn = self.clients[number].turn
                assert turn is not None
                turn.set_result(None)
            case ("crash", _):
                self.crashes_left -= 1
                self.log.crash(0)
                self._begin(self.scenario.after_crash)
                self.epoch += 1
                failed, self.pending = self.pending, []
                for pending in failed:
                    pending.answered.set_exception(Unreachable("the server has crashed"))
        self.loop.run_until_idle()
        if self.scenario.beats:
            self._beat()
        assert not self.loop.faults, self.loop.faults[0]
        assert not self._ended, self._ended[0]

    def _beat(self) -> None:
        """Let each client of a live session get the position of a heartbeat."""
        for client in self.clients:
            if client.session is None:
                continue
            position = client.session.position(self.hub.delivered)
            if position not in (None, client.position):
                client.place(position)

    def judge(self) -> None:
        """Nothing more happens: each client has had everything, and could resume anywhere."""
        for client in self.clients:
            assert client.first is not None, "a session never began"
            due = {
                event.event.event_id.int
                for event in self.log.events
                if ALICE in event.event.recipients
                and not client.first.covers(event.history.number, event.position)
            }
            missed = due - {*client.heard}
            assert not missed, f"client {client.number} was never sent {missed}"
            for position, had in client.sent:
                page = page_of(self.log, Place.parse(position), 1000)
                missed = due - had - {event.event.event_id.int for event in page.events}
                assert not missed, f"a client that resumes at {position} is never sent {missed}"

    def key(self) -> object:
        """Return all that distinguishes this state from another one."""
        clients = [
            (
                client.position,
                tuple(client.sent),
                tuple(client.heard_in_session),
                # One without queued events is false, but it has a state.
                client.session is not None
                and (
                    [each.event.event_id.int for each in client.session._queue],
                    client.session._live_from,
                    client.session._has_overflowed,
                    client.session.close_code,
                    client.session.is_behind,
                    client.session._is_sending,
                    client.session._is_stuck,
                    client.turn is not None and client.turn.done(),
                ),
                client.catch_up and (client.catch_up._place, client.catch_up._is_end),
            )
            for client in self.clients
        ]
        pending = [(each.owner, each.arguments, _likeness(each.seen)) for each in self.pending]
        commits = [(commit.position, len(commit.events)) for commit in self.log.commits]
        log = commits, sorted(self.log.running), self.crashes_left
        is_at_rest = self._turn is None or self._turn.done()
        tail = self.hub.place, self.hub.delivered, is_at_rest, self._looked == self.epoch
        joined = len(self.to_join), len(self.hub)
        return repr((clients, pending, log, tail, self._reading(), joined))

    def _reading(self) -> object:
        """Return where the history reader is, and whom it reads for."""
        turn = cast("Any", self._tasks[0].get_coro()).cr_await.cr_frame.f_locals
        now = self.loop.time()
        waiting = [
            (each.request.message.user, each.place, each.since_page, now >= each.answer_at)
            for each in turn.get("waiting", ())
        ]
        return turn.get("number"), waiting, self.reader._scan._scanned, len(self.mailbox)

    def end(self) -> None:
        """End every task where it waits, the newest first.

        The collector would close them in any order, some of them behind what they still use.
        """
        self.loop.is_dead = True
        for task in reversed(self._tasks):
            task.cancel()
            self.loop.run_until_idle()
        assert all(task.done() for task in self._tasks)

    async def ask(self, owner: str, arguments: tuple[object, ...], read: Callable[[], Any]) -> Any:
        """Send a statement, and wait for its answer."""
        pending = Pending(owner, arguments, read, self.loop.create_future())
        self.pending.append(pending)
        return await pending.answered

    def _note_end(self, staying: asyncio.Task[None]) -> None:
        if not self.loop.is_dead:
            self._ended.append(staying.exception())

    async def _turn_once(self) -> None:
        with suppress(StoreError):
            await self.tail.run_once()

    async def _read_on(self) -> None:
        while True:
            await self.reader.run_once()

    async def _stay(self, client: Client) -> None:
        for _ in itertools.count():
            client.heard_in_session = []
            with suppress(StoreError):
                await self._listen(client)

    async def _listen(self, client: Client) -> None:
        place = None if client.position is None else Place.parse(client.position)
        with self.hub.session(ALICE, FOR_EVER) as client.session:
            client.catch_up = CatchUp(self.mailbox, client.session, self.hub, place)
            await client.catch_up.begin()
            async with client.session.until_closed():
                client.place(client.catch_up.position)
                while True:
                    while (missed := await client.catch_up.next()) is not None:
                        for outgoing in missed:
                            client.hear(outgoing)
                    client.place(client.catch_up.position)
                    while not client.session.is_behind:
                        await self._send_next(client)
                    self.hub.fall_back(client.session)
                    assert client.position is not None
                    client.catch_up = client.catch_up.again(client.position)
                    await client.catch_up.begin()

    async def _send_next(self, client: Client) -> None:
        if self.scenario.slow:
            client.turn = self.loop.create_future()
            await client.turn
        for outgoing in await client.session.take():
            client.hear(outgoing)


class _Store:
    """The log as a part of the process reads it: a connection is always there."""

    def __init__(self, world: LogWorld, owner: str) -> None:
        self._world = world
        self._owner = owner

    async def listen(self, on_announced: Callable[[], None]) -> None:
        """Nothing is announced: the tail looks whenever it could find something."""

    async def close(self) -> None:
        """Nothing is kept."""

    async def present(self) -> Place:
        """Return the place that covers what is visible."""
        world = self._world
        place: Place = await world.ask(self._owner, (), lambda: world.log.look().place)
        return place

    async def page(
        self, begin: Place, events_max: int, users: Sequence[UserId] | None = None
    ) -> LogPage:
        """Return a page."""
        world = self._world
        arguments = begin, events_max
        page: LogPage = await world.ask(
            self._owner, arguments, lambda: page_of(world.log, *arguments, users)
        )
        return page


def _likeness(seen: Any) -> object:
    """Return what distinguishes the results of two statements."""
    if seen is None or isinstance(seen, Place):
        return seen
    return seen.place, [event.event.event_id.int for event in seen.events]
