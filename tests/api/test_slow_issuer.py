"""Tokens that are not valid, while their issuer hangs."""

from __future__ import annotations

import asyncio

import pytest

from stretto.assembly.application import create_app
from stretto.http.front.serving import serving
from stretto.http.service import SERVICE
from stretto.http.settings import ConnectionLimits
from stretto.http.tokens import jwks
from stretto.http.tokens.jwks import KeySet
from stretto.http.tokens.settings import TokenSettings
from support.issuer import NEW, OLD, Issuer, bearer
from support.raw_client import creation, raw_clients
from support.waiting import until

# Nothing here takes as long: what hangs must not hang the suite.
DEADLINE_SECONDS = 60
CONNECTIONS_MAX = 40
# An eighth of them.
WAITING = 5
READY = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"


def reading(authorization: str, path: str = "groups", accepted: str = "application/json") -> bytes:
    """Return a request with this token."""
    return (
        f"GET /v1/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\n"
        f"Accept: {accepted}\r\n\r\n"
    ).encode()


def with_false_token(number: int) -> bytes:
    """Return a request that waits for the issuer: of an unknown key, or not of the known one."""
    unknown = bearer(NEW, f"unknown {number}")
    return (
        reading(unknown),
        reading(bearer(NEW, "k")),
        reading(unknown, "events", "text/event-stream"),
        creation(unknown.removeprefix("Bearer "), f"k{number}"),
    )[number % 4]


@pytest.mark.parametrize("is_bounded", [True, False], ids=["bounded", "unbounded"])
async def test_false_tokens_take_few_connections_while_the_issuer_hangs(
    is_bounded: bool, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever they ask for. Without the bound they take all, and others are closed unanswered."""
    monkeypatch.setattr(jwks, "FETCH_SECONDS", None)
    monkeypatch.setattr(jwks, "LOOK_AGAIN_SECONDS", 0.0)
    if not is_bounded:
        monkeypatch.setattr(KeySet, "bound_waits", lambda *_: None)
    issuer = Issuer("k")
    async with asyncio.timeout(DEADLINE_SECONDS), issuer.serving() as url:
        app = create_app(dsn=database_url, tokens=TokenSettings(jwks_url=url))
        limits = ConnectionLimits(connections_max=CONNECTIONS_MAX)
        async with (
            serving(app, host="127.0.0.1", port=0, limits=limits) as port,
            raw_clients(f"http://127.0.0.1:{port}") as raw,
        ):
            keys = app[SERVICE].authenticator._key_set
            assert keys is not None
            await until(keys.has_keys)
            issuer.answers.clear()
            clients = [await raw.connect(with_false_token(n)) for n in range(CONNECTIONS_MAX)]
            waiting = WAITING if is_bounded else CONNECTIONS_MAX
            await until(lambda: keys._waiting == waiting)
            await until(lambda: CONNECTIONS_MAX == waiting + sum(bool(c.answered) for c in clients))
            for client in clients:
                if client.answered:
                    status, headers, document = await client.answer()
                    assert (503, "overloaded") == (status, document["code"])
                    assert "1" == headers["retry-after"]
            good = [await raw.connect(first) for first in (reading(bearer(OLD, "k")), READY)]
            if is_bounded:
                assert [200, 200] == [(await client.answer())[0] for client in good]
            else:
                assert [b"", b""] == [await client.closed() for client in good]
