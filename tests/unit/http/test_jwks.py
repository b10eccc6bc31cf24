"""The issuer's keys: fetched once for all, kept while it is away, never hammered for."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ed25519

from stretto.errors import Overloaded, Unauthenticated
from stretto.http.tokens import jwks
from stretto.http.tokens.jwks import (
    DOCUMENT_BYTES_MAX,
    KEPT_SECONDS,
    KEYS_TRIED_MAX,
    LOOK_AGAIN_SECONDS,
    REQUESTS_PER_TURN,
    RETRY,
    STALE_SECONDS,
    WAITING_MAX,
    KeySet,
)
from stretto.telemetry.logs import flush_log
from support.flooding_server import flooding
from support.issuer import NEW, OLD, RSA_KEY, Issuer, bearer, owner_of, published

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from stretto.http.tokens.authenticator import Authenticator


@pytest.fixture
def issuer() -> Issuer:
    """An issuer with one key."""
    return Issuer("old")


@pytest_asyncio.fixture
async def known(issuer: Issuer) -> AsyncIterator[Authenticator]:
    """An authenticator that asks the issuer, on the issuer's clock."""
    async with issuer.authenticator() as known:
        yield known


async def test_keys_are_fetched_once_for_all(issuer: Issuer) -> None:
    """A herd of first requests waits for the fetch that the start has begun."""
    issuer.answers.clear()
    async with issuer.authenticator() as known:
        herd = asyncio.gather(*(owner_of(known, bearer(OLD, "old")) for _ in range(50)))
        await issuer.reached.wait()
        issuer.answers.set()
        owners = await herd
    assert ({"alice"}, 1) == (set(owners), issuer.asked)


async def test_a_request_that_is_given_up_does_not_spoil_the_fetch(issuer: Issuer) -> None:
    """The fetch goes on for the others."""
    issuer.answers.clear()
    async with issuer.authenticator() as known:
        first = asyncio.ensure_future(owner_of(known, bearer(OLD, "old")))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(owner_of(known, bearer(OLD, "old")))
        await asyncio.sleep(0)
        first.cancel()
        issuer.answers.set()
        assert await second == "alice"


async def test_a_new_key_is_found_and_garbage_does_not_hammer(
    known: Authenticator, issuer: Issuer
) -> None:
    """An unknown id makes us look again, at most once per cool-down."""
    await owner_of(known, bearer(OLD, "old"))
    issuer.keys.append(published(NEW, kid="new"))
    for _ in range(20):
        with pytest.raises(Overloaded):
            await owner_of(known, bearer(NEW, "new"))
    assert issuer.asked == 1
    issuer.now += LOOK_AGAIN_SECONDS
    assert await owner_of(known, bearer(NEW, "new")) == "alice"
    assert issuer.asked == 2


async def test_a_key_that_was_named_before_it_was_published_is_found_by_the_next_fetch(
    known: Authenticator, issuer: Issuer
) -> None:
    """Until then its tokens are refused as those of a key that is forged, without asking the issuer."""
    await owner_of(known, bearer(OLD, "old"))
    issuer.now += LOOK_AGAIN_SECONDS
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await owner_of(known, bearer(NEW, "new"))
    issuer.keys.append(published(NEW, kid="new"))
    with pytest.raises(Unauthenticated):
        await owner_of(known, bearer(NEW, "new"))
    assert issuer.asked == 2
    issuer.now += LOOK_AGAIN_SECONDS
    assert await owner_of(known, bearer(NEW, "new")) == "alice"


async def test_a_withdrawn_key_counts_no_longer_once_that_is_known(
    known: Authenticator, issuer: Issuer
) -> None:
    """Nor does what was verified with it."""
    token = bearer(OLD, "old")
    await owner_of(known, token)
    issuer.keys = [published(NEW, kid="new")]
    issuer.now += LOOK_AGAIN_SECONDS
    await owner_of(known, bearer(NEW, "new"))
    with pytest.raises(Unauthenticated):
        await owner_of(known, token)


async def test_known_keys_outlive_their_issuer_for_a_day(
    known: Authenticator, issuer: Issuer
) -> None:
    """Its failure is not ours at once, but not never either."""
    await owner_of(known, bearer(OLD, "old"))
    issuer.status = 503
    issuer.now += KEPT_SECONDS + 1
    assert await owner_of(known, bearer(OLD, "old")) == "alice"
    issuer.now += STALE_SECONDS
    with pytest.raises(Overloaded):
        await owner_of(known, bearer(OLD, "old"))


@pytest.mark.parametrize(
    ("cause", "has_traceback", "error"),
    [
        ("the host's name cannot be looked up", False, UnicodeError("label empty or too long")),
        ("an error of our own", True, RuntimeError("hidden")),
    ],
)
async def test_whatever_a_fetch_raises_is_a_failed_fetch(
    cause: str,
    has_traceback: bool,
    error: Exception,
    issuer: Issuer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is logged, and the pause before the next fetch grows."""

    async def fail(_: object) -> bytes:
        raise error

    monkeypatch.setattr(KeySet, "_download", fail)
    async with issuer.authenticator() as known:
        for failures in range(3):
            flush_log()
            with pytest.raises(Overloaded):
                await owner_of(known, bearer(OLD, "old"))
            issuer.now += RETRY.longest(failures)
    assert 3 == len(caplog.records)
    record = vars(caplog.records[0])
    assert (cause, has_traceback) == (record["cause"], bool(record["exc_info"]))


@pytest.mark.parametrize("failing", ["status", "size"])
async def test_without_any_keys_no_token_is_judged(failing: str, issuer: Issuer) -> None:
    """503 rather than 401: the token may be good."""
    if failing == "status":
        issuer.status = 500
    else:
        issuer.padding = "x" * DOCUMENT_BYTES_MAX
    async with issuer.authenticator() as known:
        with pytest.raises(Overloaded):
            await owner_of(known, bearer(OLD, "old"))


@pytest.mark.parametrize(
    ("cause", "head", "flood"),
    [
        ("the connection ended before a complete answer", b"", b"HTTP/1.1 103 \r\n\r\n"),
        ("the issuer's keys are too large", b"HTTP/1.1 200 \r\n\r\n", b" "),
        (
            "the issuer's answer is not JSON",
            b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\n \r\n",
        ),
    ],
    ids=["interim answers", "a large document", "small chunks"],
)
async def test_an_issuer_that_never_ends_is_cut_off(
    cause: str,
    head: bytes,
    flood: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Long before any time is up."""
    monkeypatch.setattr(jwks, "FETCH_SECONDS", None)
    async with flooding(head, flood * 10_000) as flooder:
        flooder.may_flood.set()
        async with KeySet(flooder.url, lambda: 0.0, lambda _: None) as keys:
            with pytest.raises(Overloaded):
                await keys.keys(None, None)
            assert await flooder.is_cut_off()
    assert [cause] == [vars(record)["cause"] for record in caplog.records]


async def test_the_largest_document_may_come_in_chunks() -> None:
    """Of a few dozen bytes each."""
    keys = orjson.dumps({"keys": [published(OLD, kid="old")]})
    document = b" " * (DOCUMENT_BYTES_MAX - len(keys)) + keys
    chunks = (document[at : at + 64] for at in range(0, len(document), 64))
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    head = b"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n"
    async with flooding(head + body + b"0\r\n\r\n", b" " * 10_000) as flooder:
        async with KeySet(flooder.url, lambda: 0.0, lambda _: None) as known:
            assert ["old"] == [key.kid for key in await known.keys("old", "EdDSA")]
        flooder.may_flood.set()
        assert await flooder.is_cut_off()


async def test_a_failed_fetch_is_logged_once_and_shows_no_token(
    issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per try, however many ask meanwhile."""
    issuer.status = 500
    token = bearer(OLD, "old")
    async with issuer.authenticator() as known:
        for _ in range(20):
            with pytest.raises(Overloaded):
                await owner_of(known, token)
        assert ["issuer.keys_not_fetched"] == [record.msg for record in caplog.records]
        assert ("the issuer answered 500", 0) == (
            vars(caplog.records[0])["cause"],
            vars(caplog.records[0])["known_keys"],
        )
        issuer.now += RETRY.longest(0)
        flush_log()
        with pytest.raises(Overloaded):
            await owner_of(known, token)
    assert len(caplog.records) == 2
    assert token not in "".join(str(vars(record)) for record in caplog.records)


async def test_only_usable_keys_are_taken(issuer: Issuer) -> None:
    """Secrets, broken ones and those for encryption are left out; the rest serves."""
    issuer.keys = [
        {"kty": "oct", "kid": "secret", "k": "AAAA", "alg": "HS256"},
        {"kty": "OKP", "kid": "broken", "crv": "Ed25519", "x": "!"},
        published(NEW, kid="encryption", use="enc"),
        published(RSA_KEY, kid="good"),
    ]
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(RSA_KEY, "good")) == "alice"
        # The only usable key also serves tokens that name none.
        assert await owner_of(known, bearer(RSA_KEY, None)) == "alice"
        for kid in ("secret", "broken", "encryption"):
            issuer.now += LOOK_AGAIN_SECONDS
            with pytest.raises(Unauthenticated):
                await owner_of(known, bearer(NEW, kid))


@pytest.mark.parametrize("key", [NEW, RSA_KEY])
async def test_a_token_that_names_no_key_may_be_signed_with_any(issuer: Issuer, key: Any) -> None:
    """Else a rotation shuts out all users of an issuer whose tokens never name one."""
    async with issuer.authenticator() as known:
        issuer.keys.append(published(key, kid="new"))
        issuer.now += LOOK_AGAIN_SECONDS
        for signer in (key, OLD):
            assert await owner_of(known, bearer(signer, None)) == "alice"
        forged = bearer(ed25519.Ed25519PrivateKey.generate(), None)
        with pytest.raises(Unauthenticated, match="signature is wrong"):
            await owner_of(known, forged)


async def test_keys_without_an_id_are_the_first_to_be_tried_for_a_token_without_one(
    issuer: Issuer,
) -> None:
    """Only a few are tried."""
    issuer.keys = [published(NEW, kid=str(number)) for number in range(KEYS_TRIED_MAX)]
    issuer.keys.append(published(OLD))
    async with issuer.authenticator() as known:
        assert await owner_of(known, bearer(OLD, None)) == "alice"


async def test_a_tokens_algorithm_is_its_keys(issuer: Issuer) -> None:
    """A key of one kind verifies no signature of another."""
    issuer.keys = [published(OLD, kid="old"), published(RSA_KEY, kid="rsa")]
    async with issuer.authenticator() as known:
        with pytest.raises(Unauthenticated):
            await owner_of(known, bearer(OLD, "rsa"))


@pytest.mark.parametrize("is_replacement", [False, True])
async def test_of_requests_that_waited_for_a_fetch_few_go_on_in_each_turn_of_the_loop(
    is_replacement: bool, issuer: Issuer
) -> None:
    """Others, such as health checks, are served in between."""
    turn = 0
    went_on: Counter[int] = Counter()

    def count_turns() -> None:
        nonlocal turn
        turn += 1
        if went_on.total() < WAITING_MAX:
            asyncio.get_running_loop().call_soon(count_turns)

    async def wait(keys: KeySet) -> None:
        if is_replacement:
            found = await keys.replacements("old", "EdDSA", ())
        else:
            found = await keys.keys("old", "EdDSA")
        assert ["old"] == [key.kid for key in found]
        went_on[turn] += 1

    issuer.answers.clear()
    async with issuer.authenticator() as known, asyncio.TaskGroup() as herd:
        assert known._key_set is not None
        for _ in range(WAITING_MAX):
            herd.create_task(wait(known._key_set))
        await issuer.reached.wait()
        count_turns()
        issuer.answers.set()
    assert {REQUESTS_PER_TURN} == set(went_on.values())
