"""The runbook's recipes for certificates on both sides, as they stand there, in real servers."""

from __future__ import annotations

import asyncio
import re
import shlex
import ssl
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import asyncpg
import pytest

from chaos.server import OwnServer
from stretto.embedded.account import server_account
from stretto.embedded.place import ServerPlace
from support.api_client import SECRET, api_for, connected_api
from support.certificate import Authority
from support.command_process import stretto
from support.nats_process import NatsProcess
from support.ports import free_port
from support.proxies import running_sample
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

DEADLINE_SECONDS = 60
RUNBOOK = (Path(__file__).parents[2] / "docs/operations.md").read_text()
# Debian's, newest last: the embedded PostgreSQL is built without TLS.
PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda each: int(each.parent.name))
PASSWORD = "a-password"


def recipe(title: str, folder: Path, **places: str) -> str:
    """Return the lines of the runbook below a comment, with a test's folder and addresses."""
    (lines,) = re.findall(rf"^    # {re.escape(title)}\n((?:    .+\n)+)", RUNBOOK, re.MULTILINE)
    text = re.sub("^    ", "", lines, flags=re.MULTILINE)
    assert "/etc/stretto/" in text or "hostssl" in text
    for old, new in {"/etc/stretto": str(folder), **places}.items():
        text = text.replace(old, new)
    return text


def settings_of(lines: str) -> dict[str, str]:
    """Return the settings that lines of a shell name, without their prefix."""
    pairs = (each.split("=", 1) for each in shlex.split(lines))
    return {name.removeprefix("STRETTO_"): value for name, value in pairs}


@asynccontextmanager
async def postgres(folder: Path) -> AsyncIterator[OwnServer]:
    """Run a PostgreSQL by the recipe, with an owner of its tables, who needs no certificate."""
    account = server_account()
    place = ServerPlace(account, folder / "server", PROGRAMS[-1])
    place.folder.mkdir()
    place.password.write_text(PASSWORD)
    account.own(folder)
    made = await asyncio.to_thread(
        place.run,
        *("initdb", "-D", str(place.cluster), "-U", "owner", "--pwfile", str(place.password)),
        *("--auth", "scram-sha-256", "-E", "UTF8", "--no-locale"),
    )
    assert made[0] == 0, made[1]
    with (place.cluster / "postgresql.conf").open("a") as file:
        file.write(recipe("postgresql.conf", folder))
    rules = recipe("pg_hba.conf", folder)
    (place.cluster / "pg_hba.conf").write_text(f"{rules}host all owner all scram-sha-256\n")
    server = OwnServer(place, free_port())
    assert await server.start(), (place.cluster / "start.log").read_text()
    try:
        yield server
    finally:
        await server.stop("immediate")


@asynccontextmanager
async def owner_of(server: OwnServer) -> AsyncIterator[Connection]:
    """Connect as the owner."""
    connection = await asyncpg.connect(f"{owner_url(server)}/postgres?sslmode=disable")
    yield connection
    await connection.close()


def owner_url(server: OwnServer) -> str:
    """Return the owner's address of a server, without a database."""
    return f"postgresql://owner:{PASSWORD}@127.0.0.1:{server.port}"


async def test_a_database_that_asks_for_certificates_serves_ours_alone(folder: Path) -> None:
    """Every connection has TLS and the role's certificate; none goes without, or with another."""
    authority = Authority(folder)
    for name in ("db", "app", "another"):
        authority.issue(name)
    Authority(folder, "stranger")
    async with asyncio.timeout(DEADLINE_SECONDS), postgres(folder) as server:
        async with owner_of(server) as owner:
            await owner.execute("CREATE DATABASE stretto")
            await owner.execute(f"CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'")
        owners = f"{owner_url(server)}/stretto?sslmode=disable"
        code, _, errors = await stretto("migrate", "--grant-to", "app", DATABASE_URL=owners)
        assert code == 0, errors
        # By its name, which the certificate has as well.
        places = {"db.internal": f"localhost:{server.port}", "…": PASSWORD}
        # The recipe's files belong to the server here, and root reads them as well.
        settings = settings_of(recipe("stretto and PostgreSQL", folder, **places))
        async with ServiceProcess(settings) as service, connected_api(service.url) as api:
            assert 201 == (await api.create("k")).status
            async with owner_of(server) as owner:
                rows = await owner.fetch(
                    """SELECT ssl, client_dn FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
                       WHERE usename = 'app'"""
                )
        assert {(True, "/CN=app")} == {(row["ssl"], row["client_dn"]) for row in rows}
        url = settings["DATABASE_URL"]
        own = f"&sslcert={folder}/app.crt&sslkey={folder}/app.key"
        for refused, words in (
            (url.removesuffix(own), "valid client certificate"),
            (url.replace("/app.", "/another."), "authentication failed"),
            (url.replace("/ca.crt", "/stranger.crt"), "TLS failed"),
            (url.partition("?")[0] + "?sslmode=disable", "no encryption"),
        ):
            assert refused != url
            code, _, errors = await stretto("check", DATABASE_URL=refused)
            assert (3, True) == (code, words in errors), errors


async def test_a_nats_that_asks_for_certificates_serves_ours_alone(
    tmp_path: Path, database_url: str
) -> None:
    """The twins have none, and one of another authority."""
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    for name in ("nats", "stretto"):
        authority.issue(name)
    others = stranger.issue("stretto-too")
    conf = tmp_path / "nats-server.conf"
    conf.write_text(recipe("nats-server.conf", tmp_path))
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        NatsProcess(tmp_path / "js", "--config", str(conf)) as server,
    ):
        places = {"nats.internal:4222": f"127.0.0.1:{server.port}"}
        settings = settings_of(recipe("stretto and NATS", tmp_path, **places))
        base = {"DATABASE_URL": database_url, "JWT_SECRET": SECRET}
        async with ServiceProcess({**base, **settings}) as service:
            await service.logged(b"bus.connected")
        code, output, errors = await stretto("bus", **base, **settings)
        assert (0, True) == (code, "stretto_events" in output), errors
        without = {name: settings[name] for name in ("NATS_URL", "NATS_TLS_CA_FILE")}
        files = dict(
            zip(("NATS_TLS_CERT_FILE", "NATS_TLS_KEY_FILE"), map(str, others), strict=True)
        )
        for refused in (without, settings | files):
            code, _, errors = await stretto("bus", **base, **refused)
            assert (3, True) == (code, "NATS does not answer as it should" in errors), errors


@pytest.mark.parametrize("proxy", ["haproxy", "nginx"])
async def test_a_proxy_that_asks_for_certificates_passes_on_no_other_client(
    proxy: str, tmp_path: Path, database_url: str, connection: Connection
) -> None:
    """With the lines of our samples that are commented out; a token alone is not enough."""
    authority, stranger = Authority(tmp_path, "clients"), Authority(tmp_path, "stranger")
    certificates = authority.issue("client"), stranger.issue("another"), None
    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        api_for(database_url) as service,
        running_sample(
            proxy, tmp_path, service.url, service.url, clients=authority.certificate
        ) as url,
    ):
        for number, certificate in enumerate(certificates):
            tls = ssl.create_default_context(cafile=tmp_path / "server.crt")
            if certificate is not None:
                tls.load_cert_chain(*certificate)
            async with connected_api(url, tls) as api:
                if number == 0:
                    assert 201 == (await api.create("k")).status
                    continue
                # haproxy ends the handshake, nginx answers by itself.
                try:
                    reply = await api.create(f"k{number}")
                except aiohttp.ClientError:
                    continue
                assert (400, False) == (reply.status, b"stretto" in reply.body)
    assert 1 == await connection.fetchval("SELECT count(*) FROM chat_group")
