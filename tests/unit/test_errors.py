"""What an error keeps when it has been answered."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from dataclasses import dataclass

from stretto.errors import HookFailed, NotFound
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
