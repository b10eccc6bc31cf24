"""What a host's code raises to end its process ends no event loop."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import dataclass

import pytest

from stretto.runtime.exits import ExitAsError


@dataclass(frozen=True)
class Frozen(Exception):
    """Refuses attributes, as a host's own error may."""

    text: str = ""


def raised_in_it(error: BaseException) -> BaseException:
    """Return what comes out when the host's code raises this."""
    try:
        with ExitAsError("publish"):
            raise error  # noqa: TRY301 as the host does
    except BaseException as seen:  # noqa: BLE001 of any kind
        return seen


@pytest.mark.parametrize("error", [SystemExit(7), KeyboardInterrupt()])
def test_an_exit_is_an_error(error: BaseException) -> None:
    """With the name of what has raised it, and the exit as its cause."""
    seen = raised_in_it(error)
    assert (RuntimeError, f"publish raised {type(error).__name__}") == (type(seen), str(seen))
    assert seen.__cause__ is error


@pytest.mark.parametrize(
    "error", [LookupError(), asyncio.CancelledError(), GeneratorExit(), Frozen()]
)
def test_any_other_error_is_raised_as_it_is(error: BaseException) -> None:
    """No frame of ours is in its traceback."""
    seen = raised_in_it(error)
    assert seen is error
    assert ["raised_in_it"] == [each.name for each in traceback.extract_tb(seen.__traceback__)]


def test_nothing_happens_where_nothing_is_raised() -> None:
    """What the host returns goes on."""
    with ExitAsError("publish"):
        pass
