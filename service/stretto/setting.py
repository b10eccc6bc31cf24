"""Declares a setting: a dataclass field that an operator can set.

A setting stands once, in the dataclass of the part that it is for: its name, default, bounds and
description. Its environment variable is `STRETTO_` and its name in upper case, so no two
dataclasses have a setting of one name. `config.py` fills all of them; a host fills the same
dataclasses.
"""

from __future__ import annotations

from dataclasses import field
from typing import TypedDict, TypeVar, Unpack

T = TypeVar("T")


class Bounds(TypedDict, total=False):
    """What limits a value, in the words of pydantic, which reads the environment by them."""

    ge: float
    gt: float
    le: float
    allow_inf_nan: bool
    pattern: str


def setting(
    default: T, description: str, *, is_secret: bool = False, **bounds: Unpack[Bounds]
) -> T:
    """Return the field; the description is what `stretto --help` shows.

    The bounds hold for operators. Of what a host sets, only what cannot work is refused.
    """
    metadata = {"description": description, **bounds}
    return field(default=default, repr=not is_secret, metadata=metadata)
