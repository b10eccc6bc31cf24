"""A real nats-server that asks for proof: credentials, an nkey, a certificate of the client."""

from __future__ import annotations

import asyncio
import binascii
import time
from base64 import b32encode, urlsafe_b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.errors import Error as NatsError

from stretto.nats.access import NatsSettings
from stretto.nats.connection import NatsConnection
from stretto.observations import BusFailed
from stretto.runtime.actor import TryAgain
from stretto.runtime.runner import Runner
from support.certificate import make_certificate
from support.nats_process import NatsProcess
from support.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from stretto.observations import Observation

DEADLINE_SECONDS = 60
OPERATOR, ACCOUNT, USER = (kind << 3 for kind in (14, 0, 20))
UNLIMITED = {"subs": -1, "data": -1, "payload": -1}


class Nkey:
    """An nkey of one kind."""

    def __init__(self, kind: int) -> None:
        self.private = Ed25519PrivateKey.generate()
        self.public = encoded(bytes([kind]) + self.private.public_key().public_bytes_raw())
        # The kind of what the seed is for begins in the last three bits of the first byte.
        prefix = bytes([18 << 3 | kind >> 5, (kind & 0x1F) << 3])
        self.seed = encoded(prefix + self.private.private_bytes_raw())

    def issue(self, subject: Nkey, kind: str, **claims: Any) -> str:
        """Return a JWT about another nkey, signed with this one."""
        now = int(time.time())
        content = {"jti": str(now), "iat": now, "iss": self.public, "sub": subject.public}
        content |= {"name": kind, "nats": {"type": kind, "version": 2, **claims}}
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        signed = b".".join(
            urlsafe_b64encode(orjson.dumps(e)).rstrip(b"=") for e in (header, content)
        )
        signature = urlsafe_b64encode(self.private.sign(signed)).rstrip(b"=")
        return (signed + b"." + signature).decode()


def encoded(content: bytes) -> str:
    """Return a key as NATS writes it."""
    checksum = binascii.crc_hqx(content, 0).to_bytes(2, "little")
    return b32encode(content + checksum).decode().rstrip("=")


async def connects(url: str, settings: NatsSettings | None = None) -> None:
    """Assert that a connection comes about."""
    connection = NatsConnection(url, lambda _: None, settings)
    async with Runner(lambda _: None) as runner, asyncio.timeout(DEADLINE_SECONDS):
        runner.start(connection)
        await connection.linked()


async def test_a_right_that_was_taken_away_and_given_back_leaves_no_connection_deaf(
    tmp_path: Path,
) -> None:
    """The server drops what was subscribed to, and keeps the connection."""
    conf = tmp_path / "users.conf"

    def allow(permissions: str = "") -> None:
        conf.write_text(f"authorization {{ users: [{{user: u, password: p {permissions}}}] }}")

    async def answers() -> bool:
        try:
            await (await connection.linked()).jetstream.account_info()
        except (NatsError, TimeoutError):
            return False
        return True

    allow()
    observed: list[Observation] = []
    async with (
        NatsProcess(tmp_path / "js", "--config", str(conf)) as server,
        asyncio.timeout(DEADLINE_SECONDS),
        Runner(lambda _: None) as runner,
    ):
        connection = NatsConnection(
            server.url.replace("nats://", "nats://u:p@"), observed.append, NatsSettings()
        )
        runner.start(connection)
        assert await answers()
        allow(', permissions: {subscribe: {deny: ["_INBOX.>"]}}')
        await server.reload()
        await until(lambda: any(isinstance(each, BusFailed) for each in observed))
        allow()
        await server.reload()
        await until(answers)


async def failure(url: str, settings: NatsSettings | None = None) -> str:
    """Try to connect once; return what is reported."""
    observed: list[Observation] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        with pytest.raises(TryAgain):
            await NatsConnection(url, observed.append, settings).run_once()
    last = observed[-1]
    assert isinstance(last, BusFailed)
    return last.cause


@pytest.mark.parametrize("password", ["p w@/#?:,", "q1+Z/x==", "100%", "%2F"])
async def test_user_and_password_in_a_url_are_percent_encoded(
    password: str, tmp_path: Path
) -> None:
    """Written otherwise it is another password, and what is reported says how it is written."""
    async with NatsProcess(tmp_path, "--user", "a b", "--pass", password) as server:
        place = server.url.removeprefix("nats://")
        await connects(f"nats://a%20b:{quote(password, safe='')}@{place}")
        twice = quote(quote(f"{password}/", safe=""), safe="")
        cause = await failure(f"nats://a%20b:{twice}@{place}")
        assert "Authorization Violation" in cause
        assert "In STRETTO_NATS_URL they are percent-encoded: %2F for a /" in cause


async def test_a_token_in_a_url_is_percent_encoded(tmp_path: Path) -> None:
    """As user and password are."""
    async with NatsProcess(tmp_path, "--auth", "t/k#n") as server:
        place = server.url.removeprefix("nats://")
        await connects(f"nats://t%2Fk%23n@{place}")
        assert "Authorization Violation" in await failure(f"nats://t%252Fk%2523n@{place}")


async def test_an_nkey_is_proved_by_its_seed(tmp_path: Path) -> None:
    """And another one is refused."""
    ours, other = Nkey(USER), Nkey(USER)
    conf = tmp_path / "nats.conf"
    conf.write_text(f"authorization {{ users: [{{nkey: {ours.public}}}] }}")
    async with NatsProcess(tmp_path / "js", "--config", str(conf)) as server:
        await connects(server.url, NatsSettings(nats_credentials=ours.seed))
        for settings in (None, NatsSettings(nats_credentials=other.seed)):
            assert "Authorization Violation" in await failure(server.url, settings)


async def test_a_creds_file_is_what_an_account_has_issued(tmp_path: Path) -> None:
    """JWT and seed; the JWT of one user with the seed of another proves nothing."""
    operator, system, account = Nkey(OPERATOR), Nkey(ACCOUNT), Nkey(ACCOUNT)
    user, other = Nkey(USER), Nkey(USER)
    limits = {**UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    accounts = {
        each.public: operator.issue(each, "account", limits=limits) for each in (system, account)
    }
    conf = tmp_path / "nats.conf"
    conf.write_text(
        f"operator: {operator.issue(operator, 'operator')}\nsystem_account: {system.public}\n"
        "resolver: MEMORY\nresolver_preload: {\n"
        + "\n".join(f"{key}: {jwt}" for key, jwt in accounts.items())
        + "\n}\n"
    )
    jwt = account.issue(user, "user", pub={}, sub={}, **UNLIMITED)
    begin = f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n"
    files = [
        f"{begin}-----BEGIN USER NKEY SEED-----\n{each.seed}\n------END USER NKEY SEED------\n"
        for each in (user, other)
    ]
    async with NatsProcess(tmp_path / "js", "--config", str(conf)) as server:
        await connects(server.url, NatsSettings(nats_credentials=files[0]))
        for settings in (None, NatsSettings(nats_credentials=files[1])):
            assert "Authorization Violation" in await failure(server.url, settings)


async def test_a_server_of_a_private_authority_gets_our_certificate(tmp_path: Path) -> None:
    """With `nats://` as well: a URL that names an authority wants TLS."""
    paths = make_certificate(tmp_path)
    certificate, key = (path.read_text() for path in paths)
    conf = tmp_path / "nats.conf"
    conf.write_text(
        f"tls {{cert_file: '{paths[0]}', key_file: '{paths[1]}', ca_file: '{paths[0]}', verify: true}}"
    )
    ours = NatsSettings(nats_tls_ca=certificate, nats_tls_cert=certificate, nats_tls_key=key)
    async with NatsProcess(tmp_path / "js", "--config", str(conf)) as server:
        await connects(server.url, ours)
        await connects(server.url.replace("nats://", "tls://"), ours)
        # Without our own certificate the server ends the connection.
        await failure(server.url, NatsSettings(nats_tls_ca=certificate))
        assert "certificate" in (await failure(server.url)).lower()
    async with NatsProcess(tmp_path / "plain") as server:
        assert (await failure(server.url, ours)).startswith("the server offers no TLS")
