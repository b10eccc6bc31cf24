"""Starts that are refused: at once where waiting heals nothing, by one process, in words."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from stretto.postgres import connecting
from stretto.postgres.connections import Database
from stretto.postgres.queries import QUERIES
from stretto.provision import _acquire_patiently
from stretto.start_errors import ConfigurationError
from stretto.store_errors import Unreachable
from support.command_process import stretto
from support.service_process import ServiceProcess

if TYPE_CHECKING:
    from pathlib import Path

    from support.database import Connection

AWAY = "postgresql://u:secret@127.0.0.1:1/x"
PEM_BEGIN, PEM_END = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"
# PostgreSQL is made and started twice.
DEADLINE_SECONDS: Final = 100


async def never(_: float) -> None:
    """Fail where a try is waited for."""
    pytest.fail("it waits for what does not heal")


async def refusal(url: str, kind: type[Exception] = Unreachable) -> str:
    """Return what is said of a URL that is given up at the first try, with an error of this kind."""
    async with Database(url) as database:
        with pytest.raises(kind) as error:
            await _acquire_patiently(database, "there", never)
    message = str(error.value)
    assert message.startswith("no connection to the database at there: ")
    assert "\n" not in message
    assert "secret" not in message
    return message


async def test_a_role_that_may_not_connect_is_not_waited_for(
    role_url: str, connection: Connection
) -> None:
    """Another one must give it the right."""
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'REVOKE CONNECT ON DATABASE "{name}" FROM PUBLIC')
    message = await refusal(role_url)
    assert f'permission denied for database "{name}" (SQLSTATE 42501); have' in message
    assert "GRANT CONNECT" in message


@pytest.mark.parametrize(
    ("expected", "parameter"),
    [
        ('unrecognized configuration parameter "frobnicate" (SQLSTATE 42704)', "frobnicate=1"),
        ('invalid value for parameter "work_mem": "all" (SQLSTATE 22023)', "work_mem=all"),
    ],
)
async def test_a_parameter_that_the_server_does_not_take_is_not_waited_for(
    expected: str, parameter: str, database_url: str
) -> None:
    """The server takes what the driver does not know for a setting of its own."""
    message = await refusal(f"{database_url}&{parameter}", ConfigurationError)
    assert f"{expected}; correct the parameters of STRETTO_DATABASE_URL" in message


async def test_a_database_that_there_is_not_is_not_waited_for(database_url: str) -> None:
    """Nor is it made: that is the operator's."""
    message = await refusal(urlsplit(database_url)._replace(path="/nosuch").geturl())
    assert 'database "nosuch" does not exist (SQLSTATE 3D000); create the database' in message


@pytest.mark.parametrize(
    ("expected", "url"),
    [
        ("`sslmode` parameter must be one of: disable, ", f"{AWAY}?sslmode=sometimes"),
        ("No such TLS version: 9", f"{AWAY}?sslmode=require&ssl_min_protocol_version=9"),
        ("cannot read the database's URL; correct", "postgresql://u@/x?host=127.0.0.1&port=secret"),
        ("cannot read the database's URL; correct", f"{AWAY}?secret"),
        ("cannot read the database's URL; correct", "postgresql://u@secret..example/x"),
    ],
)
async def test_a_url_that_the_driver_cannot_use_is_not_waited_for(expected: str, url: str) -> None:
    """Whatever it raises for it; only its own words are passed on, which quote no password."""
    message = await refusal(url, ConfigurationError)
    assert expected in message
    assert "STRETTO_DATABASE_URL" in message


async def test_a_variable_that_the_driver_cannot_use_is_named(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL is complete: the variable is wrong."""
    monkeypatch.setenv("PGPORT", "x")
    message = await refusal(database_url, ConfigurationError)
    assert "PGPORT" in message
    assert "STRETTO_DATABASE_URL" not in message


async def test_tls_that_the_server_does_not_have_is_not_waited_for(database_url: str) -> None:
    """The server runs: whether it is started is no question."""
    parts = urlsplit(database_url)
    message = await refusal(parts._replace(query="sslmode=require").geturl())
    assert "turn TLS on at the server (PostgreSQL's setting ssl), or correct sslmode of" in message


@pytest.mark.parametrize("name", ["sslrootcert", "sslcert"])
async def test_a_certificate_that_is_none_is_not_waited_for(name: str, tmp_path: Path) -> None:
    """The parameters that may be wrong are named."""
    file = tmp_path / "file"
    file.write_text("no certificate")
    message = await refusal(f"{AWAY}?sslmode=require&{name}={file}")
    assert "TLS failed" in message
    assert "correct sslmode, sslrootcert, sslcert or sslkey" in message


async def test_a_limit_of_the_roles_is_not_waited_for(
    role: str, role_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server runs and is the right one: it has answered. A first statement needs space on its disk."""
    large = "SELECT setting FROM pg_show_all_settings() WHERE $1::text IS NULL OR $2::boolean"
    monkeypatch.setattr(connecting, "QUERIES", {**QUERIES, "set_up_session": large})
    await connection.execute(
        f"ALTER ROLE {role} SET temp_file_limit = 0; ALTER ROLE {role} SET work_mem = '64kB'"
    )
    message = await refusal(role_url)
    assert "temporary file size exceeds" in message
    assert "(SQLSTATE 53400); raise the limit that the server names" in message
    assert "STRETTO_DATABASE_URL" not in message


async def test_a_role_without_a_free_connection_is_waited_for(
    role: str, role_url: str, connection: Connection
) -> None:
    """Others end theirs."""
    await connection.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
    pauses = 0

    async def pause(_: float) -> None:
        nonlocal pauses
        pauses += 1
        await connection.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")

    async with Database(role_url) as database:
        await database.release(await _acquire_patiently(database, "there", pause))
    assert pauses == 1


@pytest.mark.parametrize("url", [AWAY, "postgresql://u@no-such-host.invalid/x"])
async def test_a_host_that_is_not_there_yet_is_waited_for(url: str) -> None:
    """Its address and its server may come."""

    class Waited(Exception):
        pass

    async def pause(_: float) -> None:
        raise Waited

    async with Database(url) as database:
        with pytest.raises(Waited):
            await _acquire_patiently(database, "there", pause)


@pytest.mark.parametrize("is_first", [True, False])
async def test_of_several_hosts_one_that_is_away_is_waited_for(
    is_first: bool, database_url: str
) -> None:
    """Another one's refusal says nothing of it."""
    parts = urlsplit(database_url)
    place = parts.netloc.rpartition("@")[2]
    places = ["127.0.0.1:1", place] if is_first else [place, "127.0.0.1:1"]
    url = parts._replace(netloc=f"u:wrong@{','.join(places)}").geturl()
    async with Database(url) as database:
        with pytest.raises(Unreachable) as error:
            await database.acquire()
    assert isinstance(error.value.__cause__, ConnectionRefusedError)
    # Each host has its own cause, whichever comes first.
    dead, own = "127.0.0.1:1: Connection refused", f"{place}: password authentication failed"
    assert dead in str(error.value)
    assert own in str(error.value)
    both = parts._replace(netloc=f"u:wrong@{place},{place}").geturl()
    assert "SQLSTATE 28P01" in await refusal(both)


@pytest.mark.parametrize(
    ("expected", "url"),
    [
        ("'a b' is neither the name of a host", "postgresql://u:secret@a%20b/x"),
        (
            "its sslrootcert /nosuch cannot be read",
            f"{AWAY}?sslmode=verify-full&sslrootcert=/nosuch",
        ),
    ],
)
async def test_what_would_look_like_a_database_that_is_away_is_a_usage_error(
    expected: str, url: str
) -> None:
    """Exit 2, by the name of the setting."""
    code, _, errors = await stretto("migrate", DATABASE_URL=url)
    assert code == 2
    assert f"STRETTO_DATABASE_URL: {expected}" in errors
    assert "secret" not in errors


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("STRETTO_JWT_PUBLIC_KEY: cannot be read as PEM", {"JWT_PUBLIC_KEY": "no key"}),
        ("JWKS_URL: must look like", {"JWKS_URL": "keys"}),
        (
            "STRETTO_JWT_SECRET: is a PEM or SSH key",
            {"JWT_SECRET": f"{PEM_BEGIN}\nAAAA\n{PEM_END}"},
        ),
    ],
)
@pytest.mark.parametrize("workers", ["1", "3"])
async def test_a_key_that_verifies_nothing_is_refused_before_any_worker_starts(
    workers: str, words: str, key: dict[str, str], database_url: str
) -> None:
    """Each worker would say so, five times over; once is enough, with the code of wrong settings."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        code, _, errors = await stretto(
            "serve", DATABASE_URL=database_url, PORT="0", WORKERS=workers, **key
        )
    assert code == 2
    assert errors.count(words) == 1
    assert "worker" not in errors


async def test_a_second_service_on_a_data_folder_is_refused_by_the_name_of_the_first(
    folder: Path,
) -> None:
    """One of the two was probably forgotten. Commands share it; the next may serve."""
    settings = {"DATA_DIR": str(folder / "data"), "PORT": "0"}
    async with asyncio.timeout(DEADLINE_SECONDS):
        for workers in ("1", "2"):
            async with ServiceProcess({**settings, "WORKERS": workers}) as service:
                code, _, errors = await stretto("serve", **settings)
                assert (4, 1) == (code, errors.count(f"as process {service.process.pid}: stop it"))
                assert str(folder / "data") in errors
                code, token, _ = await stretto("token", "alice", **settings)
                assert (0, True) == (code, bool(token))
                service.signal(signal.SIGTERM)
                assert await service.exited() == 0
