"""From when until when a token is valid, by its claims `nbf`, `iat` and `exp` (RFC 7519, 4.1)."""

from __future__ import annotations

import math
from typing import Any, Final

from stretto.errors import Unauthenticated

# Clocks of issuer and service differ a little: so much may a token's nbf and iat lie in the future.
# Its end has no leeway: the issuer chose it.
LEEWAY_SECONDS: Final = 10
# Later than any issuer's "never", and still exact enough to compare.
_TIME_SECONDS_MAX: Final = 2.0**64


def end_of(claims: dict[str, Any], now: float) -> float:
    """Return when a token ends, in seconds since the epoch.

    Raises `Unauthenticated` if it is not valid now.
    """
    for name in ("nbf", "iat"):
        if (_time_of(claims, name) or 0) > now + LEEWAY_SECONDS:
            raise Unauthenticated(f"The token is not valid yet ({name}).")
    ends = _time_of(claims, "exp")
    if ends is None:
        return math.inf
    if ends <= now:
        raise Unauthenticated("The token has expired (exp).")
    return ends


def _time_of(claims: dict[str, Any], name: str) -> float | None:
    """Return a claim's time, in seconds since the epoch (NumericDate in RFC 7519, 2)."""
    if name not in claims:
        return None
    value = claims[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # NaN fails this as well, and an integer that no float can hold.
    if not is_number or not -_TIME_SECONDS_MAX <= value <= _TIME_SECONDS_MAX:
        raise Unauthenticated(f"The token's claim {name} is not a time.")
    return float(value)
