"""Declares a setting: a dataclass field that an operator can set; and checks what a host sets.

A setting stands once, in the dataclass of the part that it is for: its name, default, bounds and
description. Its environment variable is `STRETTO_` and its name in upper case, so no two
dataclasses have a setting of one name. `environment.py` fills all of them; a host fills the same
dataclasses. The bounds hold for both.
"""

from __future__ import annotations

import math
import re
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, Final, TypedDict, TypeVar, Unpack, get_args, get_origin, get_type_hints

from stretto.start_errors import ConfigurationError

T = TypeVar("T")


class Bounds(TypedDict, total=False):
    """What limits a value, in the words of pydantic, which reads the environment by them."""

    ge: float
    gt: float
    le: float
    allow_inf_nan: bool
    pattern: str


# Of a number that declares none: it is a count, or a duration in seconds.
_COUNT: Final = Bounds(ge=1)
_DURATION: Final = Bounds(gt=0)


def setting(
    default: T, description: str, *, is_secret: bool = False, **bounds: Unpack[Bounds]
) -> T:
    """Return the field; the description is what `stretto --help` shows."""
    metadata = {"description": description, **bounds}
    return field(default=default, repr=not is_secret, metadata=metadata)


def allowed(each: Field[Any], kind: object = None) -> str:
    """Return in words which values a field of that kind takes; empty for any."""
    bounds = _bounds(each, kind)
    if "pattern" in bounds:
        return f"text that matches {bounds['pattern']}"
    if not bounds:
        return ""
    least = f"above {bounds['gt']}" if "gt" in bounds else f"{bounds['ge']} or more"
    return f"from {bounds['ge']} to {bounds['le']}" if {"ge", "le"} <= bounds.keys() else least


def require_settings(part: Any) -> None:
    """Raise for a value that cannot work, of a part that a host has filled or of one of its parts.

    Raises `TypeError` for a value of a wrong kind, such as one text where several are meant, and
    `ConfigurationError` for one out of bounds.
    """
    owner = type(part)
    kinds = get_type_hints(owner)
    for each in fields(part):
        name, kind = f"{owner.__name__}.{each.name}", kinds[each.name]
        value = getattr(part, each.name)
        if not _is_of_kind(value, kind):
            # Without the value, which may be a secret.
            message = f"{name} must be {_in_words(kind)}, not {type(value)!r}"
            raise TypeError(message)
        if is_dataclass(kind):
            require_settings(value)
        elif not _is_within(value, _bounds(each, kind)):
            message = f"{name} is {value!r}: it must be {allowed(each, kind)}"
            raise ConfigurationError(message)


def _bounds(each: Field[Any], kind: object) -> Bounds:
    bounds = Bounds()
    for name in Bounds.__annotations__:
        if name in each.metadata:
            bounds[name] = each.metadata[name]  # type: ignore[literal-required]
    if not bounds and kind in (int, float):
        return _COUNT if kind is int else _DURATION
    return bounds


def _is_within(value: Any, bounds: Bounds) -> bool:
    if "pattern" in bounds:
        return re.fullmatch(bounds["pattern"], value) is not None
    if not bounds:
        return True
    number: float = value
    # NaN fails every comparison.
    return (
        bounds.get("ge", -math.inf) <= number <= bounds.get("le", math.inf)
        and number > bounds.get("gt", -math.inf)
        and number != math.inf
    )


def _is_of_kind(value: object, kind: Any) -> bool:
    """Whether the value is of a field's kind; a text is no sequence of texts, a flag no number."""
    of = get_origin(kind)
    if of is not None:
        return isinstance(value, of) and all(isinstance(each, get_args(kind)[0]) for each in value)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float) if kind is float else isinstance(value, kind)


def _in_words(kind: Any) -> str:
    """Return a kind as it is written in a program."""
    if get_origin(kind) is not None:
        return str(kind)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
