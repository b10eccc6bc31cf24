"""Which tokens are known to be refused, without being verified."""

from __future__ import annotations

import jwt
import pytest

from stretto.domain import UserId
from stretto.errors import Unauthenticated
from stretto.http.tokens.authenticator import Authenticator
from stretto.http.tokens.making import make_token
from stretto.http.tokens.refusals import REFUSED_MAX, REFUSED_SECONDS, Refusals
from stretto.http.tokens.settings import TokenSettings

SECRET = "a secret for tests that is long enough"


def bearer(secret: str = SECRET, lifetime_seconds: int = 60) -> str:
    """Return the header of a token of alice's."""
    return "Bearer " + make_token(secret, UserId("alice"), lifetime_seconds=lifetime_seconds)


async def test_a_token_that_our_secret_has_not_signed_is_known_at_once() -> None:
    """And no other: it may be verified."""
    tokens = Authenticator(TokenSettings(jwt_secret=SECRET))
    good = bearer()
    head, claims, signature = good.split(".")
    for authorization in (good, good.replace("Bearer", "bearer"), good + " "):
        assert not tokens.is_refused(authorization)
    for authorization in (
        bearer(SECRET + "!"),
        "Bearer x",
        "Bearer ",
        "nothing",
        f"{head}.{claims}.",
        f"{head}.{claims}.{signature[:-5]}",
        f"{head}.{claims}x.{signature}",
    ):
        assert tokens.is_refused(authorization)


async def test_a_token_of_either_of_two_secrets_is_not_known_to_be_refused() -> None:
    """During a rotation."""
    tokens = Authenticator(TokenSettings(jwt_secret=f"{SECRET}!\n{SECRET}"))
    assert [False, False, True] == [
        tokens.is_refused(bearer(secret)) for secret in (SECRET, SECRET + "!", SECRET + "?")
    ]


async def test_a_refused_token_is_remembered_for_a_while_and_no_other_with_it() -> None:
    """One that ended, say; the same claims with another signature may be good."""
    now = [100.0]
    tokens = Authenticator(TokenSettings(jwt_secret=SECRET), monotonic_seconds=lambda: now[0])
    ended = bearer(lifetime_seconds=-1000)
    assert not tokens.is_refused(ended)
    with pytest.raises(Unauthenticated):
        await tokens.verify(ended)
    assert tokens.is_refused(ended)
    assert not tokens.is_refused(bearer())
    assert jwt.decode(ended[7:], options={"verify_signature": False})["sub"] == "alice"
    now[0] += REFUSED_SECONDS
    assert not tokens.is_refused(ended)


async def test_a_change_of_the_keys_forgets_refusals() -> None:
    """A token may be of a key that was not known."""
    tokens = Authenticator(TokenSettings(jwks_url="http://127.0.0.1:1/keys"))
    tokens._refusals.add("x")
    assert tokens.is_refused("Bearer x")
    assert not tokens.is_refused("Bearer y")
    tokens._keys_changed(())
    assert not tokens.is_refused("Bearer x")


async def test_refusals_are_bounded() -> None:
    """The oldest goes."""
    refusals = Refusals(lambda: 0.0)
    for number in range(REFUSED_MAX + 1):
        refusals.add(f"{number}")
    assert len(refusals._until) == REFUSED_MAX
    assert "0" not in refusals
    assert "1" in refusals
