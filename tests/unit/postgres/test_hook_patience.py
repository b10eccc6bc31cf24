"""How long a hook may take: less while others wait for it, and more where it is slow for all."""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

import pytest

from races.stepped_loop import SteppedLoop
from stretto.creation.suspects import HANG_RATIO
from stretto.domain import UserId
from stretto.errors import GroupRejected
from stretto.postgres import hook_patience
from stretto.postgres.hook_patience import ALONE_RATIO, ENDED_MAX, HookPatience
from stretto.postgres.stalls import ENDED_OWNERS_MAX, TimesAlone

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Arguments = ParamSpec("Arguments")

ALICE, BOB = UserId("alice"), UserId("bob")
MAX_SECONDS, STALL_SECONDS, ALONE_SECONDS = 0.3, 0.1, 0.05


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundredths of a second."""
    monkeypatch.setattr(hook_patience, "STALL_SECONDS", STALL_SECONDS)
    monkeypatch.setattr(hook_patience, "ALONE_SECONDS", ALONE_SECONDS)
    monkeypatch.setattr(hook_patience, "LOOK_SECONDS", 0.05)


def without_waiting(
    play: Callable[Arguments, Coroutine[object, object, None]],
) -> Callable[Arguments, None]:
    """Run the test on a clock that jumps to the next timer: it takes no time, and none is late."""

    @wraps(play)
    def run(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        SteppedLoop().run(play(*arguments, **options)).result()

    return run


async def waited(
    patience: HookPatience, *owners: UserId, seconds: float = 60, is_hasty: bool = True
) -> tuple[float, bool]:
    """Run a hook of so many seconds; return its time and whether it has come to its end."""
    hook = asyncio.create_task(asyncio.sleep(seconds))
    longest = await patience.wait(hook, owners, MAX_SECONDS, is_hasty=is_hasty)
    is_done = hook.done()
    hook.cancel()
    return longest, is_done


@pytest.mark.parametrize(
    ("owners", "is_hasty", "others_wait", "longest"),
    [
        ((ALICE, BOB), True, False, STALL_SECONDS),
        ((ALICE,), True, False, ALONE_SECONDS),
        ((ALICE,), False, True, STALL_SECONDS),
        ((ALICE, ALICE), True, True, STALL_SECONDS),
    ],
)
@without_waiting
async def test_a_hook_is_ended_early_where_others_wait(
    owners: tuple[UserId, ...], is_hasty: bool, others_wait: bool, longest: float
) -> None:
    """In its batch, beside it while a batch is taken apart, or in the mailbox."""
    patience = HookPatience(lambda: others_wait, TimesAlone())
    assert (longest, False) == await waited(patience, *owners, is_hasty=is_hasty)


@pytest.mark.parametrize(("owners", "is_hasty"), [((ALICE,), False), ((ALICE, ALICE), True)])
@without_waiting
async def test_a_hook_that_keeps_no_other_waiting_has_all_of_its_time(
    owners: tuple[UserId, ...], is_hasty: bool
) -> None:
    """One owner's alone; it is ended as soon as another request comes."""
    waiting = False
    patience = HookPatience(lambda: waiting, TimesAlone())
    assert (MAX_SECONDS, False) == await waited(patience, *owners, is_hasty=is_hasty)
    assert (MAX_SECONDS, True) == await waited(patience, *owners, is_hasty=is_hasty, seconds=0.15)


@without_waiting
async def test_a_hook_may_take_several_times_as_long_as_of_late() -> None:
    """Where it is slow for all, it is not ended for that; quick ones make that be forgotten."""
    patience = HookPatience(lambda: False, TimesAlone())
    for owner in (ALICE, BOB):
        await waited(patience, owner, seconds=0.15, is_hasty=False)
    assert (MAX_SECONDS, False) == await waited(patience, ALICE, BOB)
    await waited(patience, ALICE, seconds=0)
    assert (STALL_SECONDS, False) == await waited(patience, ALICE, BOB)


@without_waiting
async def test_a_request_alone_has_less_of_that_time_and_enough_to_tell_a_hang() -> None:
    """Each that hangs keeps the next from being tried; a shorter hang would say nothing."""
    patience = HookPatience(lambda: False, TimesAlone())
    for owner in (ALICE, BOB):
        await waited(patience, owner, seconds=0.06, is_hasty=False)
    longest, is_done = await waited(patience, BOB)
    assert pytest.approx(ALONE_RATIO * 0.06) == longest
    assert not is_done
    assert (MAX_SECONDS, False) == await waited(patience, ALICE, BOB)
    assert HANG_RATIO < ALONE_RATIO


@without_waiting
async def test_a_hook_that_is_ended_again_and_again_counts_as_slow_for_all() -> None:
    """Without a success in between; one success ends that."""
    patience = HookPatience(lambda: False, TimesAlone())
    for number in range(ENDED_MAX):
        assert (ALONE_SECONDS, False) == await waited(patience, UserId(f"bad{number}"))
    assert (MAX_SECONDS, True) == await waited(patience, BOB, seconds=0.02)
    await waited(patience, ALICE, seconds=0)
    for number in range(ENDED_MAX):
        await waited(patience, UserId(f"bad{number}"))
    assert (MAX_SECONDS, False) == await waited(patience, ALICE)


@without_waiting
async def test_an_owner_whose_hook_was_ended_early_has_the_time_of_a_batch_once_more() -> None:
    """It may be slower than others', and needs that time again; one that hangs has no third."""
    times = TimesAlone()
    patience = HookPatience(lambda: False, times)
    longest = [(await waited(patience, ALICE))[0] for _ in range(4)]
    assert [ALONE_SECONDS, STALL_SECONDS, ALONE_SECONDS, ALONE_SECONDS] == longest
    assert (ALONE_SECONDS, False) == await waited(patience, BOB)
    for _ in range(3):
        times._seconds.clear()
        # Of another writer, which shares the times.
        other = HookPatience(lambda: False, times)
        assert (MAX_SECONDS, True) == await waited(other, BOB, seconds=STALL_SECONDS * 0.9)
    await waited(patience, BOB, seconds=0)
    times._seconds.clear()
    assert (ALONE_SECONDS, False) == await waited(patience, BOB)


def test_who_was_ended_is_remembered_in_a_bounded_number() -> None:
    """The oldest is forgotten."""
    times = TimesAlone()
    for number in range(ENDED_OWNERS_MAX + 1):
        times.note_ended(UserId(f"bad{number}"))
    assert not times.has_chance(UserId("bad0"))
    assert times.has_chance(UserId("bad1"))
    assert ENDED_OWNERS_MAX == len(times._chances)


@without_waiting
async def test_a_series_of_ends_earns_one_long_trial() -> None:
    """Of a request alone: a flood of hangs must not cost all of a write's time for each."""
    patience = HookPatience(lambda: False, TimesAlone())
    for _ in range(ENDED_MAX):
        await waited(patience, ALICE)
    assert (STALL_SECONDS, False) == await waited(patience, ALICE, BOB)
    assert (MAX_SECONDS, False) == await waited(patience, BOB)
    assert (ALONE_SECONDS, False) == await waited(patience, ALICE)


async def failing(seconds: float) -> None:
    """Fail after so many seconds."""
    await asyncio.sleep(seconds)
    raise GroupRejected("no", "No.")


@pytest.mark.parametrize("is_cancelled", [False, True])
@without_waiting
async def test_a_hook_that_does_not_succeed_says_nothing_of_the_usual_time(
    is_cancelled: bool,
) -> None:
    """One who is refused at once would take the time from all whose hooks take long."""
    patience = HookPatience(lambda: False, TimesAlone())
    for owner in (ALICE, BOB):
        await waited(patience, owner, seconds=0.15, is_hasty=False)
    for owners in ((UserId("carol"),), (ALICE, BOB)):
        hook = asyncio.create_task(failing(0.01))
        if is_cancelled:
            hook.cancel()
        assert MAX_SECONDS == await patience.wait(hook, owners, MAX_SECONDS, is_hasty=True)
        await asyncio.wait({hook})
        assert is_cancelled == hook.cancelled()
        assert is_cancelled or isinstance(hook.exception(), GroupRejected)
    assert (MAX_SECONDS, False) == await waited(patience, ALICE, BOB)


@without_waiting
async def test_a_hook_that_fails_after_long_shows_how_long_hooks_take() -> None:
    """Where hooks take long and are refused then, each would be ended before its veto."""
    patience = HookPatience(lambda: False, TimesAlone())
    hook = asyncio.create_task(failing(0.15))
    await patience.wait(hook, (ALICE,), MAX_SECONDS, is_hasty=False)
    await asyncio.wait({hook})
    assert isinstance(hook.exception(), GroupRejected)
    assert (MAX_SECONDS, False) == await waited(patience, BOB)


@without_waiting
async def test_a_hook_that_fails_is_no_success_between_those_that_were_ended() -> None:
    """Else one who is refused again and again would keep all others from a trial."""
    patience = HookPatience(lambda: False, TimesAlone())
    for _ in range(ENDED_MAX):
        await waited(patience, ALICE)
        hook = asyncio.create_task(failing(0.0))
        await patience.wait(hook, (ALICE, BOB), MAX_SECONDS, is_hasty=True)
        await asyncio.wait({hook})
        assert hook.exception() is not None
    assert (MAX_SECONDS, False) == await waited(patience, BOB)


class Unreadable(Exception):
    """An error of a host's whose truth cannot be asked for."""

    def __bool__(self) -> bool:
        raise AssertionError


@without_waiting
async def test_an_error_is_judged_without_the_hosts_code() -> None:
    """Which may raise, or call an error false."""

    async def fail() -> None:
        raise Unreadable

    hook = asyncio.create_task(fail())
    patience = HookPatience(lambda: False, TimesAlone())
    assert MAX_SECONDS == await patience.wait(hook, (ALICE,), MAX_SECONDS, is_hasty=True)
    assert isinstance(hook.exception(), Unreadable)
