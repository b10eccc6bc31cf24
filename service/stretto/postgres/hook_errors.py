"""What is said about an error of a host's hook: enough to mend the hook, and no row of anybody's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import asyncpg

from stretto.errors import Failure, GroupRejected
from stretto.postgres.hook_handle import HandleMisused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

# Messages of this class quote the data that is wrong (`invalid input syntax for integer: "alice"`);
# what others quote are names of tables and constraints.
_DATA_CLASS: Final = "22"
_QUOTED: Final = re.compile(r'"[^"]*"')

# A timer that is so late has not waited for a busy loop: nothing could run at all.
BLOCKED_SECONDS_MIN: Final = 1.0


def cause_of(error: BaseException) -> str:
    """Return one sentence: the exception's type; of a server's error its SQLSTATE and message too.

    Our own objections are given in full: they say what to do.
    """
    cause = f"on_create raised {type(error).__name__}"
    if isinstance(error, asyncpg.PostgresError):
        cause += f" ({error.sqlstate}): {_message(error)}"
    elif isinstance(error, HandleMisused):
        cause += f": {error}"
    return cause


def too_late(seconds: float, seconds_max: float) -> str:
    """Return why a hook was not in time: it waited for too long, or nothing else could run."""
    if seconds < seconds_max + BLOCKED_SECONDS_MIN:
        return f"on_create took longer than {seconds_max:g} s"
    return (
        f"the event loop was blocked while on_create ran, for {seconds:.1f} s in all: await what takes"
        " long, or call it by asyncio.to_thread"
    )


def veto_of(error: BaseException) -> Failure | None:
    """Return the veto that an error is, or the first of a group of nothing but vetoes.

    A `TaskGroup` wraps what its tasks raise. Beside any other error it was no veto: that one may have
    kept the hook from what it would have said.
    """
    vetoes = [_own_veto(leaf) for leaf in _leaves(error)]
    return vetoes[0] if all(vetoes) else None


def _own_veto(error: BaseException) -> Failure | None:
    # A subclass that does not call ours has none.
    failure = getattr(error, "failure", None) if isinstance(error, GroupRejected) else None
    return failure if isinstance(failure, Failure) else None


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, or all that it is a group of, however deep, in their order."""
    left = [error]
    while left:
        leaf = left.pop()
        if isinstance(leaf, BaseExceptionGroup):
            left += reversed(leaf.exceptions)
        else:
            yield leaf


def last_raised(error: BaseException, entry: CodeType) -> BaseException:
    """Return the error; of its traceback, what was added since it has last passed this entry.

    An instance that is raised again, such as a constant of the host's module, keeps the frames of each
    time before, and with them what our own refer to: connections, and other owners' groups.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not entry:
        trace = trace.tb_next
    error.__traceback__ = trace
    while trace is not None:
        if trace.tb_next is not None and trace.tb_next.tb_frame.f_code is entry:
            trace.tb_next = None
        trace = trace.tb_next
    return error


def drop_all_frames(error: BaseException) -> None:
    """Drop the tracebacks of a veto and of all that it is a group of: nobody looks for a fault there."""
    for link in _chain(error):
        link.__traceback__ = None


def without_row_data(error: BaseException) -> BaseException:
    """Return the error; servers' errors in its chain keep their message and lose their details.

    A traceback shows each error's text, and PostgreSQL's `DETAIL` quotes whole rows.
    """
    for link in _chain(error):
        if isinstance(link, asyncpg.PostgresError):
            link.args = (_message(link),)
            link.detail = link.hint = None
    return error


def _message(error: asyncpg.PostgresError) -> str:
    text = str(error.args[0]) if error.args else ""
    return _QUOTED.sub('"…"', text) if (error.sqlstate or "").startswith(_DATA_CLASS) else text


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, all that it came from, and all that it is a group of."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        link = left.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        left += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            left += link.exceptions
