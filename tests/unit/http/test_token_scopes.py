"""What a token allows, by its claim `scope`."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.errors import Unauthenticated
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
        (OWN, OWN, "stretto:create  stretto:read stretto:events stretto:delete "),
        ({EVENTS}, {EVENTS}, ["stretto:events", "email"]),
        ({EVENTS}, {EVENTS}, ["email stretto:events"]),
        (set(), OWN, []),
        # It includes reading one's own, and is not for a deployment that requires none.
        ({READ, ANY}, {READ}, "stretto:read_any"),
        ({CREATE, READ, ANY}, {CREATE, READ}, "stretto:create stretto:read_any"),
        # Misspelt: it was meant to narrow.
        (set(), set(), "stretto:creat"),
        (set(), set(), "stretto:CREATE"),
        (set(), set(), "stretto:"),
    ],
)
def test_a_token_allows_what_it_names(
    required: set[Scope], otherwise: set[Scope], claim: Any
) -> None:
    """Or, unless scopes are required, everything of its own user's if it names none of ours."""
    assert required == scopes_in({"scope": claim}, are_required=True)
    assert otherwise == scopes_in({"scope": claim}, are_required=False)


@pytest.mark.parametrize("are_required", [True, False])
@pytest.mark.parametrize(
    "claim",
    [None, True, 5, {"stretto:read": 1}, ["stretto:read", 5], [["stretto:read"]], [None]],
    ids=repr,
)
def test_a_claim_that_is_no_text_is_refused(claim: Any, are_required: bool) -> None:
    """As every malformed claim is. It names none of ours: read so, it would allow everything."""
    with pytest.raises(Unauthenticated) as refused:
        scopes_in({"scope": claim}, are_required=are_required)
    assert "scope" in refused.value.detail


def test_a_token_without_the_claim_names_none() -> None:
    """As tokens were before there were scopes."""
    assert frozenset() == scopes_in({}, are_required=True)
    assert OWN == scopes_in({"scp": "stretto:read"}, are_required=False)


def test_what_is_not_required_never_reaches_beyond_ones_own() -> None:
    """Whatever it names, and however often."""
    for scope in Scope:
        claims = {"scope": f"{scope} {scope} stretto:read_any"}
        assert ANY not in scopes_in(claims, are_required=False)
