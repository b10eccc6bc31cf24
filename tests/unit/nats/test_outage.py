"""An outage of the database, as commands meet it: which of them is tried, and when it is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.errors import AttemptPending, DatabaseUnavailable, KeyReused
from stretto.nats import outage as outage_module
from stretto.nats.outage import Outage
from stretto.store_errors import (
    Exhausted,
    Locked,
    Misconfigured,
    OutcomeUnknown,
    Transient,
    Unreachable,
)

if TYPE_CHECKING:
    from stretto.errors import StrettoError


def unavailable(cause: Exception) -> DatabaseUnavailable:
    """Return the error of a command for which the database did not do its part."""
    error = DatabaseUnavailable()
    error.__cause__ = cause
    return error


AWAY = unavailable(Unreachable("away"))


FULL = unavailable(Exhausted("No space left on device"))


class Database:
    """Stands for the rehearsed write of another owner: raises what it is told, and notes for whom."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.rehearsed: list[str] = []

    async def rehearse(self, owner: str) -> None:
        self.rehearsed.append(owner)
        if self.error is not None:
            raise self.error


async def meet(outage: Outage, error: StrettoError) -> int:
    """Try a command, which meets this error, if it may be tried; return how many were."""
    tried = 0
    try:
        async with outage.trial("alice"):
            tried = 1
            raise error
    except type(error):
        return tried


async def away(error: StrettoError = AWAY, database: Database | None = None) -> Outage:
    """Return an outage that has begun."""
    outage = Outage((database or Database()).rehearse)
    await meet(outage, error)
    assert not outage.is_over
    return outage


async def test_each_turn_of_an_outage_lets_one_command_be_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others are put off without a try; those that were handed out end with a failure."""
    monkeypatch.setattr(outage_module, "TRY_SECONDS", 0.0)
    outage = await away()
    for turns, tried in ((0, 0), (1, 1), (3, 1)):
        for _ in range(turns):
            await outage.turn()
        assert tried == sum([await meet(outage, AWAY) for _ in range(5)])


async def test_turns_are_waited_for_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fetchers there are, the database is tried at a bounded rate."""
    seconds = 0.1
    monkeypatch.setattr(outage_module, "TRY_SECONDS", seconds)
    outage, clock = await away(), asyncio.get_running_loop().time
    began = clock()
    await asyncio.gather(*(outage.turn() for _ in range(3)))
    assert clock() - began >= 2.9 * seconds


async def test_a_success_ends_the_outage_for_all_that_wait() -> None:
    """At once: nothing waits for its pause to end."""
    outage = await away()
    outage._tries = 1
    waiting = [asyncio.create_task(outage.turn()) for _ in range(16)]
    await asyncio.sleep(0)
    async with outage.trial("alice"):
        pass
    assert outage.is_over
    async with asyncio.timeout(outage_module.TRY_SECONDS / 2):
        await asyncio.gather(*waiting)
    async with outage.trial("alice"):
        pass


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        (True, KeyReused()),
        (True, unavailable(Misconfigured("no table"))),
        (True, FULL),
        (False, AWAY),
        # A database that hangs, or whose connection was lost, shows itself so.
        (False, AttemptPending()),
        (False, unavailable(OutcomeUnknown("lost"))),
    ],
)
async def test_only_a_database_that_answers_ends_the_outage(
    ends: bool, error: StrettoError
) -> None:
    """Whether it did what was asked, or not."""
    outage = await away()
    outage._tries = 1
    await meet(outage, error)
    assert ends == outage.is_over


async def test_what_fails_while_others_succeed_begins_no_outage() -> None:
    """Some of the connections are away, or one owner fails: the command is put off by itself."""
    database = Database()
    database.error = Exhausted("full")
    outage = Outage(database.rehearse)

    async def fail_behind_another(error: StrettoError) -> None:
        async with outage.trial("alice"):
            async with outage.trial("bob"):
                pass
            raise error

    for error in (AWAY, FULL):
        with pytest.raises(DatabaseUnavailable):
            await fail_behind_another(error)
        assert outage.is_over
    assert [] == database.rehearsed


@pytest.mark.parametrize("cause", [Exhausted("full"), Misconfigured("permission denied")])
@pytest.mark.parametrize(
    ("begins", "met"),
    [
        (True, Exhausted("full")),
        (True, Misconfigured("permission denied")),
        (True, Unreachable("away")),
        # The write of another owner goes through, or meets what concerns only some writes.
        (False, None),
        (False, Locked("a table")),
    ],
)
async def test_what_a_write_of_another_owner_meets_too_begins_an_outage(
    begins: bool, met: Exception | None, cause: Exception
) -> None:
    """The server is full, or lacks a right; what one owner's trigger raises stops no other."""
    database = Database()
    database.error = met
    outage = Outage(database.rehearse)
    await meet(outage, unavailable(cause))
    assert begins == (not outage.is_over)
    assert ["alice"] == database.rehearsed


@pytest.mark.parametrize("cause", [Transient("deadlock"), Locked("a row")])
async def test_what_other_writes_have_done_to_one_begins_no_outage(cause: Exception) -> None:
    """A deadlock, a lock: nothing is rehearsed for it."""
    database = Database()
    database.error = Exhausted("full")
    outage = Outage(database.rehearse)
    await meet(outage, unavailable(cause))
    assert outage.is_over
    assert [] == database.rehearsed


async def test_an_owner_whose_commands_fail_for_ever_does_not_keep_an_outage_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream gives them again and again; it ends once another owner's write goes through."""
    monkeypatch.setattr(outage_module, "REHEARSAL_SECONDS", 0.0)
    database = Database()
    database.error = Exhausted("full")
    outage = await away(FULL, database)
    database.error = None
    outage._tries = 1
    await meet(outage, FULL)
    assert outage.is_over


async def test_commands_that_fail_together_share_a_rehearsal() -> None:
    """Each is a connection, and there are as many commands as workers."""
    database = Database()
    outage = Outage(database.rehearse)
    await asyncio.gather(*(meet(outage, FULL) for _ in range(32)))
    assert ["alice"] == database.rehearsed
