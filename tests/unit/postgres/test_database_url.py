"""Database URLs: what can never lead to a database is refused before anything connects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stretto.postgres.database_url import place_of, require_database_url
from stretto.postgres.pooler import require_pooler

if TYPE_CHECKING:
    from pathlib import Path

TLS_NAMES = ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl")


@pytest.fixture(autouse=True)
def _no_tls_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in TLS_NAMES:
        monkeypatch.delenv(f"PG{name.upper()}", raising=False)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgres:///x",
        "postgresql://u:p@db.example.:5432/x?sslmode=disable",
        "postgresql://u@db_1,10.0.0.1:6432,[::1]:5433/x",
        "postgresql://u@[fe80::1%25eth0]/x",
        "postgresql://u:p%40ss@bücher.example/x",
        "postgresql://%2Frun%2Fpostgresql/x",
        "postgresql://u@/x?host=/run/postgresql&port=5433",
        "postgresql://u@/x?host=a,[::1]:5433",
        "postgresql://u@a/x?host=",
        "postgresql://u@a/x?work_mem=8MB&pgbouncer=true",
        "postgresql://u@a/x?options=-c%20geqo%3Doff&target_session_attrs=any&sslnegotiation=postgres",
        "postgresql://u@a/x?tcp_user_timeout=9&client_encoding=utf8&krbsrvname=a",
        "postgresql://u@a/a%20b%40c%3A%2F%2Fd?application_name=a%20b",
    ],
)
def test_what_the_driver_can_use_is_taken(url: str) -> None:
    """Several hosts, sockets, names with an underscore or of other letters."""
    require_database_url(url)


@pytest.mark.parametrize(
    ("expected", "url"),
    [
        ("must look like postgresql://", "mysql://u@a/x"),
        ("must look like postgresql://", "postgresql://u@a:70000/x"),
        ("must look like postgresql://", "postgresql://u:secret#@a/x"),
        ("%40 for an @, %23 for a #", "postgresql://u:p@secret#w@a/x"),
        ("%40 for an @", "postgresql://u:p@secret@a/x"),
        ("%40 for an @", "postgresql://u@secret@a,b/x"),
        ("%23 for a #", "postgresql://u:p@a/x#secret"),
        ("%2F for a /", "postgresql://u:12/secret@a/x"),
        ("must look like postgresql://", "postgresql://u@[zz]/x"),
        ("must look like postgresql://", "postgresql://u@[::1/x"),
        ("'a b' is neither the name", "postgresql://u:secret@a%20b/x"),
        ("'a..b' is neither the name", "postgresql://u:secret@a..b/x"),
        ("is neither the name", f"postgresql://u:secret@{'a' * 70}.example/x"),
        ("'' is neither the name", "postgresql://u:secret@a,,b/x"),
        ("'a;b' is neither the name", "postgresql://u:secret@/x?host=a;b"),
        ("must be one URL", "postgresql://u:p@a/x\npostgresql://u:secret@b/x"),
        ("must be one URL", "postgresql://u:p@a/x\r\npostgresql://u:secret@b/x"),
        ("must be one URL", "postgresql://u:p@a/x,postgresql://u:secret@b/x"),
        ("must be one URL", "postgresql://u:p@a,postgresql://u:secret@b"),
        ("must be one URL", "postgresql://u:p@a/x?sslmode=disable,postgresql://u:secret@b/x"),
        ("must be one URL", "postgresql://u:p@a/x; postgresql://u:secret@b/x"),
        ("must be one URL", "postgresql://u:p@a/x u:secret@b/x"),
        ("must be one URL", "postgresql://u:sec ret@a/x"),
        ("must be one URL", "postgresql://u:sec\tret@a/x"),
        ("%40 for an @", "postgresql://u:p@a/x,u:secret@b/x"),
        ("parameters must be name=value", "postgresql://u:secret@a/x?sslmode"),
        ("parameters must be name=value", "postgresql://u:secret@a/x?sslmode=disable&"),
        ("parameters must be name=value", "postgresql://u:secret@/x?host=a:b"),
        (r"libpq take \(connect_timeout\): leave", "postgresql://u@a/x?connect_timeout=5"),
        (
            r"libpq take \(keepalives, scram_client_key\)",
            "postgresql://u@a/x?scram_client_key=secret&keepalives=1",
        ),
    ],
)
def test_what_never_leads_to_a_database_is_refused(expected: str, url: str) -> None:
    """With what is wrong, and no password."""
    with pytest.raises(ValueError, match=expected) as error:
        require_database_url(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("is_variable", [False, True])
@pytest.mark.parametrize(
    ("name", "first_mode"),
    [("sslrootcert", 3), ("sslcrl", 3), ("sslcert", 1), ("sslkey", 1)],
)
def test_a_file_for_tls_must_be_there_where_it_is_used(
    name: str, first_mode: int, is_variable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the modes before: a URL that works without it goes on working."""
    file = tmp_path / "file"
    given = ""
    if is_variable:
        monkeypatch.setenv(f"PG{name.upper()}", str(file))
    else:
        given = f"&{name}={file}"
    modes = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
    for mode in modes[:first_mode]:
        require_database_url(f"postgresql://u@a/x?sslmode={mode}{given}")
    for mode in modes[first_mode:]:
        url = f"postgresql://u@a/x?sslmode={mode}{given}"
        with pytest.raises(ValueError, match=rf"{name} {file} cannot be read \(No such file"):
            require_database_url(url)
    file.touch()
    require_database_url(url)


@pytest.mark.parametrize(
    ("expected", "url"),
    [
        ("a:1,[::1]", "postgresql://u:secret@a:1,[::1]/x"),
        ("/run", "postgresql://u:secret@/x?host=/run"),
        ("the driver's default place", "postgresql:///x"),
    ],
)
def test_a_place_is_named_without_an_account(expected: str, url: str) -> None:
    """For messages."""
    assert expected == place_of(url)


@pytest.mark.parametrize("value", ["maybe", "True", "false", ""])
def test_another_value_of_the_parameter_pgbouncer_is_refused(value: str) -> None:
    """The server would call it an unknown setting; the message names the value that it takes."""
    with pytest.raises(ValueError, match="pgbouncer takes the value true alone") as error:
        require_pooler(f"postgresql://u:secret@a/x?pgbouncer={value}")
    assert "secret" not in str(error.value)
    require_pooler("postgresql://u:secret@a/x?work_mem=8MB&pgbouncer=true")
