"""What a token allows, by its claim `scope`."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.http.tokens.scopes import OWN, Scope, scopes_in

CREATE, READ, EVENTS, ANY = Scope.CREATE, Scope.READ, Scope.EVENTS, Scope.READ_ANY


@pytest.mark.parametrize(
    ("required", "otherwise", "claim"),
    [
        (set(), OWN, ""),
        (set(), OWN, "openid email"),
        (set(), OWN, "stretto"),
        (set(), OWN, "stretto_create"),
        ({CREATE}, {CREATE}, "stretto:create"),
        ({CREATE, READ}, {CREATE, READ}, "openid stretto:read stretto:create"),
        (OWN, OWN, "stretto:create  stretto:read stretto:events "),
        ({EVENTS}, {EVENTS}, ["stretto:events", "email"]),
        # It includes reading one's own, and is not for a deployment that requires none.
        ({READ, ANY}, {READ}, "stretto:read_any"),
        ({CREATE, READ, ANY}, {CREATE, READ}, "stretto:create stretto:read_any"),
        # Misspelt: it was meant to narrow.
        (set(), set(), "stretto:creat"),
        (set(), set(), "stretto:CREATE"),
        (set(), set(), "stretto:"),
        (set(), OWN, None),
        (set(), OWN, 5),
        (set(), OWN, {"stretto:create": True}),
        (set(), OWN, [5, None]),
    ],
)
def test_a_token_allows_what_it_names(
    required: set[Scope], otherwise: set[Scope], claim: Any
) -> None:
    """Or, unless scopes are required, everything of its own user's if it names none of ours."""
    assert required == scopes_in({"scope": claim}, are_required=True)
    assert otherwise == scopes_in({"scope": claim}, are_required=False)


def test_a_token_without_the_claim_names_none() -> None:
    """As tokens were before there were scopes."""
    assert frozenset() == scopes_in({}, are_required=True)
    assert OWN == scopes_in({"scp": "stretto:read"}, are_required=False)


def test_what_is_not_required_never_reaches_beyond_ones_own() -> None:
    """Whatever it names, and however often."""
    for scope in Scope:
        claims = {"scope": f"{scope} {scope} stretto:read_any"}
        assert ANY not in scopes_in(claims, are_required=False)
