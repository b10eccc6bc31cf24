"""What counts as a veto where a host's hook raises more than one error."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Final

import pytest

from stretto.errors import GroupRejected
from stretto.store_errors import HookError, Refused
from support.both_stores import write
from support.database import groups
from support.hooked_stores import led_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stretto.postgres.hook import OnCreate
    from support.database import Connection
    from support.hooked_stores import Stores

NESTED: Final = 2_000


def _veto(code: str = "quota") -> GroupRejected:
    return GroupRejected(code, "Ten groups are enough.")


class _OtherVeto(GroupRejected):
    """Says more than we know of."""

    def __init__(self) -> None:
        super().__init__("quota", "Ten groups are enough.")


class _WrongVeto(GroupRejected):
    """Has something else where the failure should be."""

    def __init__(self) -> None:
        super().__init__("quota", "Ten groups are enough.")
        self.failure = "quota"  # type: ignore[assignment]


def _in_tasks(*errors: Exception) -> OnCreate:
    """Return a hook that raises them in the tasks of a group."""

    async def fail(error: Exception) -> None:
        raise error

    async def hook(*_: object) -> None:
        async with asyncio.TaskGroup() as tasks:
            for error in errors:
                tasks.create_task(fail(error))

    return hook


def _group(*errors: Exception) -> Exception:
    return ExceptionGroup("of a task group in a task group", errors)


def _deep(error: Exception) -> Exception:
    for _ in range(NESTED):
        error = _group(error)
    return error


@pytest.mark.parametrize(
    "errors",
    [
        [_veto()],
        [_OtherVeto()],
        [_veto(), _veto("blocked")],
        [_group(_veto(), _veto("blocked")), _veto("closed")],
        [_deep(_veto())],
    ],
    ids=["one", "subclass", "two", "nested", "deep"],
)
async def test_a_task_group_of_nothing_but_vetoes_is_the_veto(
    errors: Sequence[Exception], stores: Stores, connection: Connection
) -> None:
    """The first of them is what the client gets."""
    with pytest.raises(Refused) as refused:
        await led_by(stores(_in_tasks(*errors)))
    assert "quota" == refused.value.failure.code
    assert await groups(connection) == 0


@pytest.mark.parametrize(
    "errors",
    [[_veto(), RuntimeError()], [RuntimeError(), _veto()], [_group(_veto(), OSError())]],
    ids=["before", "behind", "nested"],
)
async def test_a_veto_beside_any_other_error_is_none(
    errors: Sequence[Exception], stores: Stores
) -> None:
    """A bug burns no key: it is unknown what the hook would have said without it."""
    hooks = [_in_tasks(*errors), _in_tasks()]

    async def hook(*arguments: object) -> None:
        await hooks.pop(0)(*arguments)  # type: ignore[arg-type]

    store, ours = stores(hook), write("k")
    await store.claim([ours])
    with pytest.raises(HookError, match="on_create raised ExceptionGroup"):
        await store.lead([ours])
    assert {ours.claim_token} == await store.lead([ours])


@pytest.mark.parametrize("is_veto", [True, False], ids=["hook", "database"])
async def test_a_refusal_says_whether_the_hook_or_the_database_has_refused(
    is_veto: bool, stores: Stores, connection: Connection
) -> None:
    """An owner who is refused again and again is answered by that."""
    if not is_veto:
        await connection.execute(
            """ALTER TABLE chat_group ADD CONSTRAINT operators CHECK (name IS NULL) NOT VALID"""
        )
    with pytest.raises(Refused) as refused:
        await led_by(stores(_in_tasks(*[_veto()] * is_veto)))
    assert is_veto == refused.value.is_veto


async def test_a_veto_without_a_failure_is_none(stores: Stores) -> None:
    """A subclass may have put anything there; the writer goes on."""
    with pytest.raises(HookError, match="on_create raised ExceptionGroup"):
        await led_by(stores(_in_tasks(_WrongVeto())))


@pytest.mark.parametrize(
    ("frames", "error"), [(0, _veto()), (2, ValueError()), (2, GeneratorExit())]
)
async def test_an_error_that_is_raised_again_and_again_keeps_the_frames_of_one_time(
    frames: int, error: BaseException, stores: Stores
) -> None:
    """A constant of the host's module would grow by a traceback, and keep all that it refers to."""

    async def fail(*_: object) -> None:
        raise error

    store = stores(fail)
    for key in ("a", "b", "c"):
        with pytest.raises((HookError, Refused)):
            await led_by(store, key)
        assert frames == len([*traceback.walk_tb(error.__traceback__)])
