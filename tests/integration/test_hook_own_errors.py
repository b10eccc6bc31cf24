"""A hook's error is an object of the host's own: it may refuse to be changed, or to be read."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import asyncpg
import pytest

from stretto.errors import Failure, GroupRejected
from stretto.kinds import name_of
from stretto.store_errors import HookError, Refused
from support.both_stores import write
from support.hooked_stores import led_by
from support.leaving_veto import LeavingVeto

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from support.hooked_stores import Stores


@dataclass(frozen=True)
class _Frozen(Exception):
    """As many a host writes its errors."""

    rule: str


@dataclass(frozen=True)
class _FrozenVeto(GroupRejected):
    """Does not call our constructor: its texts are not ours either."""

    count: int
    failure = Failure("quota_exceeded" * 10, "Ten groups\0 are enough.")


class _OddFailure(GroupRejected):
    def __init__(self) -> None:
        self.failure = Failure("quota", None)  # type: ignore[arg-type]


class _OddGroup(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> NoReturn:
        raise RuntimeError


class _OddTraceback(Exception):
    @property
    def __traceback__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError


class _Unreadable(Exception):
    """Its class cannot be read either."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise RuntimeError


class _Leaving(Exception):
    """To read it ends the process."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise SystemExit(3)


class _Nameless(type):
    @property
    def __name__(cls) -> NoReturn:  # type: ignore[override]
        raise RuntimeError


class _OfNoName(Exception, metaclass=_Nameless):
    """Its class does not say its name."""


class _Closed(type):
    def __getattribute__(cls, name: str) -> NoReturn:
        raise RuntimeError


class _OfNoClass(Exception, metaclass=_Closed):
    """Its class says nothing, not even to a traceback."""


class _OddMessage:
    def __str__(self) -> NoReturn:
        raise RuntimeError


class _FixedDetail(asyncpg.PostgresError):
    """Its detail cannot be removed."""

    @property
    def detail(self) -> str:  # type: ignore[override]
        return "alice's row"


def _odd_state() -> Exception:
    error: Any = asyncpg.PostgresError("odd")
    error.sqlstate = 12345
    return error  # type: ignore[no-any-return]


async def _failure_of(lead: Awaitable[object]) -> HookError:
    try:
        await lead
    except HookError as failed:
        return failed
    except (Exception, SystemExit) as crash:  # noqa: BLE001 pytest cannot show what led to it
        message = f"the writer would crash: {type(crash)!r}"
        raise AssertionError(message) from None
    message = "it did not fail"
    raise AssertionError(message)


@pytest.mark.parametrize(
    ("is_shown", "error"),
    [
        (True, _Frozen("no")),
        (True, _OddFailure()),
        (False, _OddGroup("odd", [ValueError()])),
        (False, _OddTraceback()),
        (False, _Unreadable()),
        (False, _Leaving()),
        (True, LeavingVeto("quota", "No.")),
        (True, _OfNoName()),
        (False, _OfNoClass()),
        (True, _odd_state()),
        (False, asyncpg.PostgresError(_OddMessage())),
        (False, _FixedDetail("fixed")),
    ],
    ids=[
        *("frozen", "failure", "group", "traceback", "unreadable", "leaving", "leaving veto"),
        *("nameless", "closed", "sqlstate", "message", "detail"),
    ],
)
async def test_an_error_of_any_kind_is_a_failed_hook(
    is_shown: bool, error: Exception, stores: Stores
) -> None:
    """It says its type, burns nothing, and shows a traceback where that can be read."""
    errors = [error]

    async def hook(*_: object) -> None:
        if errors:
            raise errors.pop()

    store, ours = stores(hook), write("k")
    await store.claim([ours])
    failed = await _failure_of(store.lead([ours]))
    assert str(failed).startswith(f"on_create raised {name_of(error)}")
    assert (error if is_shown else None) is failed.__cause__
    shown = "".join(traceback.format_exception(failed))
    assert is_shown == ("in hook" in shown)
    assert "alice" not in shown
    assert {ours.claim_token} == await store.lead([ours])


def test_a_class_is_named_as_it_was_written() -> None:
    """Whatever its metaclass makes of that."""
    assert ["_Frozen", "_OfNoName", "_OfNoClass"] == [
        name_of(error) for error in (_Frozen("no"), _OfNoName(), _OfNoClass())
    ]


async def test_a_frozen_veto_is_a_veto(stores: Stores) -> None:
    """With texts that can be stored."""

    async def hook(*_: object) -> None:
        raise _FrozenVeto(3)

    with pytest.raises(Refused) as refused:
        await led_by(stores(hook))
    assert "quota_exceeded" * 4 == refused.value.failure.code[:56]
    assert 64 == len(refused.value.failure.code)
    assert "Ten groups? are enough." == refused.value.failure.detail
