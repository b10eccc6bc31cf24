"""What a token lets its bearer do, by its claim `scope` (RFC 8693, 4.2; RFC 9068, 2.2.3).

A token's subject says whose groups these are. Scopes only narrow what may be done with them, but for
`READ_ANY`. So that one counts only where the operator requires scopes: an issuer that was never asked
to guard it may give it to every client that asks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from stretto.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping

_PREFIX: Final = "stretto:"


class Scope(StrEnum):
    """A scope of ours; a token may have others, of other services."""

    CREATE = "stretto:create"
    """Create groups."""
    DELETE = "stretto:delete"
    """Delete groups of which the user is an owner."""
    READ = "stretto:read"
    """Read the user's own groups, their members, and the user's own attempts."""
    EVENTS = "stretto:events"
    """Open sessions."""
    READ_ANY = "stretto:read_any"
    """A service's: read every group and its members. Includes `READ`."""


# What a user may do with what is the user's own.
OWN: Final = frozenset({Scope.CREATE, Scope.DELETE, Scope.READ, Scope.EVENTS})


def scopes_in(claims: Mapping[str, Any], *, are_required: bool) -> frozenset[Scope]:
    """Return what a token allows.

    Where scopes are required, that is what it names. Elsewhere a token that names none of ours allows
    all of `OWN`, and one that names some allows only what it names of `OWN`. A misspelt one of ours
    allows nothing, and counts as named.
    Raises `Unauthenticated` for a claim that is no text: it may have been meant to narrow.
    """
    # Some issuers write a list.
    claim = claims.get("scope", "")
    texts = claim if isinstance(claim, list) else [claim]
    if not all(isinstance(text, str) for text in texts):
        raise Unauthenticated("The token's claim scope is neither text nor a list of texts.")
    given = set(" ".join(texts).split())
    allowed = {scope for scope in Scope if scope in given}
    if Scope.READ_ANY in allowed:
        allowed.add(Scope.READ)
    if are_required:
        return frozenset(allowed)
    return OWN & allowed if any(name.startswith(_PREFIX) for name in given) else OWN
