"""What an error of a host's code says: a veto, or where the host has to look.

The error is the host's own object: it may refuse attributes, as a frozen dataclass does, or have others
in their place. So what Python keeps of it is written by the descriptors of `BaseException`, and it is
judged by `is_a`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stretto.errors import Failure, GroupRejected
from stretto.kinds import is_a

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

# What a host's error may raise where it is read. `SystemExit` would end our event loop, and the host with it.
READING_ERRORS: Final = (Exception, SystemExit)
_TRACEBACK: Final = BaseException.__dict__["__traceback__"]


def veto_of(error: BaseException) -> Failure | None:
    """Return the veto that an error is, or the first of a group of nothing but vetoes.

    A `TaskGroup` wraps what its tasks raise. Beside any other error there is no veto: that error
    may have kept the host's code from deciding.
    """
    vetoes = [_own_veto(leaf) for leaf in _leaves(error)]
    if not all(vetoes):
        return None
    # A veto is no bug. An instance that is raised again keeps the frames of each earlier raise.
    for link in chain(error):
        _TRACEBACK.__set__(link, None)
    return vetoes[0]


def _own_veto(error: BaseException) -> Failure | None:
    # A subclass whose constructor does not call ours has none, or one with any text.
    failure = getattr(error, "failure", None) if is_a(error, GroupRejected) else None
    if not isinstance(failure, Failure):
        return None
    return GroupRejected(failure.code, failure.detail).failure


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, or the errors of a group at every depth, in their order."""
    left = [error]
    while left:
        leaf = left.pop()
        if is_a(leaf, BaseExceptionGroup):
            left += reversed(leaf.exceptions)
        else:
            yield leaf


def last_raised(error: BaseException, entry: CodeType) -> BaseException:
    """Return the error; of its traceback, keep what was added since it last passed this entry.

    An instance that is raised repeatedly, such as a constant of the host's module, keeps the frames
    of each earlier raise, and with them what our frames refer to: connections, and other owners'
    groups.
    """
    trace = _TRACEBACK.__get__(error)
    while trace is not None and trace.tb_frame.f_code is not entry:
        trace = trace.tb_next
    _TRACEBACK.__set__(error, trace)
    while trace is not None:
        if trace.tb_next is not None and trace.tb_next.tb_frame.f_code is entry:
            trace.tb_next = None
        trace = trace.tb_next
    return error


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, its causes and contexts, and the errors of a group."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        link = left.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        left += [link.__cause__, link.__context__]
        if is_a(link, BaseExceptionGroup):
            left += link.exceptions
