"""Roles: what `stretto migrate --grant-to` gives, and what a role that lacks something is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from stretto.assembly.opening import open_component
from stretto.domain import NewGroup, UserId
from stretto.postgres.migrate import PRIVILEGES, grant, migrate
from stretto.postgres.migration_steps import Step, newest_number
from stretto.postgres.queries import schema_file
from stretto.store_errors import Unreachable
from support.api_client import SECRET, connected_api
from support.command_process import stretto
from support.database import login_role
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection


@pytest_asyncio.fixture
async def role(connection: Connection) -> AsyncIterator[str]:
    """A role that may log in, and nothing else; its name needs quotes."""
    async with login_role(connection, f"App {uuid4().hex}") as role:
        yield role


async def served(command: str, url: str) -> tuple[int, str]:
    """Run a command on a database that cannot be served; return its code and what it says."""
    arguments = ("attempt", "alice", "k") if command == "attempt" else (command,)
    code, _, errors = await stretto(*arguments, DATABASE_URL=url, JWT_SECRET=SECRET)
    return code, errors


async def test_a_role_that_was_granted_to_serves_and_looks_after_everything(
    role: str, role_url: str, database_url: str
) -> None:
    """Creating, reading, sessions, the webhook, sweeping, checking; granting twice is no error."""
    command = ("migrate", "--grant-to", role, "--grant-to", role)
    for _ in range(2):
        said = f"up to date\ngranted to {role}\n"
        assert (0, said) == (await stretto(*command, DATABASE_URL=database_url))[:2]
    settings = {
        "DATABASE_URL": role_url,
        "WEBHOOK_URL": "http://127.0.0.1:1/",
        "WEBHOOK_ALLOW_PRIVATE": "true",
        "WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    }
    async with ServiceProcess(settings) as service, connected_api(service.url) as api:
        assert (await api.create("k")).status == 201
        assert (await api.get("/v1/attempts/k")).status == 200
        assert (await api.get("/v1/groups")).status == 200
        assert (await api.get("/readyz", user=None)).status == 200
    for name in ("check", "sweep", "events"):
        assert (await stretto(name, DATABASE_URL=role_url))[0] == 0
    code, _, errors = await stretto("events", "--enable-webhook", DATABASE_URL=role_url)
    assert (0, "") == (code, errors)


async def test_a_role_that_cannot_grant_is_sent_to_the_owner(
    role: str, role_url: str, connection: Connection
) -> None:
    """PostgreSQL only warns one that has rights itself; who has none is refused."""
    other = f"other_{uuid4().hex}"
    await connection.execute(f"CREATE ROLE {other}")
    owner = await connection.fetchval("SELECT current_user")
    await grant(connection, "stretto", [role])
    command = ("migrate", "--grant-to", other)
    code, output, errors = await stretto(*command, DATABASE_URL=role_url)
    assert (2, "") == (code, output)
    assert f"nothing could be granted to {other}; run it as the owner {owner}\n" in errors
    # What is there already need not be granted by its owner.
    await grant(connection, "stretto", [other])
    assert 0 == (await stretto(*command, DATABASE_URL=role_url))[0]
    await connection.execute(f"""DROP OWNED BY {other}, "{role}"; DROP ROLE {other}""")


@pytest.mark.parametrize("option", ["", "--plan", "--grant-to"])
async def test_a_schema_that_a_role_may_not_use_is_not_taken_for_a_missing_one(
    option: str, role: str, role_url: str, connection: Connection
) -> None:
    """The owner is named; nothing is planned, tried or granted. One that is missing is planned."""
    options = {"": (), "--plan": ("--plan",), "--grant-to": ("--grant-to", role)}[option]
    owner = await connection.fetchval("SELECT current_user")
    code, output, errors = await stretto("migrate", *options, DATABASE_URL=role_url)
    assert (2, "") == (code, output)
    lack = f'the role "{role}" lacks the right USAGE on the schema stretto'
    assert f"stretto: {lack}; run this as its owner, {owner}\n" == errors
    await grant(connection, "stretto", [role])
    plan = ("migrate", "--plan")
    assert (0, "up to date\n") == (await stretto(*plan, DATABASE_URL=role_url))[:2]
    await connection.execute("DROP SCHEMA stretto CASCADE")
    code, output, _ = await stretto(*plan, DATABASE_URL=role_url)
    assert 0 == code
    assert "the whole schema" in output


async def test_a_role_that_there_is_not_is_a_usage_error(
    database_url: str, connection: Connection
) -> None:
    """Before anything is changed."""
    await connection.execute("DROP SCHEMA stretto CASCADE")
    code, _, errors = await stretto("migrate", "--grant-to", "nosuch", DATABASE_URL=database_url)
    assert code == 2
    assert "there is no role nosuch" in errors
    assert not await connection.fetchval("SELECT to_regnamespace('stretto') IS NOT NULL")


async def test_a_role_gets_no_more_than_the_service_needs(
    role: str, role_url: str, connection: Connection
) -> None:
    """It can neither change the schema, nor say which it is, nor delete a group."""
    await grant(connection, "stretto", [role])
    app = await asyncpg.connect(role_url)
    for statement in (
        "CREATE TABLE stretto.more ()",
        "UPDATE stretto.schema_version SET number = 1",
        "DELETE FROM stretto.chat_group",
        "TRUNCATE stretto.attempt",
        "TRUNCATE stretto.outbox",
        "DELETE FROM stretto.outbox",
        "UPDATE stretto.outbox SET subject = event_id",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute(statement)
    await app.close()


async def test_tables_of_later_migrations_are_granted_too(
    role: str, role_url: str, connection: Connection
) -> None:
    """By default privileges; without them the next migration would end the service."""
    await grant(connection, "stretto", [role])
    later = [Step(newest_number() + 1, "CREATE TABLE later (x integer)")]
    assert [newest_number() + 1] == await migrate(connection, "stretto", later)
    app = await asyncpg.connect(role_url)
    assert [] == await app.fetch("TABLE stretto.later")
    await app.close()


def test_every_table_has_its_privileges() -> None:
    """A table that a change adds must be granted, or roles without rights meet it in a request."""
    text = schema_file().read_text("utf-8")
    assert set(PRIVILEGES) == {
        line.split()[2]
        for line in text.splitlines()
        if line.startswith(("CREATE TABLE ", "CREATE VIEW "))
    }


@pytest.mark.parametrize("command", ["serve", "check", "sweep", "events", "attempt"])
async def test_a_role_without_rights_is_answered_with_the_command_that_grants(
    command: str, role: str, role_url: str, connection: Connection
) -> None:
    """Exit 2: first for the schema, then for the tables of a migration; no class, no traceback."""
    code, errors = await served(command, role_url)
    assert (2, f'stretto: the role "{role}" lacks the right to use the schema') == (
        code,
        errors[: errors.index(" of the tables")],
    )
    assert f"stretto migrate --grant-to '{role}'" in errors
    await grant(connection, "stretto", [role])
    await connection.execute(
        f"""REVOKE ALL ON outbox_reader, outbox_7 FROM "{role}";
            REVOKE DELETE ON attempt FROM "{role}" """
    )
    code, errors = await served(command, role_url)
    assert code == 2
    assert "lacks rights on the tables attempt, outbox_7, outbox_reader; run" in errors


async def test_the_grant_of_a_function_of_the_servers_is_named(
    role: str, role_url: str, connection: Connection
) -> None:
    """Every role has it, unless a hardened server has revoked it; the statement helps as it is."""
    await grant(connection, "stretto", [role])
    await connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    code, errors = await served("serve", role_url)
    assert 2 == code
    statement = f'GRANT EXECUTE ON FUNCTION pg_control_system() TO "{role}"'
    assert errors.endswith(f"in this database: {statement}\n")
    await connection.execute(statement)
    assert 0 == (await stretto("check", DATABASE_URL=role_url))[0]


async def test_a_role_that_may_not_read_the_view_of_settings_serves(
    role: str, role_url: str, connection: Connection
) -> None:
    """A hardened server keeps it from all: neither the service, commands, a pool nor a hook needs it."""
    await grant(connection, "stretto", [role])
    await connection.execute("REVOKE SELECT ON pg_settings FROM PUBLIC")
    settings = {"DATABASE_URL": role_url}
    async with ServiceProcess(settings) as service, connected_api(service.url) as api:
        assert (await api.create("k")).status == 201
        assert (await api.get("/readyz", user=None)).status == 200
    assert 0 == (await stretto("check", DATABASE_URL=role_url))[0]

    async def hook(session: Any, _: object) -> None:
        await session.execute("SELECT 1")

    async with (
        asyncpg.create_pool(
            role_url, min_size=0, max_size=9, server_settings={"search_path": "stretto"}
        ) as pool,
        open_component(pool=pool, on_create=hook) as component,
    ):
        group = NewGroup.parse(UserId("alice"), {"name": "a", "members": ["bob"]})
        assert (await component.create("l", group)).group is not None


@pytest.mark.parametrize("command", ["serve", "check", "sweep", "events", "attempt", "migrate"])
async def test_a_right_that_the_first_statements_lack_is_no_missing_right_to_connect(
    command: str, role_url: str, connection: Connection
) -> None:
    """Exit 2, as no other start helps: what is missing is named, and what to grant."""
    await connection.execute(
        "REVOKE EXECUTE ON FUNCTION set_config(text, text, boolean) FROM PUBLIC"
    )
    code, errors = await served(command, role_url)
    assert 2 == code
    assert "permission denied for function set_config (SQLSTATE 42501); have a superuser" in errors
    assert "GRANT EXECUTE ON FUNCTION" in errors
    assert "GRANT CONNECT" not in errors


@pytest.mark.parametrize("command", ["serve", "check", "sweep", "events", "attempt"])
async def test_an_older_schema_is_not_served(
    command: str, database_url: str, connection: Connection
) -> None:
    """Both numbers are named, and the command that helps."""
    await connection.execute("UPDATE schema_version SET number = 1")
    code, errors = await served(command, database_url)
    assert code == 2
    expected = f"the database has schema 1, this stretto needs {newest_number()}; run `stretto mig"
    assert expected in errors


async def test_a_newer_schema_is_served_and_said(database_url: str, connection: Connection) -> None:
    """While an update is rolled out, instances of the version before are started again."""
    await connection.execute("UPDATE schema_version SET number = number + 1")
    async with ServiceProcess({"DATABASE_URL": database_url}) as service:
        assert b'"schema.newer"' in b"".join(service.log)
        async with connected_api(service.url) as api:
            assert (await api.create("k")).status == 201


async def test_a_host_is_answered_the_same(
    role: str, role_url: str, database_url: str, connection: Connection
) -> None:
    """With connections of the component's own, and with the host's pool."""
    await grant(connection, "stretto", [role])
    await connection.execute(f'REVOKE ALL ON outbox_reader FROM "{role}"')
    with pytest.raises(Unreachable, match="lacks rights on the tables outbox_reader;"):
        async with open_component(role_url):
            pass
    pool = asyncpg.create_pool(database_url, server_settings={"search_path": "stretto"})
    async with pool:
        async with open_component(pool=pool):
            pass
        await connection.execute("UPDATE schema_version SET number = 1")
        with pytest.raises(Unreachable, match="has schema 1"):
            async with open_component(pool=pool):
                pass
