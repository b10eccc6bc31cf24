"""What a checker finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaos.history import Key


@dataclass(frozen=True, slots=True)
class Violation:
    """A guarantee that does not hold, and the key that shows it."""

    key: Key | None
    what: str
