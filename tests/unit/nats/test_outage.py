"""An outage of the database, as commands meet it: which of them is tried, and when it is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from stretto.errors import AttemptPending, DatabaseUnavailable, KeyReused
from stretto.nats import outage as outage_module
from stretto.nats.outage import Outage
from stretto.store_errors import Misconfigured, OutcomeUnknown, Unreachable

if TYPE_CHECKING:
    from stretto.errors import StrettoError


def unavailable(cause: Exception) -> DatabaseUnavailable:
    """Return the error of a command for which the database did not do its part."""
    error = DatabaseUnavailable()
    error.__cause__ = cause
    return error


AWAY = unavailable(Unreachable("away"))


def meet(outage: Outage, error: StrettoError) -> int:
    """Try a command, which meets this error, if it may be tried; return how many were."""
    tried = 0
    try:
        with outage.trial():
            tried = 1
            raise error
    except type(error):
        return tried


def away() -> Outage:
    """Return an outage that has begun."""
    outage = Outage()
    meet(outage, AWAY)
    assert not outage.is_over
    return outage


async def test_each_turn_of_an_outage_lets_one_command_be_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others are put off without a try; those that were handed out end with a failure."""
    monkeypatch.setattr(outage_module, "TRY_SECONDS", 0.0)
    outage = away()
    for turns, tried in ((0, 0), (1, 1), (3, 1)):
        for _ in range(turns):
            await outage.turn()
        assert tried == sum(meet(outage, AWAY) for _ in range(5))


async def test_turns_are_waited_for_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many fetchers there are, the database is tried at a bounded rate."""
    seconds = 0.1
    monkeypatch.setattr(outage_module, "TRY_SECONDS", seconds)
    outage, clock = away(), asyncio.get_running_loop().time
    began = clock()
    await asyncio.gather(*(outage.turn() for _ in range(3)))
    assert clock() - began >= 2.9 * seconds


async def test_a_success_ends_the_outage_for_all_that_wait() -> None:
    """At once: nothing waits for its pause to end."""
    outage = away()
    outage._tries = 1
    waiting = [asyncio.create_task(outage.turn()) for _ in range(16)]
    await asyncio.sleep(0)
    with outage.trial():
        pass
    assert outage.is_over
    async with asyncio.timeout(outage_module.TRY_SECONDS / 2):
        await asyncio.gather(*waiting)
    with outage.trial():
        pass


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        (True, KeyReused()),
        (True, unavailable(Misconfigured("no table"))),
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
    outage = away()
    outage._tries = 1
    meet(outage, error)
    assert ends == outage.is_over


async def test_what_fails_while_others_succeed_begins_no_outage() -> None:
    """Some of the connections are away: the command is put off by itself."""
    outage = Outage()

    def fail_behind_another() -> None:
        with outage.trial():
            with outage.trial():
                pass
            raise AWAY

    with pytest.raises(DatabaseUnavailable):
        fail_behind_another()
    assert outage.is_over
