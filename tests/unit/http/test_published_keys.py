"""What an issuer publishes: which keys serve, which are dropped and why, which are chosen."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from stretto.errors import Overloaded, Unauthenticated
from stretto.http.tokens.jwks import (
    DOUBTED_SECONDS,
    KEYS_TRIED_MAX,
    LOOK_AGAIN_SECONDS,
    RETRY,
    STALE_SECONDS,
)
from stretto.http.tokens.keys import TokenKey
from stretto.telemetry.logs import flush_log
from support.issuer import EC_KEY, NEW, OLD, RSA_KEY, Issuer, bearer, owner_of, published

P384 = published(ec.generate_private_key(ec.SECP384R1()), kid="p384", crv="P-384")
P384_DROPPED = "key 'p384': it is not a P-256 public key"


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """Return the fields of each line of that event."""
    flush_log()
    return [vars(record) for record in caplog.records if record.msg == event]


async def test_a_fetch_that_a_host_has_cancelled_is_made_again() -> None:
    """Also where its task had not begun: no other one would ever be fetched."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        key_set = known._key_set
        assert key_set is not None
        issuer.now += DOUBTED_SECONDS + 1
        fetching = key_set._fetch_unless_just_tried()
        assert fetching is not None
        fetching.cancel()
        await asyncio.wait((fetching,))
        assert "alice" == await owner_of(known, bearer(OLD, "k"))
    assert 2 == issuer.asked


@pytest.mark.parametrize("member", ["alg", "use", "key_ops", "x5c"])
async def test_a_member_that_is_null_counts_as_absent(member: str) -> None:
    """Some issuers write null for what they leave out."""
    issuer = Issuer("k")
    issuer.keys = [published(RSA_KEY, kid="k") | {member: None}]
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(RSA_KEY, "k")) == "alice"


@pytest.mark.parametrize(
    ("keys", "dropped"),
    [
        ([P384], [P384_DROPPED]),
        (
            [P384 | {"kty": None}, 5],
            [
                "key 'p384': its kind (kty) is none of RSA, EC, OKP",
                "key without an id: it is no object",
            ],
        ),
        (
            [published(OLD, kid="k" * 99, use="enc")],
            [f"key {'k' * 64!r}: it is not for signatures (use)"],
        ),
        ([published(OLD, kid="k", alg="ES256")], ["key 'k': its algorithm (alg) is not EdDSA"]),
        ([published(OLD, kid=5)], ["key without an id: its id (kid) is not text"]),
        ([], []),
    ],
)
async def test_a_set_without_a_usable_key_is_logged_and_says_why(
    keys: list[Any], dropped: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Which keys, once; that none can be used, at each try."""
    caplog.set_level("INFO")
    issuer = Issuer("k")
    issuer.keys = keys
    async with issuer.authenticator() as known:
        for _ in range(3):
            with pytest.raises(Overloaded, match="keys cannot be fetched"):
                await owner_of(known, bearer(OLD, "k"))
            issuer.now += RETRY.seconds_max
    lines = logged(caplog, "issuer.keys_dropped")
    assert [dropped] * bool(dropped) == [line["reasons"] for line in lines]
    assert all(line["usable"] == 0 for line in lines)
    first = dropped[0] if dropped else "the set is empty"
    for line in logged(caplog, "issuer.keys_not_fetched"):
        assert ("WARNING", f"the issuer publishes no usable key ({first})") == (
            line["levelname"],
            line["cause"],
        )


async def test_dropped_keys_are_logged_once_until_they_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In whatever order they come; beside usable keys they are no warning."""
    caplog.set_level("INFO")
    issuer = Issuer("k")
    encryption = published(NEW, kid="e", use="enc")
    issuer.keys += [P384, encryption]
    async with issuer.authenticator() as known:
        for keys in (issuer.keys, issuer.keys[::-1], [published(OLD, kid="k"), encryption]):
            issuer.keys = keys
            issuer.now += DOUBTED_SECONDS + 1
            await owner_of(known, bearer(OLD, "k"))
            # Else repeated lines are folded.
            flush_log()
    lines = logged(caplog, "issuer.keys_dropped")
    assert [2, 1] == [line["dropped"] for line in lines]
    assert all(("INFO", 1) == (line["levelname"], line["usable"]) for line in lines)


async def test_one_line_names_a_few_keys_only(caplog: pytest.LogCaptureFixture) -> None:
    """The issuer chooses how many it publishes."""
    caplog.set_level("INFO")
    issuer = Issuer("k")
    issuer.keys += [published(OLD, kid=f"{number}", use="enc") for number in range(100)]
    async with issuer.authenticator():
        pass
    (line,) = logged(caplog, "issuer.keys_dropped")
    assert (100, 8) == (line["dropped"], len(line["reasons"]))


@pytest.mark.parametrize("keys", [[], [P384]])
async def test_a_set_without_a_usable_key_leaves_the_known_ones(keys: list[Any]) -> None:
    """As if the issuer were away: for a day, and a new key is not judged meanwhile."""
    issuer = Issuer("k")
    async with issuer.authenticator() as known:
        issuer.keys = keys
        issuer.now += DOUBTED_SECONDS + 1
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
        with pytest.raises(Overloaded, match="not known yet"):
            await owner_of(known, bearer(NEW, "new"))
        issuer.now += STALE_SECONDS
        with pytest.raises(Overloaded, match="cannot be fetched"):
            await owner_of(known, bearer(OLD, "k"))


async def test_the_start_fetches_the_keys_and_does_not_wait_for_them() -> None:
    """The first client need not."""
    issuer = Issuer("k")
    issuer.answers.clear()
    async with issuer.authenticator() as known:
        await asyncio.wait_for(issuer.reached.wait(), 5)
        assert issuer.asked == 1
        asking = asyncio.create_task(owner_of(known, bearer(OLD, "k")))
        issuer.answers.set()
        assert await asking == "alice"
    assert issuer.asked == 1


@pytest.mark.parametrize("is_rotation", [False, True])
async def test_one_failed_fetch_keeps_clients_out_for_half_a_second(
    is_rotation: bool,
) -> None:
    """On a fresh instance, and where a key is new."""
    issuer = Issuer("old")
    if not is_rotation:
        issuer.status = 500
    async with issuer.authenticator() as known:
        issuer.keys.append(published(NEW, kid="new"))
        if is_rotation:
            issuer.now, issuer.status = issuer.now + LOOK_AGAIN_SECONDS, 500
        with pytest.raises(Overloaded) as refused:
            await owner_of(known, bearer(NEW, "new"))
        assert refused.value.retry_after_seconds == 1
        issuer.now, issuer.status = issuer.now + 0.5, 200
        assert await owner_of(known, bearer(NEW, "new")) == "alice"


async def test_garbage_asks_an_issuer_that_fails_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids of its own choice bring no more fetches than the back-off has; a success ends it."""
    monkeypatch.setattr(random, "uniform", max)
    issuer = Issuer("k")
    issuer.status = 500
    async with issuer.authenticator() as known:
        for second in range(1, 601):
            issuer.now = float(second)
            for number in range(3):
                with pytest.raises(Overloaded):
                    await owner_of(known, bearer(NEW, f"garbage {second} {number}"))
        # At 0, 1 (0.5), 2, 4, 8, 16 and 32 s; then every 30 s.
        assert issuer.asked == 7 + (600 - 32) // 30
        issuer.now, issuer.status = issuer.now + 30, 200
        assert await owner_of(known, bearer(OLD, "k")) == "alice"
        issuer.now, issuer.status = issuer.now + LOOK_AGAIN_SECONDS, 500
        with pytest.raises(Overloaded) as refused:
            await owner_of(known, bearer(NEW, "new"))
        assert refused.value.retry_after_seconds == 1


@pytest.mark.parametrize("keys", [(RSA_KEY, EC_KEY), (EC_KEY, RSA_KEY)])
async def test_of_keys_of_one_id_the_tokens_algorithm_chooses(keys: tuple[Any, ...]) -> None:
    """RFC 7517, 4.5: those of different kinds may share an id."""
    issuer = Issuer("k")
    issuer.keys = [published(key, kid="k") for key in keys]
    async with issuer.authenticator() as known:
        for key in keys:
            assert await owner_of(known, bearer(key, "k")) == "alice"
        with pytest.raises(Unauthenticated, match=r"\(alg\)"):
            await owner_of(known, bearer(OLD, "k"))
    assert issuer.asked == 1


async def test_keys_without_an_id_are_tried_for_a_token_that_names_none() -> None:
    """Those that fit its algorithm."""
    issuer = Issuer("k")
    issuer.keys = [published(key) for key in (EC_KEY, OLD, RSA_KEY, NEW)]
    async with issuer.authenticator() as known:
        for key in (OLD, NEW, RSA_KEY, EC_KEY):
            assert await owner_of(known, bearer(key, None)) == "alice"
        with pytest.raises(Unauthenticated, match="signature is wrong"):
            await owner_of(known, bearer(ed25519.Ed25519PrivateKey.generate(), None))


async def test_only_a_few_keys_are_tried() -> None:
    """A wrong token costs a verification for each of them; those of other kinds do not count."""
    issuer = Issuer("k")
    others = [ed25519.Ed25519PrivateKey.generate() for _ in range(KEYS_TRIED_MAX - 1)]
    issuer.keys = [published(key) for key in (*[EC_KEY] * KEYS_TRIED_MAX, *others, OLD, NEW)]
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(OLD, None)) == "alice"
        with pytest.raises(Unauthenticated, match="signature is wrong"):
            await owner_of(known, bearer(NEW, None))


class _Incomparable:
    """A key whose own comparison takes microseconds, of which thousands would hold up the loop."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def public_bytes(self, *_: object) -> bytes:
        return self.content

    def __eq__(self, _: object) -> bool:
        raise AssertionError("this takes too long")

    __hash__ = None  # type: ignore[assignment]


def test_keys_are_compared_by_their_bytes() -> None:
    """An issuer may replace thousands at once, and each session has one."""
    ours, same, other = (
        TokenKey("RS256", _Incomparable(content)) for content in (b"a", b"a", b"b")
    )
    assert {ours} == {same}
    assert ours != other
