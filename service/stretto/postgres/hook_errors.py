"""What is reported of an error of a host's hook: enough to correct the hook, and no user's row.

The error is the host's own object. It may refuse attributes, as a frozen dataclass does, or have
others in their place. So what Python keeps of it is written by the descriptors of `BaseException`,
it is judged by `is_a`, and an error that cannot be read is reported by its class's name alone.
"""

from __future__ import annotations

import re
from typing import Final

import asyncpg

from stretto.creation.host_errors import READING_ERRORS, chain, veto_of
from stretto.kinds import is_a, name_of
from stretto.misuse import CreatedInHook
from stretto.postgres.driver_errors import sqlstate_of, store_error
from stretto.postgres.hook_handle import HandleMisused
from stretto.store_errors import (
    HookCutOff,
    HookError,
    HookInterrupted,
    Refused,
    StoreError,
    Transient,
)

# Messages of this class quote the wrong data (`invalid input syntax for integer: "alice"`); others
# quote names of tables and constraints.
_DATA_CLASS: Final = "22"
_QUOTED: Final = re.compile(r'"[^"]*"')

_ARGS: Final = BaseException.__dict__["args"]
_TRACEBACK: Final = BaseException.__dict__["__traceback__"]

# The driver has no words for it: the server's reason comes without a statement.
_SESSION_LOST: Final = (
    "the session was lost while on_create ran; if that happens again and again, the server ends it:"
    " look for idle_in_transaction_session_timeout, or for what the hook itself does to it"
)

# A busy loop does not make a timer as late as this: nothing could run at all.
BLOCKED_SECONDS_MIN: Final = 1.0


def cause_of(error: BaseException) -> str:
    """Return one sentence: the exception's type; for a server's error its SQLSTATE and message too.

    `HandleMisused` and `CreatedInHook`, our own, are given in full: they say what to do.
    """
    cause = f"on_create raised {name_of(error)}"
    if is_a(error, asyncpg.PostgresError):
        cause += f" ({sqlstate_of(error)}): {_message(error)}"
    elif is_a(error, (HandleMisused, CreatedInHook)):
        cause += f": {error}"
    return cause


def too_late(seconds: float, seconds_max: float) -> str:
    """Return why a hook exceeded its time: it waited for too long, or blocked the event loop."""
    if seconds < seconds_max + BLOCKED_SECONDS_MIN:
        return f"on_create took longer than {seconds_max:g} s"
    return (
        f"the event loop was blocked while on_create ran, for {seconds:.1f} s in all:"
        " await what takes long, or call it by asyncio.to_thread"
    )


def verdict_of(error: Exception, *, is_gone: bool = False) -> StoreError:
    """Return what a hook's failure means for the group: only a veto says anything about it.

    With `is_gone` its session is lost, which is all that any other error says then.
    """
    try:
        verdict = _read_verdict(error)
    except READING_ERRORS:
        verdict = HookError(f"on_create raised {name_of(error)}")
    return HookCutOff(_SESSION_LOST) if is_gone and not isinstance(verdict, Refused) else verdict


def _read_verdict(error: Exception) -> StoreError:
    veto = veto_of(error)
    if veto is not None:
        return Refused(veto, is_veto=True)
    is_passing = is_a(error, asyncpg.PostgresError) and isinstance(
        store_error(error, connection_lives=True), Transient
    )
    return (HookInterrupted if is_passing else HookError)(cause_of(error))


def without_row_data(error: BaseException) -> BaseException | None:
    """Return the error; server errors in its chain keep their message and lose their details.

    A traceback shows the text of each, and PostgreSQL's `DETAIL` quotes whole rows. Returns None for
    an error whose chain cannot be read, or whose details cannot be removed: no log could show it.
    """
    try:
        for link in chain(error):
            kind = type(link)
            if not (kind.__module__ and kind.__qualname__):
                return None
            if link.__traceback__ is not _TRACEBACK.__get__(link):
                return None
            if is_a(link, asyncpg.PostgresError):
                _ARGS.__set__(link, (_message(link),))
                object.__setattr__(link, "detail", None)
                object.__setattr__(link, "hint", None)
    except READING_ERRORS:
        return None
    return error


def _message(error: asyncpg.PostgresError) -> str:
    text = str(error.args[0]) if error.args else ""
    return _QUOTED.sub('"…"', text) if sqlstate_of(error).startswith(_DATA_CLASS) else text
