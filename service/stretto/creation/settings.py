"""How a creator behaves."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.setting import setting


@dataclass(frozen=True, slots=True)
class CreatorSettings:
    """How a creator behaves; times in seconds."""

    lease_seconds: float = setting(
        5.0, "after this long a pending attempt may be taken over", ge=0.1, le=3600
    )
    outcomes_max: int = 50_000
    """Successes remembered, half as many at least; some 350 bytes each."""
    rate_limit: float = setting(
        0.0,
        "new attempts per owner and second in one process; 0: no limit",
        ge=0,
        allow_inf_nan=False,
    )
    stop_seconds: float = 4.0
    """How long flights may take to finish when the creator stops; other parts stop after that."""
