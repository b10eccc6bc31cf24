"""What an error keeps when it has been answered."""

from __future__ import annotations

import gc
import pickle
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

import stretto
from stretto import errors, misuse, start_errors
from stretto.errors import Failure, FieldError, HookFailed, NotFound, Retry
from stretto.http.problems import drop_frames


class Witness:
    """Something that a frame knows of."""


def raised(witness: Witness) -> Exception:
    """Return an error with a cause and a context; the frames of all three know the witness."""
    try:
        try:
            try:
                raise KeyError(witness)  # noqa: TRY301 three errors are wanted
            except KeyError:
                raise OSError from None
        except OSError as cause:
            raise NotFound from cause
    except NotFound as error:
        return error


def test_an_error_and_what_caused_it_lose_their_frames() -> None:
    """Its causes as well: each of them has passed frames of its own."""
    error = raised(Witness())
    assert error.__cause__ is not None
    assert error.__cause__.__traceback__ is not None
    drop_frames(error)
    assert error.__traceback__ is None
    assert error.__cause__.__traceback__ is None
    drop_frames(None)


def test_an_error_that_its_frame_knows_is_freed_at_once() -> None:
    """Without the collector; the twin, which keeps its frames, is not."""

    def fail(*, drops: bool) -> weakref.ref[Witness]:
        witness = Witness()
        try:
            int("nothing")
        except ValueError as error:
            kept = error
        if drops:
            drop_frames(kept)
        return weakref.ref(witness)

    gc.disable()
    try:
        assert fail(drops=True)() is None
        assert fail(drops=False)() is not None
    finally:
        gc.enable()


@dataclass(frozen=True)
class _Frozen(Exception):
    rule: str

    def __bool__(self) -> bool:
        raise RuntimeError


def test_a_hosts_error_of_any_kind_loses_its_frames() -> None:
    """It may refuse attributes, and what is chained by hand may be a circle."""
    frozen, last = _Frozen("no"), ValueError()
    BaseException.__dict__["__context__"].__set__(frozen, last)
    last.__context__ = frozen
    failed = HookFailed()
    failed.__cause__ = frozen
    for error in (frozen, last):
        with suppress(Exception):
            raise error
    drop_frames(failed)
    assert [None, None] == [frozen.__traceback__, last.__traceback__]


# What those take whose constructors take more than a text.
ARGUMENTS: dict[type[BaseException], tuple[Any, ...]] = {
    stretto.AttemptFailed: (Failure("quota", "Ten groups are enough."),),
    stretto.ChangeRefused: (Failure("last_owner", "A group keeps one owner."),),
    stretto.ClientError: ("key_reused", "Take another one.", Retry.NEW_KEY, Failure("a", "b")),
    stretto.GroupRejected: ("quota", "Ten groups are enough."),
    errors.RequestInvalid: ([FieldError("/name", "is required")],),
    misuse.CreatedInHook: ("on_create",),
    misuse.NotStarted: (),
    misuse.WrongEventLoop: (),
}
PUBLIC = [
    *(each for module in (errors, misuse, start_errors) for each in vars(module).values()),
    *(getattr(stretto, name) for name in stretto.__all__),
]


@pytest.mark.parametrize(
    "kind",
    sorted(
        {each for each in PUBLIC if isinstance(each, type) and issubclass(each, BaseException)},
        key=str,
    ),
)
def test_an_error_crosses_processes_as_it_is(kind: type[BaseException]) -> None:
    """A pool of processes breaks with one that cannot be read there."""
    error = kind(*ARGUMENTS.get(kind, ("a text",)))
    if isinstance(error, stretto.StrettoError):
        error.retry_after_seconds = 3
    copy = pickle.loads(pickle.dumps(error))
    assert (kind, str(error), error.args) == (type(copy), str(copy), copy.args)
    assert vars(error) == vars(copy)
