"""The runbook's commands, read from its pages and run as an operator runs them, on real servers."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import shlex
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import uuid4

from chaos.server import own_server
from stretto.assembly.settings import ComponentSettings
from stretto.domain import group_id
from support.api_client import SECRET, TEAM, connected_api, token_of
from support.command_process import stretto
from support.database import (
    RUN,
    connect,
    database_at,
    own_database,
    pend,
    seen_by,
)
from support.issuer import OLD, Issuer, bearer
from support.operator_shell import by_psql, operator
from support.pgbouncer import reconnect, running_pgbouncer, url_through
from support.ports import free_port
from support.runbook import COMMANDS, ROOT
from support.service_process import ServiceProcess
from support.traces import collecting_traces
from support.waiting import until
from support.webhook_receiver import receiving

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from support.database import Connection

SERVER = "TEST_POSTGRES_URL"
# The template of a database that has nothing of ours yet.
EMPTY = "template0"
SESSIONS = """SELECT usename FROM pg_stat_activity
              WHERE datname = current_database() AND application_name = 'stretto'"""
RUNBOOK = (ROOT / "docs/operations.md").read_text()


async def create(url: str, key: str, authorization: str) -> int:
    """Create a group; return the answer's status."""
    headers = {"Authorization": authorization, "Idempotency-Key": key}
    async with connected_api(url) as api:
        return (await api.request("POST", "/v1/groups", headers=headers, json=TEAM)).status


async def test_a_first_start(tmp_path: Path) -> None:
    """A schema, an instance, and a group by a token of the issuer's."""
    async with (
        own_database(os.environ[SERVER], EMPTY) as database,
        Issuer("k").serving() as keys,
        operator("first start", tmp_path) as one,
    ):
        one.places = {
            "postgresql://stretto:…@db.internal/stretto": shlex.quote(database),
            "https://issuer.example/keys": keys,
        }
        one.variables["STRETTO_PORT"] = "0"
        database_url, jwks_url, migrate, serve = COMMANDS["first start"]
        await one.export(database_url)
        await one.export(jwks_url)
        assert "applied" in await one.run(migrate)
        assert 201 == await create(await one.serve(serve), "k", bearer(OLD, "k"))


async def test_two_replicas_with_a_role_of_their_own(
    connection: Connection, tmp_path: Path
) -> None:
    """One role owns the tables, the other one serves; events go to a NATS of the runbook's command."""
    *roles, database, grant, nats, export, first, second = COMMANDS["replicas"][:-3]
    owner, app, name = (f"{each}_{uuid4().hex}" for each in ("owner", "app", RUN))
    port = free_port()
    url = database_at(os.environ[SERVER], name)
    try:
        async with Issuer("k").serving() as keys, operator("replicas", tmp_path) as one:
            one.places = {
                "ROLE stretto": f"ROLE {owner}",
                "DATABASE stretto OWNER stretto": f"DATABASE {name} OWNER {owner}",
                "ROLE app": f"ROLE {app}",
                "'…'": "'secret'",
                "to app": f"to {app}",
                "/var/lib/nats": f"{tmp_path}/nats --addr 127.0.0.1 --port {port}",
                "DATABASE_URL=…": f"DATABASE_URL={shlex.quote(seen_by(app, url))}",
                "JWKS_URL=…": f"JWKS_URL={keys}",
                "…@nats.internal": f"secret@127.0.0.1:{port}",
                "--port 8081": "--port 0",
                "--port 8082": "--port 0",
            }
            for statement in (*roles, database):
                await one.run(statement, by_psql(statement, os.environ[SERVER]))
            one.variables["STRETTO_DATABASE_URL"] = seen_by(owner, url)
            await one.run(grant)
            log = await one.start(nats)
            await until(lambda: b"Server is ready" in log.read_bytes())
            await one.export(export)
            urls = [await one.serve(first), await one.serve(second)]
            for each in urls:
                assert 201 == await create(each, "k", bearer(OLD, "k"))
            for command in COMMANDS["replicas"][-3:]:
                assert "stretto_events" in await one.run(command)
            served = await connect(url)
            rows = await served.fetch(SESSIONS)
            await served.close()
            assert {app} == {row["usename"] for row in rows}
            assert len(rows) <= len(urls) * (ComponentSettings().writers + 16)
    finally:
        await connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        for role in (app, owner):
            await connection.execute(f"DROP ROLE IF EXISTS {role}")


async def test_keys_and_passwords_are_rotated(folder: Path) -> None:
    """Tokens of both secrets are good until the old one is removed; no restart for a passfile."""
    prepend, replace, keep_first, password, end, second, grant, lock_out = COMMANDS["rotation"]
    secret, passfile = folder / "jwt-secret", folder / "pgpass"
    secret.write_text(f"{SECRET}\n")
    passfile.touch(mode=0o600)
    old = f"Bearer {token_of('alice')}"
    async with own_server() as server, operator("rotation", folder) as one:
        admin = await server.connect()
        await admin.execute("CREATE ROLE app LOGIN PASSWORD 'old'")
        passfile.write_text("*:*:*:*:old\n")
        one.places = {"'…'": "'new'"}
        place = server.dsn.rpartition("@")[2]
        url = f"postgresql://app@{place}&passfile={passfile}"
        settings = {"DATABASE_URL": url, "JWT_SECRET": "", "JWT_SECRET_FILE": str(secret)}
        assert 0 == (await stretto("migrate", "--grant-to", "app", DATABASE_URL=server.dsn))[0]
        await one.run(prepend)
        await one.run(replace)
        new = f"Bearer {(await stretto('token', 'alice', **settings))[1].strip()}"
        async with ServiceProcess(settings) as service:
            assert 201 == await create(service.url, "k", old)
            assert 201 == await create(service.url, "k", new)
            await one.run(password, by_psql(password, server.dsn))
            one.variables["STRETTO_DATABASE_URL"] = url
            assert 3 == (await stretto("check", **settings))[0]
            passfile.write_text("*:*:*:*:new\n")
            assert "(0 rows)" not in await one.run(end)

            async def has_created() -> bool:
                return await create(service.url, "another", new) == 201

            await until(has_created)
        await one.run(keep_first)
        one.variables["STRETTO_DATABASE_URL"] = server.dsn
        await one.run(second, by_psql(second, server.dsn))
        assert "granted to app2" in await one.run(grant)
        settings["DATABASE_URL"] = url.replace("//app@", "//app2@")
        async with ServiceProcess(settings) as service:
            await one.run(lock_out, by_psql(lock_out, server.dsn))
            assert 401 == await create(service.url, "k", old)
            assert 201 == await create(service.url, "k", new)
        assert 3 == (await stretto("check", **{**settings, "DATABASE_URL": url}))[0]
        await admin.close()


async def test_a_webhook_that_was_disabled_and_is_enabled_again(
    server_url: str, tmp_path: Path
) -> None:
    """What it is sent is signed with the secret that the runbook's command has made."""
    url, secret, enable = COMMANDS["webhook"]
    async with receiving() as receiver, operator("webhook", tmp_path) as one:
        one.places = {"https://backend.internal.example/stretto": receiver.url}
        one.variables["STRETTO_DATABASE_URL"] = server_url
        one.variables["STRETTO_WEBHOOK_ALLOW_PRIVATE"] = "true"
        await one.export(url)
        await one.export(secret)
        receiver.answers.append({"status": 410})
        async with (
            ServiceProcess(one.settings) as service,
            connected_api(service.url) as api,
        ):
            assert 201 == (await api.create("k")).status
            await service.logged(b"webhook.disabled")
            assert "the webhook is enabled" in await one.run(enable)
            await receiver.until(2)
        headers, body = receiver.requests[1]
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        key = base64.b64decode(one.settings["WEBHOOK_SECRET"].removeprefix("whsec_"))
        signature = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        assert f"v1,{signature}" == headers["webhook-signature"]


async def test_an_upgrade_and_its_grants(
    server_url: str, role: str, connection: Connection, tmp_path: Path
) -> None:
    """A plan changes nothing; a role may be granted its rights at any time."""
    plan, grant = COMMANDS["upgrade"]
    tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'stretto'"
    async with (
        own_database(os.environ[SERVER], EMPTY) as database,
        operator("upgrade", tmp_path) as one,
    ):
        one.variables["STRETTO_DATABASE_URL"] = database
        assert "afterwards, instances made for schema" in await one.run(plan)
        empty = await connect(database)
        assert 0 == await empty.fetchval(tables)
        await empty.close()
        one.variables["STRETTO_DATABASE_URL"] = server_url
        await one.run(grant, {"ROLE": role})
    assert await connection.fetchval("SELECT has_table_privilege($1, 'attempt', 'INSERT')", role)


async def test_what_needs_no_database() -> None:
    """Settings, sizes, and the tests of the alerts after a change."""
    settings, size, size_json, promtool = COMMANDS["figures"]
    async with operator("figures", ROOT) as one:
        assert "STRETTO_DATABASE_URL" in await one.run(settings)
        shown = await one.run(size)
        assert all(name in shown for name in ("connections", "max_connections", "max_client_conn"))
        assert json.loads(await one.run(size_json))
        assert "SUCCESS" in await one.run(promtool)


async def test_what_became_of_a_key(
    server_url: str, connection: Connection, tmp_path: Path
) -> None:
    """From the customer's key to its group, whose attempt was lost and left pending."""
    token, date, groups, show, heal, history = COMMANDS["one key"]
    words = {"OWNER": "alice", "KEY": "lost"}
    async with operator("one key", tmp_path) as one:
        one.variables |= {"STRETTO_DATABASE_URL": server_url, "STRETTO_JWT_SECRET": SECRET}
        async with (
            ServiceProcess({"DATABASE_URL": server_url}) as service,
            connected_api(service.url) as api,
        ):
            now = (await one.run(date)).strip()
            assert abs(time.time() - int(now[1:])) < 60
            assert 201 == (await api.create("lost", first_sent=now)).status
            (shown,) = re.findall("^    Idempotency-First-Sent: (.+)$", RUNBOOK, re.MULTILINE)
            # So long ago that it starts nothing; and it was understood.
            late = await api.create("late", first_sent=shown)
            assert (422, "first_sent_out_of_range") == (late.status, late.json["code"])
            reader = (await one.run(token, {"USER": "alice"})).strip()
            headers = {"Authorization": f"Bearer {reader}"}
            assert 200 == (await api.get("/v1/groups", headers=headers)).status
            assert 403 == await create(service.url, "no", headers["Authorization"])
        id_ = str(group_id("alice", "lost"))
        for command in (groups, show, history):
            assert id_ in await one.run(command, words)
        fingerprint = await connection.fetchval("DELETE FROM attempt RETURNING fingerprint")
        await pend(connection, "lost", fingerprint)
        await one.run(heal, words)
        assert "healed" in await one.run(history, words)


async def test_what_is_too_old_is_swept(
    server_url: str, connection: Connection, tmp_path: Path
) -> None:
    """A dry run leaves it; and what is left is sound."""
    sweep, count, check = COMMANDS["upkeep"]
    await pend(connection, "old", seconds_ago=31 * 86400)
    async with operator("upkeep", tmp_path) as one:
        one.variables["STRETTO_DATABASE_URL"] = server_url
        assert "would delete 1 of attempt," in await one.run(count)
        assert "deleted 1 of attempt," in await one.run(sweep)
        await one.run(check)


async def test_questions_to_the_database(
    server_url: str, connection: Connection, tmp_path: Path
) -> None:
    """As they stand there; the one that ends a backend ends it."""
    queries = COMMANDS["queries"]
    *_, owner, row, archive, locks = queries
    standby, takes_writes, pending, waiting, backends, end, rows = queries[:7]
    id_ = str(await pend(connection, "k"))
    victim = await connect(server_url)
    async with operator("queries", tmp_path) as one:
        one.variables["STRETTO_DATABASE_URL"] = server_url
        for command in (standby, takes_writes, pending, waiting, backends, archive):
            assert re.search(r"\(\d rows?\)", await one.run(command))
        for command in (rows, owner, row):
            assert "alice" in await one.run(command, {"'ID'": f"'{id_}'", "…": id_})
        await one.run(locks, {locks: f"stretto psql -c {shlex.quote(locks)}"})
        pid = str(await victim.fetchval("SELECT pg_backend_pid()"))
        assert "(1 row)" in await one.run(end, {"PID": pid})
    await until(victim.is_closed)


async def test_a_request_is_traced(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever share of the others is: its client has sampled it."""
    endpoint, sampler, curl = COMMANDS["traces"]
    async with collecting_traces() as collector, operator("traces", tmp_path) as one:
        one.places = {"http://collector.internal:4318": collector.endpoint}
        for line in (endpoint, sampler):
            await one.export(line)
        for name, value in one.variables.items():
            if name.startswith("OTEL_"):
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        async with ServiceProcess({"DATABASE_URL": server_url}) as service:
            header = f"Authorization: Bearer {token_of('alice')}"
            more = shlex.join(("-s", "-H", header, f"{service.url}/v1/groups"))
            assert '"groups"' in await one.run(curl, {"…": more})
            await collector.until(lambda: collector.spans != [])


async def test_a_service_behind_pgbouncer(
    server_url: str, role: str, connection: Connection, tmp_path: Path
) -> None:
    """The role gets its settings by these statements, and PgBouncer forgets its old sessions."""
    url, *statements = COMMANDS["pooler"]
    name = urlsplit(server_url).path[1:]
    granted = await stretto("migrate", "--grant-to", role, DATABASE_URL=server_url)
    assert 0 == granted[0], granted
    with running_pgbouncer(seen_by(role, server_url)) as folder:
        through = url_through(folder, server_url)
        async with operator("pooler", tmp_path) as one:
            one.places = {
                "postgresql://app:…@pooler:6432/stretto?pgbouncer=true": shlex.quote(through),
                "ROLE app IN DATABASE stretto": f"ROLE {role} IN DATABASE {name}",
            }
            await one.export(url)
            started = await stretto("serve", **one.settings, JWT_SECRET=SECRET)
            assert (2, True) == (started[0], "ALTER ROLE" in started[2]), started
            for statement in statements:
                await one.run(statement, by_psql(statement, server_url))
            await reconnect(folder)
            async with ServiceProcess(one.settings) as service:
                assert 201 == await create(service.url, "k", f"Bearer {token_of('alice')}")
