"""Few requests wait for the issuer at a time; the others are answered at once, and may come again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from stretto.errors import Overloaded, Unauthenticated
from stretto.http.tokens.jwks import DOUBTED_SECONDS, LOOK_AGAIN_SECONDS, WAITING_MAX
from support.issuer import NEW, OLD, Issuer, bearer, owner_of, published

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.domain import UserId
    from stretto.http.tokens.authenticator import Authenticator

CONNECTIONS_MAX = 16
# An eighth of them.
WAITING = 2


@pytest.fixture
def issuer() -> Issuer:
    """An issuer with one key."""
    return Issuer("k")


@pytest_asyncio.fixture
async def known(issuer: Issuer) -> AsyncIterator[Authenticator]:
    """An authenticator for few connections, that has the issuer's keys and may ask it again."""
    async with issuer.authenticator() as known:
        known.bound_waits(CONNECTIONS_MAX)
        issuer.now += LOOK_AGAIN_SECONDS
        yield known


async def waiting_for(
    known: Authenticator, issuer: Issuer, authorization: str
) -> list[asyncio.Task[UserId]]:
    """Have the issuer hang, and as many requests wait for it as may."""
    issuer.reached.clear()
    issuer.answers.clear()
    waiting = [asyncio.create_task(owner_of(known, authorization)) for _ in range(WAITING)]
    await issuer.reached.wait()
    return waiting


async def require_turned_away(known: Authenticator, authorization: str) -> None:
    """Require that this token is not judged, and that its client may try again soon."""
    with pytest.raises(Overloaded, match="not known yet") as turned_away:
        await owner_of(known, authorization)
    assert 1 == turned_away.value.retry_after_seconds


@pytest.mark.parametrize("kid", ["new", "k", None], ids=["unknown", "replaced", "none"])
async def test_a_request_beyond_those_that_wait_for_the_issuer_is_answered_at_once(
    kid: str | None, known: Authenticator, issuer: Issuer
) -> None:
    """Its token may be good: it is served when it comes again after the fetch, which all share."""
    waiting = await waiting_for(known, issuer, bearer(NEW, kid))
    await require_turned_away(known, bearer(NEW, kid))
    issuer.keys = [published(NEW, kid=kid or "k")]
    issuer.answers.set()
    assert ["alice"] * WAITING == await asyncio.gather(*waiting)
    assert "alice" == await owner_of(known, bearer(NEW, kid))
    assert 2 == issuer.asked


async def test_a_key_that_was_named_before_is_not_refused_where_too_many_wait(
    known: Authenticator, issuer: Issuer
) -> None:
    """It may have been published since; the fetch that shows it is under way."""
    with pytest.raises(Unauthenticated):
        await owner_of(known, bearer(NEW, "new"))
    issuer.now += LOOK_AGAIN_SECONDS
    waiting = await waiting_for(known, issuer, bearer(NEW, "new"))
    await require_turned_away(known, bearer(NEW, "new"))
    issuer.keys.append(published(NEW, kid="new"))
    issuer.answers.set()
    assert ["alice"] * WAITING == await asyncio.gather(*waiting)


async def test_where_many_wait_a_client_whose_key_is_known_does_not(
    known: Authenticator, issuer: Issuer
) -> None:
    """Also where it is time to fetch the keys again: one of them may be withdrawn seconds later."""
    issuer.now += DOUBTED_SECONDS
    waiting = await waiting_for(known, issuer, bearer(OLD, "k"))
    assert "alice" == await owner_of(known, bearer(OLD, "k"))
    issuer.answers.set()
    assert ["alice"] * WAITING == await asyncio.gather(*waiting)


async def test_before_the_first_fetch_has_ended_few_wait_for_it(issuer: Issuer) -> None:
    """A process that has just started knows no key."""
    issuer.answers.clear()
    async with issuer.authenticator() as known:
        known.bound_waits(CONNECTIONS_MAX)
        waiting = await waiting_for(known, issuer, bearer(OLD, "k"))
        await require_turned_away(known, bearer(OLD, "k"))
        issuer.answers.set()
        assert ["alice"] * WAITING == await asyncio.gather(*waiting)


async def test_a_request_that_is_given_up_leaves_its_place_to_another(
    known: Authenticator, issuer: Issuer
) -> None:
    """Its client has left."""
    left, *others = await waiting_for(known, issuer, bearer(NEW, "new"))
    left.cancel()
    await asyncio.wait((left,))
    another = asyncio.create_task(owner_of(known, bearer(NEW, "new")))
    await asyncio.sleep(0)
    await require_turned_away(known, bearer(NEW, "new"))
    issuer.keys.append(published(NEW, kid="new"))
    issuer.answers.set()
    assert ["alice"] * WAITING == await asyncio.gather(another, *others)


@pytest.mark.parametrize(
    ("expected", "connections_max"),
    [(1, 1), (1, 10), (25, 200), (WAITING_MAX, 10_000)],
)
async def test_an_eighth_of_few_connections_may_wait(
    expected: int, connections_max: int, known: Authenticator
) -> None:
    """One at least, or no new key would ever be waited for; of many connections, a fixed number."""
    known.bound_waits(connections_max)
    assert known._key_set is not None
    assert expected == known._key_set._waiting_max


async def test_where_the_connections_are_a_hosts_the_number_is_bounded_as_well(
    issuer: Issuer,
) -> None:
    """How many it has is not known here."""
    async with issuer.authenticator() as known:
        assert known._key_set is not None
        assert WAITING_MAX == known._key_set._waiting_max
