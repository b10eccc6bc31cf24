"""Settings: every fault at once, nothing misspelt goes unnoticed."""

from __future__ import annotations

import pytest

from stretto.config import read_settings, require_token_settings
from stretto.errors import ConfigurationError

SECRET = "a secret for tests that is long enough"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    import os  # noqa: PLC0415 only here

    for name in os.environ:
        if name.startswith("STRETTO_"):
            monkeypatch.delenv(name)


def test_without_settings_everything_has_a_sensible_default() -> None:
    """And brings its own database."""
    settings = read_settings()
    assert (True, "127.0.0.1", 8080, 5.0) == (
        settings.is_embedded,
        settings.host,
        settings.port,
        settings.lease_seconds,
    )


def test_flags_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a flag that is not given does not."""
    monkeypatch.setenv("STRETTO_PORT", "9000")
    monkeypatch.setenv("STRETTO_WORKERS", "2")
    settings = read_settings(port=9001, workers=None)
    assert (9001, 2) == (settings.port, settings.workers)


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compose files set them."""
    monkeypatch.setenv("STRETTO_PORT", "")
    assert read_settings().port == 8080


def test_all_faults_are_told_at_once_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator mends them in one go."""
    faulty = {
        "STRETTO_PORT": "70000",
        "STRETTO_WRITERS": "many",
        "STRETTO_DB_SCHEMA": 'x"; DROP',
        "STRETTO_LEASE_SECONDS": "0",
        "STRETTO_LOG_LEVEL": "loud",
        "STRETTO_PROT": "1",
    }
    for name, value in faulty.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as error:
        read_settings()
    for name in faulty:
        assert f"{name}: " in str(error.value)
    assert "STRETTO_PROT: unknown setting" in str(error.value)


@pytest.mark.parametrize(
    ("expected", "settings"),
    [
        ("only one of", {"jwt_secret": SECRET, "jwks_url": "http://127.0.0.1/keys"}),
        ("at least 32 bytes", {"jwt_secret": "short"}),
    ],
)
def test_tokens_are_verified_in_one_safe_way(expected: str, settings: dict[str, str]) -> None:
    """Two ways are an ambiguity, a short secret is none."""
    with pytest.raises(ConfigurationError, match=expected):
        read_settings(**settings)


def test_a_database_of_ones_own_needs_a_way_to_verify_tokens() -> None:
    """The service must not run open."""
    with pytest.raises(ConfigurationError, match="tokens cannot be verified"):
        require_token_settings(read_settings(database_url="postgresql://x/y"))
    require_token_settings(read_settings(database_url="postgresql://x/y", jwt_secret=SECRET))


def test_secrets_are_not_shown() -> None:
    """Neither the token secret nor the database's password."""
    settings = read_settings(jwt_secret=SECRET, database_url="postgresql://u:hidden@x/y")
    assert SECRET not in repr(settings)
    assert "hidden" not in repr(settings)
