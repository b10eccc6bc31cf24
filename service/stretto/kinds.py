"""What kind values and errors are."""

from __future__ import annotations

import sys
from typing import Final, TypeGuard, TypeVar

_NAME: Final = type.__dict__["__name__"]
_Kind = TypeVar("_Kind", bound=BaseException)


def require_kind(name: str, value: object, *kinds: type) -> None:
    """Raise `TypeError` unless a host's argument of this name is of one of the kinds."""
    if not isinstance(value, kinds):
        wanted = " or ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)
        # Without the value, which may be a secret.
        message = f"{name} must be {wanted.replace('builtins.', '')}, not {type(value)!r}"
        raise TypeError(message)


def require_seconds(name: str, value: object) -> None:
    """Raise `TypeError` or `ValueError` unless a host's argument is a finite number."""
    require_kind(name, value, int, float)
    assert isinstance(value, (int, float))
    # False for NaN as well. An integer beyond them would have no float.
    if not -sys.float_info.max <= value <= sys.float_info.max:
        message = f"{name} must be a finite number of seconds"
        raise ValueError(message)


def is_a(
    error: BaseException | None, kinds: type[_Kind] | tuple[type[_Kind], ...]
) -> TypeGuard[_Kind]:
    """Whether a host's error is of such a kind: `isinstance` may run its code, which may raise."""
    return issubclass(type(error), kinds)


def public_name_of(error: Exception) -> str:
    """Return the name of the documented class of an error of ours: a private one is of the one above it."""
    names = (each.__name__ for each in type(error).__mro__)
    return next(name for name in names if not name.startswith("_"))


def name_of(error: BaseException) -> str:
    """Return the name of an error's class, as it was written: a host's metaclass may refuse to say it."""
    return str(_NAME.__get__(type(error)))


class Failure:
    """What metrics and the log say of an error."""

    __slots__ = ()
    error: Exception

    kind = property(lambda self: public_name_of(self.error))
    cause = property(lambda self: str(self.error))
